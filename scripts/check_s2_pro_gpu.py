"""Checks Fish Audio S2-Pro on a GPU, and measures it: `python scripts/check_s2_pro_gpu.py [--published-size]`.

First the tiny checkpoint, in float32: greedy codes and waveform must be those of the plain float64 model. Then, where
asked, random weights in the published size: each first code that captured decode steps choose must be the likeliest, up
to bfloat16's rounding, when plain operations compute the whole sequence at once; then a step of the engine, a window of
the vocoder, and what follows from them.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from tests.models.fish_s2_pro.published import published_config  # noqa: E402
from tests.oracle.fish_s2_pro_reference import FRAME, RATE, Reference  # noqa: E402

from omni_python.layers.kv_cache import PAGE_TOKENS, AttentionPlan, KVRow  # noqa: E402
from omni_python.models.fish_s2_pro import tiny  # noqa: E402
from omni_python.models.fish_s2_pro.payloads import SpeechFrames, SpeechPrompt, SpeechResult  # noqa: E402
from omni_python.models.fish_s2_pro.stages import create_tts_engine, create_vocoder  # noqa: E402
from omni_python.proto.payload import AudioOutput  # noqa: E402
from omni_python.proto.sampling import SamplingParams  # noqa: E402
from omni_python.proto.work import IncomingMessage  # noqa: E402
from omni_python.scheduling.base import Scheduler  # noqa: E402
from omni_python.scheduling.torch_scheduler import TorchScheduler  # noqa: E402

SEEDS = (0, 5, 12, 13, 15, 17, 20, 22)
"""Of random prompts whose greedy choices have clear margins."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--published-size", action="store_true", help="measure random weights in the published size")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check_tiny(Path(folder) / "tiny", args.gpu)
        if args.published_size:
            measure(Path(folder), args.gpu)


def check_tiny(path: Path, gpu: int) -> None:
    tiny.build(path)
    reference = Reference(path)
    engine = create_tts_engine(str(path), gpu, kv_tokens=4096, dtype="float32")
    vocoder = create_vocoder(str(path), gpu, first_chunk_frames=4, chunk_frames=6)
    sampling = SamplingParams(max_tokens=14)
    prompts = {str(seed): prompt(seed, 268, 64, 256, 5 + 7 * (seed % 8), seed % 3 * 6, sampling) for seed in SEEDS}
    started(engine, vocoder)
    frames, _ = spoken(engine, prompts)
    for name, asked in prompts.items():
        expected = reference.speech(asked.tokens.tolist(), asked.codes, sampling.max_tokens)
        assert frames[name].tolist() == expected.codes.T.tolist(), f"prompt {name}: other codes on the GPU"
        if not len(frames[name]):
            continue
        samples = voiced(vocoder, name, frames[name])
        error = float((samples.double() - reference.waveform(expected.codes)).abs().max())
        assert len(samples) == len(frames[name]) * FRAME and error < 1e-4, f"prompt {name}: off by {error}"
    engine.stop()
    vocoder.stop()
    print(f"tiny checkpoint: {len(prompts)} greedy speeches are the plain model's, on the GPU")


def measure(folder: Path, gpu: int) -> None:
    config = published_config()
    (folder / "config.json").write_text(json.dumps(config))
    start = time.perf_counter()
    engine = create_tts_engine(str(folder), gpu, kv_tokens=65536, load_format="dummy")
    vocoder = create_vocoder(str(folder), gpu, load_format="dummy")
    started(engine, vocoder)
    check_captured(engine, config, gpu)
    print(f"loaded in {time.perf_counter() - start:.1f} s; {torch.cuda.memory_reserved(gpu) / 2**30:.1f} GiB reserved")
    sampling = SamplingParams(temperature=0.8, top_p=0.8, top_k=30, max_tokens=101, seed=1, ignore_eos=True)
    for together in (1, 1, 8, 16, 32):
        prompts = {
            str(seed): prompt(seed, config["semantic_start_token_id"], 1024, 150000, 60, 215, sampling)
            for seed in range(together)
        }
        start = time.perf_counter()
        frames, first = spoken(engine, prompts)
        took = time.perf_counter() - start
        step = (took - first) / (sampling.max_tokens - 6)
        seconds = sum(map(len, frames.values())) * FRAME / RATE
        print(
            f"{together:3} at once: 5 frames after {1000 * first:.0f} ms, a step {1000 * step:.2f} ms, "
            f"engine's real-time factor {step * RATE / FRAME:.3f}, {seconds / took:.1f} s of speech a second"
        )
    for count in (40, 100, 100):
        start = time.perf_counter()
        voiced(vocoder, "v", frames["0"][:count])
        print(f"vocoder: {count} frames in {1000 * (time.perf_counter() - start):.1f} ms")
    engine.stop()
    vocoder.stop()


def check_captured(engine: TorchScheduler[Any], config: dict[str, Any], gpu: int) -> None:
    sampling = SamplingParams(max_tokens=33, ignore_eos=True)
    asked = prompt(3, config["semantic_start_token_id"], 1024, 150000, 40, 60, sampling)
    frames = spoken(engine, {"c": asked})[0]["c"].to(f"cuda:{gpu}")
    model = engine._runner._model  # type: ignore[attr-defined]
    with torch.inference_mode():
        start = model.embed_prompt(asked.tokens.to(frames.device), asked.codes.to(frames.device))
        embeds = torch.cat((start, model.embed_frames(frames[:-1])))
        pages = -(-len(embeds) // PAGE_TOKENS)
        plan = AttentionPlan.build([KVRow(range(pages), 0, len(embeds))], frames.device)
        positions = torch.arange(len(embeds), device=frames.device).expand(3, -1)
        hidden, _ = model.trunk(embeds, positions, model.trunk.new_cache(pages), plan)
        logits = model.speak(hidden[len(start) - 1 :]).float()[:, :-1]
    short = logits.amax(dim=1) - logits.gather(1, frames[:, :1])[:, 0]
    worst = float((short / logits.std(dim=1)).max())
    print(f"captured steps: {int((short == 0).sum())} of {len(frames)} likeliest codes, at worst {worst:.3f} std short")
    assert worst < 0.2, "captured steps choose codes that plain operations do not"


def prompt(
    seed: int, start: int, codes: int, words_from: int, words: int, voice: int, sampling: SamplingParams
) -> SpeechPrompt:
    """Random text around `voice` frames of a voice."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randint(0, codes, (10, voice), generator=generator)
    text = torch.randint(0, words_from, (words,), generator=generator)
    before, after = text.split([words // 2, words - words // 2])
    return SpeechPrompt(torch.cat((before, frames[0] + start, after)), frames, sampling, stream=True)


def started(*schedulers: Scheduler) -> None:
    for scheduler in schedulers:
        scheduler.start()


def spoken(engine: Scheduler, prompts: dict[str, SpeechPrompt]) -> tuple[dict[str, torch.Tensor], float]:
    """Each prompt's frames [n, books], and the seconds until the first came."""
    start = time.perf_counter()
    for request_id, asked in prompts.items():
        engine.inbox.put(IncomingMessage(request_id, "new_request", asked))
    frames: dict[str, list[torch.Tensor]] = {name: [torch.zeros(0, 10, dtype=torch.int64)] for name in prompts}
    waiting, first = len(prompts), 0.0
    while waiting:
        data = _next(engine)
        match data.data:
            case SpeechFrames(codes):
                first = first or time.perf_counter() - start
                frames[data.request_id].append(codes)
            case SpeechResult():
                waiting -= 1
            case other:
                raise other
    return {name: torch.cat(parts) for name, parts in frames.items()}, first


def voiced(vocoder: Scheduler, request_id: str, frames: torch.Tensor) -> torch.Tensor:
    vocoder.inbox.put(IncomingMessage(request_id, "stream_chunk", SpeechFrames(frames, True)))
    vocoder.inbox.put(IncomingMessage(request_id, "new_request", SpeechResult(len(frames), "stop", True)))
    pieces = []
    while True:
        message = _next(vocoder)
        if not isinstance(message.data, AudioOutput):
            raise message.data
        pieces.append(torch.from_numpy(message.data.samples.copy()))
        if message.type == "result":
            return torch.cat(pieces)


def _next(scheduler: Scheduler) -> Any:
    try:
        message = scheduler.outbox.get(timeout=120)
    except queue.Empty:
        raise SystemExit("a stage is silent") from None
    assert message is not None
    return message


if __name__ == "__main__":
    main()
