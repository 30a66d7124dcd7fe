"""The vocoder stage: streamed speech is the whole speech, in samples and values; seams with too little context fade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from omni_python.models.fish_s2_pro.payloads import SpeechFrames, SpeechResult
from omni_python.models.fish_s2_pro.stages import create_vocoder
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.payload import AudioOutput
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.code2wav import Code2WavScheduler
from tests.models.fish_s2_pro.test_codec import random_codes
from tests.oracle.fish_s2_pro_reference import FRAME, RATE, Reference

CONTEXT = 6


@pytest.fixture
def started() -> Iterator[list[Code2WavScheduler]]:
    schedulers: list[Code2WavScheduler] = []
    yield schedulers
    for scheduler in schedulers:
        scheduler.stop()


def spoken(
    scheduler: Code2WavScheduler, requests: dict[str, tuple[torch.Tensor, bool]]
) -> dict[str, list[AudioOutput]]:
    """Each request's outputs: `requests` has its codes [books, n], and whether it is streamed."""
    for request_id, (codes, stream) in requests.items():
        for piece in codes.T.split(5) if codes.shape[1] else ():
            scheduler.inbox.put(IncomingMessage(request_id, "stream_chunk", SpeechFrames(piece, stream)))
        scheduler.inbox.put(IncomingMessage(request_id, "stream_done"))
        end = SpeechResult(codes.shape[1], "stop", stream)
        scheduler.inbox.put(IncomingMessage(request_id, "new_request", end))
    found: dict[str, list[AudioOutput]] = {request_id: [] for request_id in requests}
    waiting = len(requests)
    while waiting:
        message = scheduler.outbox.get(timeout=30)
        assert message is not None
        if message.type == "error":
            raise message.data
        found[message.request_id].append(message.data)
        waiting -= message.type == "result"
    return found


def joined(outputs: Sequence[AudioOutput]) -> np.ndarray:
    assert {output.sample_rate for output in outputs} == {RATE}
    return np.concatenate([output.samples for output in outputs])


@pytest.mark.parametrize("crossfade", [0, 512])
def test_streamed_speech_is_the_references(
    fish: Path, reference: Reference, started: list[Code2WavScheduler], crossfade: int
) -> None:
    scheduler = create_vocoder(str(fish), first_chunk_frames=4, chunk_frames=7, crossfade_samples=crossfade)
    started.append(scheduler)
    scheduler.start()
    requests = {f"{count} {stream}": (random_codes(count, count), stream) for count in (0, 3, 25) for stream in (0, 1)}
    found = spoken(scheduler, {name: (codes, bool(stream)) for name, (codes, stream) in requests.items()})
    for name, (codes, stream) in requests.items():
        samples = joined(found[name])
        assert samples.shape == (codes.shape[1] * FRAME,)
        assert found[name][-1].num_frames == codes.shape[1]
        assert len(found[name]) == (4 if stream and codes.shape[1] == 25 else 1)
        if len(samples):
            np.testing.assert_allclose(samples, reference.waveform(codes).numpy(), atol=1e-4, rtol=0)
    assert scheduler.stats()["running"] == 0


def test_seams_of_windows_with_little_context_fade(
    fish: Path, reference: Reference, started: list[Code2WavScheduler]
) -> None:
    """By what each window says of the samples around the seam; their number stays."""
    scheduler = create_vocoder(
        str(fish), first_chunk_frames=10, chunk_frames=10, left_context=CONTEXT, crossfade_samples=512
    )
    started.append(scheduler)
    scheduler.start()
    codes = random_codes(20, seed=5)
    samples = joined(spoken(scheduler, {"a": (codes, True)})["a"])
    first = reference.waveform(codes[:, :10]).numpy()
    second = reference.waveform(codes[:, 10 - CONTEXT :]).numpy()[(CONTEXT - 1) * FRAME :]
    fade = np.linspace(0, 1, 512)
    expected = np.concatenate(
        (first[:-512], first[-512:] * (1 - fade) + second[FRAME - 512 : FRAME] * fade, second[FRAME:])
    )
    np.testing.assert_allclose(samples, expected, atol=1e-4, rtol=0)


def test_a_crossfade_must_fit(fish: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"crossfade_samples must be 0..2048"):
        create_vocoder(str(fish), left_context=1, crossfade_samples=2049)
