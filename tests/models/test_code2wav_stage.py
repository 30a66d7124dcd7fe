"""The vocoder stage: audio without seams, whatever the windows and the order of the messages."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from omni_python.models.qwen3_omni.architecture import model_config
from omni_python.models.qwen3_omni.code2wav import Code2Wav, load_code2wav
from omni_python.models.qwen3_omni.payloads import CodecFrames, TalkerResult
from omni_python.proto.payload import AudioOutput
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.code2wav import Code2WavScheduler
from tests.models.tiny_model import checkpoint, hf_model

GROUPS, CODEBOOK, PER_FRAME, TRIM = 4, 64, 1920, 555


@pytest.fixture(scope="module")
def vocoder() -> Code2Wav:
    return load_code2wav(checkpoint(), model_config(checkpoint()), torch.float32, "cpu")


def random_frames(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, CODEBOOK, (count, GROUPS), generator=torch.Generator().manual_seed(seed))


def one_call(frames: torch.Tensor) -> np.ndarray:
    """Hugging Face's decoding of all frames at once."""
    if not len(frames):
        return np.zeros(0, np.float32)
    with torch.inference_mode():
        return hf_model(checkpoint()).code2wav(frames.T[None])[0, 0].numpy()


def messages(request_id: str, frames: torch.Tensor, stream: bool, piece: int = 3) -> list[IncomingMessage]:
    chunks = [IncomingMessage(request_id, "stream_chunk", CodecFrames(part, stream)) for part in frames.split(piece)]
    if not len(frames):
        chunks = []
    end = IncomingMessage(request_id, "new_request", TalkerResult(len(frames), "stop", stream))
    return [*chunks, IncomingMessage(request_id, "stream_done"), end]


def outputs(scheduler: Code2WavScheduler, count: int) -> dict[str, list[AudioOutput]]:
    """Everything that `count` requests give, the result last."""
    found: dict[str, list[AudioOutput]] = {}
    while count:
        message = scheduler.outbox.get(timeout=30)
        assert message is not None and message.target is None
        if message.type == "error":
            raise message.data
        found.setdefault(message.request_id, []).append(message.data)
        count -= message.type == "result"
    return found


@pytest.fixture
def run(vocoder: Code2Wav) -> Iterator[list[Code2WavScheduler]]:
    """Schedulers put here are stopped at the end."""
    schedulers: list[Code2WavScheduler] = []
    yield schedulers
    for scheduler in schedulers:
        scheduler.stop()


def test_the_vocoder_knows_its_own_sizes(vocoder: Code2Wav) -> None:
    assert (vocoder.samples_per_frame, vocoder.trim, vocoder.sample_rate) == (PER_FRAME, TRIM, 24000)
    for count in (1, 2, 7):
        assert one_call(random_frames(count)).shape == (count * PER_FRAME - TRIM,)


@pytest.mark.parametrize("frames", [0, 1, 3, 60])
@pytest.mark.parametrize("chunk", [1, 4, 10, 25])
def test_streamed_audio_equals_one_call(
    vocoder: Code2Wav, run: list[Code2WavScheduler], chunk: int, frames: int
) -> None:
    scheduler = Code2WavScheduler(vocoder, chunk_frames=chunk)
    run.append(scheduler)
    scheduler.start()
    codes = random_frames(frames, seed=chunk)
    for message in messages("a", codes, stream=True):
        scheduler.inbox.put(message)
    pieces = outputs(scheduler, 1)["a"]
    expected = one_call(codes)
    audio = np.concatenate([piece.samples for piece in pieces])
    assert audio.shape == expected.shape
    np.testing.assert_allclose(audio, expected, atol=1e-4)
    assert all(piece.samples.dtype == np.float32 and piece.sample_rate == 24000 for piece in pieces)
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]
    assert len(pieces) in (frames // chunk, frames // chunk + 1)
    assert scheduler.stats() == {"running": 0}


@pytest.mark.parametrize("context", [1, 25])
def test_windows_that_fade_into_each_other_give_as_many_samples(
    vocoder: Code2Wav, run: list[Code2WavScheduler], context: int
) -> None:
    """With enough context both windows say the same of what fades, so nothing changes in it either."""
    scheduler = Code2WavScheduler(
        vocoder, chunk_frames=4, first_chunk_frames=1, left_context=context, crossfade_samples=600
    )
    run.append(scheduler)
    codes = random_frames(15, seed=3)
    for message in messages("a", codes, stream=True):
        scheduler.inbox.put(message)
    scheduler.start()
    audio = np.concatenate([piece.samples for piece in outputs(scheduler, 1)["a"]])
    expected = one_call(codes)
    assert audio.shape == expected.shape
    if context == 25:
        np.testing.assert_allclose(audio, expected, atol=1e-4)


def test_the_first_window_may_be_smaller(vocoder: Code2Wav, run: list[Code2WavScheduler]) -> None:
    scheduler = Code2WavScheduler(vocoder, chunk_frames=8, first_chunk_frames=2)
    run.append(scheduler)
    codes = random_frames(13)
    for message in messages("a", codes, stream=True, piece=1):
        scheduler.inbox.put(message)
    scheduler.start()
    pieces = outputs(scheduler, 1)["a"]
    assert [len(piece.samples) for piece in pieces] == [2 * PER_FRAME - TRIM, 8 * PER_FRAME, 3 * PER_FRAME]
    np.testing.assert_allclose(np.concatenate([p.samples for p in pieces]), one_call(codes), atol=1e-4)


@pytest.mark.parametrize("frames", [0, 1, 59, 300])
def test_audio_that_is_not_streamed_comes_at_once(vocoder: Code2Wav, run: list[Code2WavScheduler], frames: int) -> None:
    """And equals what Hugging Face's `chunked_decode` gives up to 300 frames."""
    scheduler = Code2WavScheduler(vocoder, chunk_frames=4)
    run.append(scheduler)
    scheduler.start()
    codes = random_frames(frames)
    for message in messages("a", codes, stream=False, piece=50):
        scheduler.inbox.put(message)
    (whole,) = outputs(scheduler, 1)["a"]
    assert whole.finish_reason == "stop"
    if frames:
        with torch.inference_mode():
            expected = hf_model(checkpoint()).code2wav.chunked_decode(codes.T[None], 300, 25)[0, 0].numpy()
        np.testing.assert_allclose(whole.samples, expected, atol=1e-4)
    else:
        assert whole.samples.shape == (0,)


def test_long_audio_that_is_not_streamed_has_no_seams(vocoder: Code2Wav, run: list[Code2WavScheduler]) -> None:
    scheduler = Code2WavScheduler(vocoder, whole_frames=40)
    run.append(scheduler)
    scheduler.start()
    codes = random_frames(101)
    for message in messages("a", codes, stream=False, piece=50):
        scheduler.inbox.put(message)
    (whole,) = outputs(scheduler, 1)["a"]
    expected = one_call(codes)
    assert whole.samples.shape == expected.shape
    np.testing.assert_allclose(whole.samples, expected, atol=1e-4)


def test_the_request_may_come_before_its_frames(vocoder: Code2Wav, run: list[Code2WavScheduler]) -> None:
    scheduler = Code2WavScheduler(vocoder, chunk_frames=4)
    run.append(scheduler)
    scheduler.start()
    codes = random_frames(11)
    *chunks, done, end = messages("a", codes, stream=True)
    for message in [end, done, *chunks]:
        scheduler.inbox.put(message)
        time.sleep(0.005)
    audio = np.concatenate([piece.samples for piece in outputs(scheduler, 1)["a"]])
    np.testing.assert_allclose(audio, one_call(codes), atol=1e-4)


def test_many_requests_share_windows(vocoder: Code2Wav, run: list[Code2WavScheduler]) -> None:
    """Windows of equal size are decoded together; each request gets what it gets alone."""
    sizes: list[int] = []

    class Watched:
        sample_rate, samples_per_frame, trim = vocoder.sample_rate, vocoder.samples_per_frame, vocoder.trim

        def decode(self, codes: torch.Tensor, context: int) -> torch.Tensor:
            sizes.append(len(codes))
            return vocoder.decode(codes, context)

    scheduler = Code2WavScheduler(Watched(), chunk_frames=4, max_batch=5)
    run.append(scheduler)
    codes = {f"r{n}": random_frames(5 + 3 * n, seed=n) for n in range(7)}
    queues = [messages(request_id, frames, n % 2 == 0) for n, (request_id, frames) in enumerate(codes.items())]
    rng = random.Random(1)
    while queues:
        chosen = rng.choice(queues)
        scheduler.inbox.put(chosen.pop(0))
        queues = [left for left in queues if left]
    scheduler.start()
    for request_id, pieces in outputs(scheduler, 7).items():
        audio = np.concatenate([piece.samples for piece in pieces])
        np.testing.assert_allclose(audio, one_call(codes[request_id]), atol=1e-4)
    assert 1 < max(sizes) <= 5


def test_aborted_requests_are_forgotten(vocoder: Code2Wav, run: list[Code2WavScheduler]) -> None:
    scheduler = Code2WavScheduler(vocoder, chunk_frames=4)
    run.append(scheduler)
    scheduler.start()
    *chunks, _, _ = messages("a", random_frames(9), stream=True)
    for message in chunks:
        scheduler.inbox.put(message)
    while not scheduler.stats()["running"]:
        time.sleep(0.001)
    scheduler.abort("a")
    scheduler.abort("unknown")
    deadline = time.monotonic() + 5
    while scheduler.stats()["running"] and time.monotonic() < deadline:
        time.sleep(0.001)
    assert scheduler.stats() == {"running": 0}


def test_a_vocoder_that_fails_fails_its_batch_alone(run: list[Code2WavScheduler]) -> None:
    class Broken:
        sample_rate, samples_per_frame, trim = 24000, 10, 3

        def decode(self, codes: torch.Tensor, context: int) -> torch.Tensor:
            if codes.min() < 0:
                raise ValueError("negative code")
            return torch.zeros(len(codes), (codes.shape[2] - context) * 10 - (0 if context else 3))

    scheduler = Code2WavScheduler(Broken(), chunk_frames=4)
    run.append(scheduler)
    scheduler.start()
    for message in messages("bad", -random_frames(9) - 1, stream=True, piece=9):
        scheduler.inbox.put(message)
    with pytest.raises(ValueError, match="negative code"):
        outputs(scheduler, 1)
    for message in messages("good", random_frames(9), stream=True, piece=9):
        scheduler.inbox.put(message)
    assert sum(len(p.samples) for p in outputs(scheduler, 1)["good"]) == 87


@pytest.mark.parametrize("prepared", [False, True])
def test_windows_have_the_samples_of_one_call(prepared: bool) -> None:
    """After any number of frames before them, padded to a captured size or not."""
    vocoder = load_code2wav(checkpoint(), model_config(checkpoint()), torch.float32, "cpu")
    with torch.inference_mode():
        if prepared:
            vocoder.prepare([(0, 3), (0, 9), (25, 30)], max_batch=4)
        for context, count, batch in ((0, 1, 1), (0, 4, 3), (0, 11, 1), (5, 8, 2), (25, 28, 3), (25, 30, 5)):
            frames = [random_frames(count, seed=count + row) for row in range(batch)]
            audio = vocoder.decode(torch.stack([codes.T for codes in frames]), context).numpy()
            given = slice(context * PER_FRAME - TRIM if context else 0, None)
            np.testing.assert_allclose(audio, np.stack([one_call(codes)[given] for codes in frames]), atol=1e-4)


def test_the_windows_are_known_before(run: list[Code2WavScheduler], vocoder: Code2Wav) -> None:
    seen: list[tuple[int, int]] = []

    class Watched:
        sample_rate, samples_per_frame, trim = vocoder.sample_rate, vocoder.samples_per_frame, vocoder.trim

        def decode(self, codes: torch.Tensor, context: int) -> torch.Tensor:
            seen.append((context, codes.shape[2]))
            return torch.zeros(len(codes), 1)

    scheduler = Code2WavScheduler(Watched(), chunk_frames=5, left_context=12, first_chunk_frames=2)
    run.append(scheduler)
    for message in messages("a", random_frames(2 + 5 * 6), stream=True):
        scheduler.inbox.put(message)
    scheduler.start()
    outputs(scheduler, 1)
    assert scheduler.windows == [(0, 2), (2, 7), (7, 12), (12, 17)]
    assert seen == [*scheduler.windows, *[(12, 17)] * 3]
