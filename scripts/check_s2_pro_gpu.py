"""Checks Fish Audio S2-Pro on a GPU, and measures it: `python scripts/check_s2_pro_gpu.py [--published-size]`.

First the tiny checkpoint, in float32: greedy codes and waveform must be those of the plain float64 model. Then, where
asked, random weights in the published size: each code that captured decode steps choose must be the likeliest, up to
bfloat16's rounding, when plain operations compute the whole sequence at once; then a step of the engine and its parts
on the device, a window of the vocoder, and what follows from them. `--gpu -1` tries the first part on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from drive_stages import started, stopped, taken, voiced  # noqa: E402
from gpu_measures import events, graph_of, kernels_of  # noqa: E402
from tests.models.fish_s2_pro.published import published_config  # noqa: E402
from tests.oracle.fish_s2_pro_reference import FRAME, RATE, Reference  # noqa: E402

from omni_python.layers.kv_cache import PAGE_TOKENS, AttentionPlan, KVRow  # noqa: E402
from omni_python.models.fish_s2_pro import tiny  # noqa: E402
from omni_python.models.fish_s2_pro.payloads import SpeechFrames, SpeechPrompt, SpeechResult  # noqa: E402
from omni_python.models.fish_s2_pro.stages import create_tts_engine, create_vocoder  # noqa: E402
from omni_python.proto.sampling import SamplingParams  # noqa: E402
from omni_python.proto.work import IncomingMessage  # noqa: E402
from omni_python.scheduling.base import Scheduler  # noqa: E402
from omni_python.scheduling.torch_scheduler import TorchScheduler  # noqa: E402

SEEDS = (0, 5, 12, 13, 15, 17, 20, 22)
"""Of random prompts whose greedy choices have clear margins."""
MOST_SHORT = 0.2
"""Standard deviations of a position's logits that a choice may be below the likeliest: bfloat16's rounding."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--published-size", action="store_true", help="measure random weights in the published size")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check_tiny(Path(folder) / "tiny", None if args.gpu < 0 else args.gpu)
        if args.published_size:
            measure(Path(folder), args.gpu)


def check_tiny(path: Path, gpu: int | None) -> None:
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
        samples = voiced(vocoder, *whole(frames[name]))
        error = float((samples.double() - reference.waveform(expected.codes)).abs().max())
        assert len(samples) == len(frames[name]) * FRAME and error < 1e-4, f"prompt {name}: off by {error}"
    stopped(engine, vocoder)
    print(f"tiny checkpoint: {len(prompts)} greedy speeches are the plain model's")


def measure(folder: Path, gpu: int) -> None:
    config = published_config()
    (folder / "config.json").write_text(json.dumps(config))
    start = time.perf_counter()
    engine = create_tts_engine(str(folder), gpu, kv_tokens=65536, load_format="dummy")
    vocoder = create_vocoder(str(folder), gpu, load_format="dummy")
    started(engine, vocoder)
    check_captured(engine, config, gpu)
    print(f"loaded in {time.perf_counter() - start:.1f} s; {torch.cuda.memory_reserved(gpu) / 2**30:.1f} GiB reserved")
    for together, top_k in ((1, 30), (1, 30), (8, 30), (16, 30), (32, 30), (1, 0), (32, 0)):
        sampling = SamplingParams(temperature=0.8, top_p=0.8, top_k=top_k, max_tokens=101, seed=1, ignore_eos=True)
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
            f"{together:3} at once, top_k {top_k}: 5 frames after {1000 * first:.0f} ms, a step {1000 * step:.2f} ms, "
            f"engine's real-time factor {step * RATE / FRAME:.3f}, {seconds / took:.1f} s of speech a second"
        )
    for count in (40, 100, 100):
        start = time.perf_counter()
        voiced(vocoder, *whole(frames["0"][:count]))
        print(f"vocoder: {count} frames in {1000 * (time.perf_counter() - start):.1f} ms")
    stopped(engine, vocoder)
    time_parts(engine, gpu)


def time_parts(engine: TorchScheduler[Any], gpu: int) -> None:
    """What a captured step, as the last requests left its input, takes on the device."""
    decode = engine._runner._decode  # type: ignore[attr-defined]
    assert decode is not None, "decode steps are not captured"
    with torch.inference_mode():
        for rows, size in sorted(decode._step._sizes.items()):
            inputs = size.inputs.to(f"cuda:{gpu}")
            hidden = decode.trunk(inputs)
            parts = {
                "whole": size.graph.replay,
                "trunk": graph_of(partial(decode.trunk, inputs)),
                "choice and head": graph_of(partial(decode.complete, inputs, hidden)),
            }
            times = [f"{name} {events(run):.2f} ms ({kernels_of(run) or '?'} kernels)" for name, run in parts.items()]
            print(f"step of {rows:2} rows on the device:", ", ".join(times), flush=True)


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
        # The head's whole sequence too: the trunk's output, and all codes but the last.
        head, books = model.head, frames.shape[1]
        x = torch.cat((hidden[len(start) - 1 :, None], head.embeddings(frames[:, :-1])), dim=1)
        rows = [KVRow([row], 0, books) for row in range(len(frames))]
        positions = torch.arange(books, device=frames.device).repeat(len(frames)).expand(3, -1)
        plan = AttentionPlan.build(rows, frames.device)
        made, _ = head.model(x.flatten(0, 1), positions, head.model.new_cache(len(frames)), plan)
        others = head.output(made.view(len(frames), books, -1)[:, 1:]).float()
    worst = max(
        most_short("first codes", logits, frames[:, 0]),
        most_short("other codes", others.flatten(0, 1), frames[:, 1:].flatten()),
    )
    assert worst < MOST_SHORT, "captured steps choose codes that plain operations do not"


def most_short(what: str, logits: torch.Tensor, chosen: torch.Tensor) -> float:
    """How far greedy choices [n] are, at worst, from the likeliest by plain `logits` [n, V], in standard deviations."""
    short = logits.amax(dim=1) - logits.gather(1, chosen[:, None])[:, 0]
    worst = float((short / logits.std(dim=1)).max())
    print(f"captured steps: {int((short == 0).sum())} of {len(short)} {what} likeliest, at worst {worst:.3f} std short")
    return worst


def prompt(
    seed: int, start: int, codes: int, words_from: int, words: int, voice: int, sampling: SamplingParams
) -> SpeechPrompt:
    """Random text around `voice` frames of a voice."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randint(0, codes, (10, voice), generator=generator)
    text = torch.randint(0, words_from, (words,), generator=generator)
    before, after = text.split([words // 2, words - words // 2])
    return SpeechPrompt(torch.cat((before, frames[0] + start, after)), frames, sampling, stream=True)


def spoken(engine: Scheduler, prompts: dict[str, SpeechPrompt]) -> tuple[dict[str, torch.Tensor], float]:
    """Each prompt's frames [n, books], and the seconds until the first came."""
    start = time.perf_counter()
    for request_id, asked in prompts.items():
        engine.inbox.put(IncomingMessage(request_id, "new_request", asked))
    frames: dict[str, list[torch.Tensor]] = {name: [torch.zeros(0, 10, dtype=torch.int64)] for name in prompts}
    waiting, first = len(prompts), 0.0
    while waiting:
        message = taken(engine)
        if isinstance(message.data, SpeechFrames):
            first = first or time.perf_counter() - start
            frames[message.request_id].append(message.data.codes)
        waiting -= isinstance(message.data, SpeechResult)
    return {name: torch.cat(parts) for name, parts in frames.items()}, first


def whole(frames: torch.Tensor) -> tuple[SpeechFrames, SpeechResult]:
    """All of a speech's frames at once, and its end."""
    return SpeechFrames(frames, True), SpeechResult(len(frames), "stop", True)


if __name__ == "__main__":
    main()
