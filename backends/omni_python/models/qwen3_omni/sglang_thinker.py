"""The thinker on SGLang."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from omni_python.models.media.placeholders import MediaTokens
from omni_python.models.qwen3_omni.payloads import ThinkerInput
from omni_python.models.qwen3_omni.thinker import Thinker
from omni_python.models.qwen3_omni.thinker_runner import ThinkerModelRunner, ThinkerRequest
from omni_python.models.qwen3_omni.weights import fill
from omni_python.proto.errors import OmniError
from omni_python.scheduling.omni_scheduler import OmniScheduler
from omni_python.sglang_engine.engine import Engine, EngineConfig
from omni_python.sglang_engine.followers import RankGroup


def thinker_scheduler(
    path: str | Path,
    config: Any,
    gpu_id: int | None,
    dtype: torch.dtype,
    dummy: bool,
    sizes: tuple[int, int, int],
    media: MediaTokens,
    make_runner: Callable[[Thinker], ThinkerModelRunner],
    speech: bool,
    ranks: RankGroup | None = None,
) -> OmniScheduler[ThinkerRequest]:
    """For the checkpoint at `path`, whose `Qwen3OmniMoeConfig` is `config`.

    `dummy`: with random weights. `sizes`: requests that run at once, tokens of the KV cache, and prompt tokens a step.
    """
    text = config.thinker_config.text_config
    max_running, kv_tokens, prefill_tokens = sizes
    engine_config = EngineConfig(
        text_config=text_config(text),
        checkpoint=Path(path),
        weights={"thinker.model.": "model.", "thinker.lm_head.": "lm_head."},
        dtype=dtype,
        dummy=dummy,
        gpu_id=gpu_id,
        max_running=max_running,
        kv_tokens=kv_tokens,
        prefill_tokens=prefill_tokens,
        deepstack_layers=len(config.thinker_config.vision_config.deepstack_visual_indexes),
        tap=config.talker_config.accept_hidden_layer if speech else None,
    )
    identity = ThinkerIdentity(media, text.vocab_size)

    def runner(engine: Engine) -> ThinkerModelRunner:
        return make_runner(thinker_on(engine, config))

    return OmniScheduler(runner, identity, engine_config, "thinker", ranks)


def text_config(text: Any) -> dict[str, Any]:
    """A thinker's or talker's `text_config` as SGLang's decoder reads it."""
    given = vars(text)
    rope = text.rope_parameters
    if given.get("mlp_only_layers") or given.get("decoder_sparse_step", 1) != 1:
        raise OmniError('engine "sglang" runs decoders with experts in every layer alone; take engine "torch"')
    kept = {key: value for key, value in given.items() if key not in ("model_type", "architectures", "rope_scaling")}
    sections = rope.get("mrope_section", (24, 20, 20))
    return {
        **kept,
        "shared_expert_intermediate_size": given.get("shared_expert_intermediate_size") or 0,
        "rope_parameters": {**rope, "mrope_section": list(sections), "mrope_interleaved": True},
    }


def thinker_on(engine: Engine, config: Any) -> Thinker:
    """The thinker's embedding and head for a model runner, with the engine's weights; it has no layers of its own."""
    with torch.device("meta"):
        thinker = Thinker(config.thinker_config.text_config)
    thinker.model.layers = torch.nn.ModuleList()
    weights = {
        "model.embed_tokens.weight": engine.token_embedding,
        "model.norm.weight": engine.norm,
        "lm_head.weight": engine.head,
    }
    return fill(thinker, weights, "thinker")


class ThinkerIdentity:
    """Media in a prompt are keyed by their content: the same picture at the same place is found again, and no other.

    Every run of equal placeholders gets an id beyond the vocabulary, made of its embeddings, deepstack features and
    rotary positions (which depend on its shape, not on its length alone).
    """

    def __init__(self, media: MediaTokens, vocab_size: int) -> None:
        self._media = media
        self._vocab_size = vocab_size

    def key(self, row: ThinkerRequest) -> list[int]:
        assert row.input is not None, "the input is kept until the first token was emitted"
        prompt = row.input.prompt
        ids: list[int] = prompt.input_ids.tolist()
        for token, features in self._features(row.input):
            places = [place for place, given in enumerate(ids) if given == token]
            for first, last in _runs(places):
                span = slice(places[first], places[last] + 1)
                parts = [*(layer[first : last + 1] for layer in features), prompt.position_ids[:, span]]
                ids[span] = [self._vocab_size + _digest(parts)] * (last + 1 - first)
        return ids

    def positions(self, row: ThinkerRequest) -> torch.Tensor:
        assert row.input is not None, "the input is kept until the first token was emitted"
        return row.input.prompt.position_ids

    def computed(self, row: ThinkerRequest, tapped: Callable[[torch.Tensor], torch.Tensor]) -> None:
        if row.speech and row.input is not None and (row.input.vision is not None or row.input.audio is not None):
            media = torch.tensor([self._media.image, self._media.video, self._media.audio])
            row.media_hidden = tapped(torch.isin(row.input.prompt.input_ids.cpu(), media))

    def _features(self, given: ThinkerInput) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """Each kind's placeholder and its features [tokens, H], those of deepstack after the embeddings."""
        vision, audio = given.vision, given.audio
        if vision is not None and vision.image is not None:
            yield self._media.image, [vision.image, *vision.image_deepstack]
        if vision is not None and vision.video is not None:
            yield self._media.video, [vision.video, *vision.video_deepstack]
        if audio is not None:
            yield self._media.audio, [audio.audio]


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last index of every run of `places` that follow each other."""
    first = 0
    for index in range(len(places)):
        if index + 1 == len(places) or places[index + 1] != places[index] + 1:
            yield first, index
            first = index + 1


def _digest(parts: Sequence[torch.Tensor]) -> int:
    """62 bits that are as good as different for different contents."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part.contiguous().cpu().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little") >> 2
