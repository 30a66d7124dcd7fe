"""The vocoder's windows on a GPU, and streams of two priorities: a part of check_kernels_gpu."""

from __future__ import annotations

import time
from functools import partial

import torch
from gpu_measures import BF16, DEVICE, Bench, error, events, expect, finished, graph_of, print_kernels, randn, wall

from omni_python.models.qwen3_omni.code2wav import load_code2wav
from omni_python.scheduling.code2wav import Code2WavScheduler


def check_vocoder(bench: Bench) -> None:
    vocoder = load_code2wav(bench.config_path.parent, bench.config, BF16, DEVICE, "dummy")
    scheduler = Code2WavScheduler(vocoder, first_chunk_frames=4)
    windows = [(0, 2), (0, 4), (4, 14), (25, 31), (25, 35)]
    given = {
        (context, frames, batch): torch.randint(0, 1024, (batch, vocoder.groups, frames))
        for context, frames in windows
        for batch in (1, 3, 8)
    }
    eager = {}
    for (context, frames, batch), codes in given.items():
        eager[context, frames, batch] = vocoder.decode(codes, context)
        whole = vocoder._module(codes.to(DEVICE))[:, 0].float().cpu()[:, -eager[context, frames, batch].shape[1] :]
        taken = wall(partial(vocoder.decode, codes, context), 10)
        print(f"  context {context}, frames {frames}, batch {batch}, eager: {taken:.2f} ms wall", flush=True)
        expect("difference from the whole module", error(eager[context, frames, batch], whole), 1e-1)
    before = torch.cuda.memory_reserved()
    start = time.monotonic()
    vocoder.prepare(scheduler.windows, 8)
    grown = (torch.cuda.memory_reserved() - before) / 2**20
    print(
        f"  windows {scheduler.windows} captured in {time.monotonic() - start:.1f} s; "
        f"reserved memory grew by {grown:.0f} MiB"
    )
    for (context, frames, batch), codes in given.items():
        made = vocoder.decode(codes, context)
        taken = wall(partial(vocoder.decode, codes, context), 30)
        print(f"  context {context}, frames {frames}, batch {batch}, captured: {taken:.2f} ms wall")
        expect("difference from eager", error(made, eager[context, frames, batch]), 1e-1)
    for context, frames, batch in ((0, 4, 1), (25, 35, 1), (25, 35, 8)):
        graph = vocoder._graphed._captured[torch.Size((batch, vocoder.groups, frames)), ("context", context)].graph
        print(f"  {batch} windows of {frames} frames: {events(graph.replay):.2f} ms on the device")
        print_kernels(graph, f"the vocoder for {batch} windows of {frames} frames")


def check_streams(bench: Bench) -> None:
    """Is a short graph held up by a long one on another stream of lower priority?"""
    a, b = randn(8192, 8192), randn(64, 2048)
    long, short = graph_of(lambda: [a @ a for _ in range(20)]), graph_of(lambda: [b @ b.T for _ in range(100)])
    low, high = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)

    def both() -> None:
        with torch.cuda.stream(low):
            long()
        with torch.cuda.stream(high):
            short()
            high.synchronize()

    print(f"  short alone {wall(finished(short), 20):.2f} ms, long alone {wall(finished(long), 20):.2f} ms")
    print(f"  short beside long {wall(both, 20):.2f} ms")
    torch.cuda.synchronize()
