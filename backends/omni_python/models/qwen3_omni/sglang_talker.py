"""The talker on SGLang: its backbone there, its code predictor and projections in the model runner, within one step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.qwen3_omni.sglang_talker_runner import SGLangTalkerRunner
from omni_python.models.qwen3_omni.sglang_thinker import text_config
from omni_python.models.qwen3_omni.talker import Talker
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens
from omni_python.models.qwen3_omni.talker_runner import TalkerRequest
from omni_python.models.qwen3_omni.weights import fill
from omni_python.scheduling.omni_scheduler import OmniScheduler
from omni_python.sglang_engine.engine import Engine, EngineConfig
from omni_python.sglang_engine.followers import RankGroup


def talker_scheduler(
    path: str | Path,
    config: Any,
    gpu_id: int | None,
    dtype: torch.dtype,
    load_format: LoadFormat,
    sizes: tuple[int, int, int],
    make_runner: Callable[[Talker], SGLangTalkerRunner],
    ranks: RankGroup | None = None,
) -> OmniScheduler[TalkerRequest]:
    """As `sglang_thinker.thinker_scheduler`. Nothing is shared between requests, and no prompt is cut into pieces."""
    max_running, kv_tokens, prefill_tokens = sizes
    engine_config = EngineConfig(
        text_config=text_config(config.talker_config.text_config),
        checkpoint=Path(path),
        weights={
            "talker.model.codec_embedding.": "model.embed_tokens.",
            "talker.model.": "model.",
            "talker.codec_head.": "lm_head.",
        },
        dtype=dtype,
        dummy=is_dummy(load_format),
        gpu_id=gpu_id,
        max_running=max_running,
        kv_tokens=kv_tokens,
        prefill_tokens=prefill_tokens,
        feedback=True,
    )

    def runner(engine: Engine) -> SGLangTalkerRunner:
        made = make_runner(_talker_on(engine, path, config, dtype, load_format))
        made.prepare()
        return made

    return OmniScheduler(runner, _TalkerIdentity(), engine_config, "talker", ranks)


def _talker_on(engine: Engine, path: str | Path, config: Any, dtype: torch.dtype, load_format: LoadFormat) -> Talker:
    """The talker without its layers: those of the engine, whose embedding and head it shares."""
    device = str(engine.head.device)
    with torch.device("meta"):
        talker = Talker(config.talker_config, config.thinker_config.text_config.vocab_size)
    talker.model.layers = torch.nn.ModuleList()
    shared = {
        "model.codec_embedding.weight": engine.token_embedding,
        "model.norm.weight": engine.norm,
        "codec_head.weight": engine.head,
    }
    if is_dummy(load_format):
        draw_weights(talker, dtype, device)
        talker.load_state_dict(shared, strict=False, assign=True)
        return talker.requires_grad_(False)
    tensors = {"thinker_embedding.weight": read_tensors(path, "thinker.model.embed_tokens.", dtype, device)["weight"]}
    for part in ("text_projection.", "hidden_projection.", "code_predictor."):
        read = read_tensors(path, f"talker.{part}", dtype, device)
        tensors.update({part + name: tensor for name, tensor in read.items()})
    return fill(talker, {**tensors, **shared}, "talker")


class _TalkerIdentity:
    def key(self, row: TalkerRequest) -> list[int]:
        return [0] * row.prompt_len

    def positions(self, row: TalkerRequest) -> torch.Tensor:
        assert row.user is not None, "kept until the prompt was computed"
        assistant = row.user.next_position + torch.arange(TalkerTokens.assistant_rows)
        return torch.cat((row.user.positions, assistant.expand(3, -1)), dim=1)

    def computed(self, row: TalkerRequest, tapped: Callable[[torch.Tensor], torch.Tensor]) -> None:
        pass
