"""The stages with fused decode steps give what they give with plain operations: in Triton's interpreter, on the CPU."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("test_kernels.py and scripts/check_kernels_gpu.py check the kernels on a GPU", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton", reason="triton is not installed: pip install --no-deps triton==3.6.0 for its interpreter")

from omni_python.layers.decoder import DecoderConfig
from omni_python.models.fish_s2_pro.architecture import S2Config
from omni_python.models.fish_s2_pro.dual_ar import DualAR
from omni_python.models.fish_s2_pro.engine import SpeechModelRunner
from omni_python.models.fish_s2_pro.payloads import SpeechFrames, SpeechPrompt
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.media.placeholders import MediaTokens
from omni_python.models.qwen3_omni import tiny
from omni_python.models.qwen3_omni.architecture import model_config
from omni_python.models.qwen3_omni.payloads import (
    AudioEmbeds,
    CodecFrames,
    Prompt,
    TalkerPrompt,
    ThinkerInput,
    VisionEmbeds,
)
from omni_python.models.qwen3_omni.talker import load_talker
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens
from omni_python.models.qwen3_omni.talker_runner import TalkerModelRunner
from omni_python.models.qwen3_omni.thinker import load_thinker
from omni_python.models.qwen3_omni.thinker_runner import ThinkerModelRunner
from omni_python.models.qwen3_omni.tiny_config import Dimensions
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.models.text.options import GenerationOptions
from omni_python.models.text.payloads import AnswerToken
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
    size = Dimensions(thinker_layers=2, talker_layers=2, code_predictor_layers=1, accept_layer=1)
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
        SamplingParams(temperature=1.2, top_p=0.9, top_k=2**40, seed=12, **common),  # more than there are codes
    ]
    talkers = [load_talker(checkpoint, config, torch.float32, "cpu") for _ in range(2)]
    plain = frames(TalkerModelRunner(talkers[0], tokens, frames_per_chunk=1), asked, config)
    fused = frames(TalkerModelRunner(talkers[1], tokens, frames_per_chunk=1, fused_rows=4), asked, config)
    assert [len(row) for row in plain] == [4, 4, 4]
    assert fused == plain


def answers(runner: ThinkerModelRunner, asked: Sequence[ThinkerInput]) -> tuple[list[list[int]], list[TalkerPrompt]]:
    """Three tokens of each, and what the talker gets first; the requests begin together."""
    runner.allocate(4 * len(asked))
    rows = []
    for index, data in enumerate(asked):
        row = runner.open(IncomingMessage(str(index), "new_request", data))
        assert row is not None
        row.pages = list(range(4 * index, 4 * index + 4))
        rows.append(row)
    prompts = []
    for _ in range(3):
        for batch in runner.batches(rows):
            runner.step(batch)
            for row in batch:
                assert row.error is None
                prompts += [message.data for message in runner.emit(row) if isinstance(message.data, TalkerPrompt)]
    return [row.generated for row in rows], prompts


@pytest.mark.timeout(600)
def test_thinker_gives_the_same_tokens(checkpoint: Path) -> None:
    """Prompts with and without media, which go through the fused kernels together."""
    config = model_config(checkpoint)
    thinker_config = config.thinker_config
    hidden = thinker_config.text_config.hidden_size
    media = MediaTokens(thinker_config.image_token_id, thinker_config.video_token_id, thinker_config.audio_token_id)
    layers = len(thinker_config.vision_config.deepstack_visual_indexes)
    options = GenerationOptions(SamplingParams(max_tokens=9, ignore_eos=True), SamplingParams(), True, "ethan", True)
    vision = VisionEmbeds(image=torch.randn(4, hidden), image_deepstack=[torch.randn(4, hidden) for _ in range(layers)])
    asked = []
    for kinds in ([], [media.image] * 4 + [media.audio] * 3):
        ids = torch.cat((torch.randint(100, 1000, (5,)), torch.tensor(kinds, dtype=torch.int64), torch.tensor([7, 8])))
        prompt = Prompt(ids, torch.randint(0, 30, (3, len(ids))), 3, options)
        audio = AudioEmbeds(torch.randn(3, hidden)) if kinds else None
        asked.append(ThinkerInput(prompt, vision if kinds else None, audio))
    made = []
    for fused_rows in (0, 2):
        thinker = load_thinker(checkpoint, config, torch.float32, "cpu")
        accept_layer = config.talker_config.accept_hidden_layer
        texts = TokenBytes(load_tokenizer(checkpoint))
        runner = ThinkerModelRunner(
            thinker, media, [], accept_layer, texts, fused_rows=fused_rows, deepstack_layers=layers
        )
        made.append(answers(runner, asked))
    (plain, plain_prompts), (fused, fused_prompts) = made
    assert fused == plain and all(len(tokens) == 3 for tokens in plain)
    by_length = [
        sorted(prompts, key=lambda prompt: len(prompt.input_ids)) for prompts in (plain_prompts, fused_prompts)
    ]
    for one, other in zip(*by_length, strict=True):
        assert (one.media_hidden is None) == (other.media_hidden is None)
        if one.media_hidden is not None and other.media_hidden is not None:
            assert one.media_hidden.shape == (7, hidden)
            torch.testing.assert_close(other.media_hidden, one.media_hidden, rtol=1e-3, atol=1e-4)


def speeches(runner: SpeechModelRunner, asked: Sequence[SpeechPrompt]) -> list[list[list[int]]]:
    """All frames of requests that begin together and end at different times."""
    runner.allocate(2 * len(asked))
    rows = []
    made: list[list[list[int]]] = [[] for _ in asked]
    for index, data in enumerate(asked):
        row = runner.open(IncomingMessage(str(index), "new_request", data))
        assert row is not None
        row.pages = list(range(2 * index, 2 * index + 2))
        rows.append(row)
    while running := [row for row in rows if row.finish_reason is None]:
        for batch in runner.batches(running):
            runner.step(batch)
            for row in batch:
                assert row.error is None
                for message in runner.emit(row):
                    if isinstance(message.data, SpeechFrames):
                        made[int(row.request_id)] += message.data.codes.tolist()
                if row.finish_reason is not None:
                    runner.release(row)
    return made


@pytest.mark.timeout(600)
def test_dual_ar_gives_the_same_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and drawn, of few and of all codes, penalised and not, with and without a voice."""
    from omni_python.models.fish_s2_pro import frame_decode

    monkeypatch.setattr(frame_decode, "_SPLITS", 2)  # each of which the interpreter runs by itself
    common: dict[str, Any] = {"hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "rope_theta": 1e4}
    trunk = DecoderConfig(layers=2, intermediate=256, norm_eps=1e-6, qk_norm=True, **common)
    head = DecoderConfig(layers=1, intermediate=128, norm_eps=1e-6, qk_norm=False, **common)
    config = S2Config(trunk, head, vocab=400, codes=64, books=4, semantic_start=300, end=299, context=512)
    plain = DualAR(config)
    for parameter in plain.parameters():
        parameter.copy_(torch.randn(parameter.shape) * (0.3 if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1))
    plain.speak.weight[-1] *= 2  # so that a speech that may end sometimes does
    fused = copy.deepcopy(plain)
    asked = []
    for index, temperature in enumerate((0.0, 0.8, 1.1)):
        words, codes = torch.randint(0, 299, (4 + index,)), torch.randint(0, 64, (4, 3 * index))
        params = SamplingParams(
            temperature=temperature,
            seed=index,
            top_k=(0, 20, 0)[index],
            top_p=0.9,
            repetition_penalty=1.0 + index % 2,
            max_tokens=4 + index,
            ignore_eos=index != 1,
        )
        asked.append(SpeechPrompt(torch.cat((words, codes[0] + 300)), codes, params, True))
    expected = speeches(SpeechModelRunner(plain, frames_per_chunk=2), asked)
    assert [len(expected[0]), len(expected[2])] == [3, 5]
    assert speeches(SpeechModelRunner(fused, frames_per_chunk=2, fused_rows=4), asked) == expected
