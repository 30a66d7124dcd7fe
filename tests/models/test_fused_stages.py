"""The stages with fused decode steps give what they give with plain operations: in Triton's interpreter, on the CPU."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("the kernels' own tests run on the GPU", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton")

from omni_python.models.qwen3_omni import tiny
from omni_python.models.qwen3_omni.payloads import AnswerToken, CodecFrames, TalkerPrompt
from omni_python.models.qwen3_omni.talker import load_talker
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens
from omni_python.models.qwen3_omni.talker_runner import TalkerModelRunner
from omni_python.models.qwen3_omni.weights import model_config
from omni_python.proto.sampling import SamplingParams
from omni_python.proto.work import IncomingMessage

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy's, of the interpreter


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fused")
    size = tiny.Dimensions(thinker_layers=2, talker_layers=2, code_predictor_layers=1, accept_layer=1)
    seed = secrets.randbelow(2**31)
    print("checkpoint seed", seed)
    tiny.build(out, size, seed=seed)
    return out


def frames(runner: TalkerModelRunner, asked: Sequence[SamplingParams], config: Any) -> list[list[list[int]]]:
    """All frames of requests of which the later ones join two steps after the one before."""
    runner.allocate(4 * len(asked))
    rows: list[Any] = []
    made: list[list[list[int]]] = [[] for _ in asked]
    generator = torch.Generator().manual_seed(3)
    for step in range(2 * len(asked) + max(params.max_tokens for params in asked)):
        if step % 2 == 0 and step // 2 < len(asked):
            index = step // 2
            text = torch.randint(100, 1000, (5 + index,), generator=generator)
            turn = [config.im_start_token_id, config.user_token_id]
            reply = [config.im_start_token_id, config.assistant_token_id, 10]
            ids = torch.cat((torch.tensor(turn), text, torch.tensor(reply)))
            positions = torch.arange(len(ids)).expand(3, -1)
            prompt = TalkerPrompt(ids, positions, None, "ethan", asked[index], True)
            row = runner.open(IncomingMessage(str(index), "stream_chunk", prompt))
            assert row is not None
            row.pages = list(range(4 * index, 4 * index + 4))
            for token in (7, 8, 9):
                runner.take_chunk(row, AnswerToken(token))
            runner.take_done(row)
            rows.append(row)
        running = [row for row in rows if row.finish_reason is None]
        if not running:
            continue
        runner.step(running)
        for row in running:
            assert row.error is None
            for message in runner.emit(row):
                if isinstance(message.data, CodecFrames):
                    made[int(row.request_id)] += message.data.codes.tolist()
            if row.finish_reason is not None:
                runner.release(row)
    return made


@pytest.mark.timeout(600)
def test_talker_gives_the_same_frames(checkpoint: Path) -> None:
    """Greedy and drawn, with a penalty, of several numbers of rows; each row as it would be alone."""
    config = model_config(checkpoint)
    tokens = TalkerTokens.of(config)
    common: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True}
    asked = [
        SamplingParams(repetition_penalty=1.3, **common),
        SamplingParams(temperature=0.9, top_k=50, repetition_penalty=1.05, seed=11, **common),
        SamplingParams(temperature=1.2, top_p=0.9, seed=12, **common),
    ]
    talkers = [load_talker(checkpoint, config, torch.float32, "cpu") for _ in range(2)]
    plain = frames(TalkerModelRunner(talkers[0], tokens, frames_per_chunk=1), asked, config)
    fused = frames(TalkerModelRunner(talkers[1], tokens, frames_per_chunk=1, fused_rows=4), asked, config)
    assert [len(row) for row in plain] == [4, 4, 4]
    assert fused == plain
