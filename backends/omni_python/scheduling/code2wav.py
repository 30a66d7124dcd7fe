"""The vocoder stage: codec frames in as they come, audio out window by window."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.payload import AudioOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.torch_loop import TorchLoopScheduler

logger = logging.getLogger(__name__)


class Vocoder(Protocol):
    """Decodes n frames, `codes` int64 [B, G, n], to float32 [B, n * samples_per_frame - trim] on the CPU.

    `trim` samples at the end of a window depend on the frame that follows it and are not given; a frame must not
    reach further back than that. Where the first `context` frames were decoded before, given are the samples that
    come after those: [B, (n - context) * samples_per_frame].
    """

    sample_rate: int
    samples_per_frame: int
    trim: int

    def decode(self, codes: torch.Tensor, context: int) -> torch.Tensor: ...


@runtime_checkable
class FrameChunk(Protocol):
    """A streamed chunk: `codes` int64 [frames, G]; whether the client wants audio as it comes."""

    codes: torch.Tensor
    stream: bool


@runtime_checkable
class SpeechEnd(Protocol):
    """The request itself, which says how many frames the chunks bring in all."""

    num_frames: int
    finish_reason: str
    stream: bool


@dataclass(eq=False)
class _Speech:
    """`frames` [frames, G] are those that are still needed, of which the first stands at `first` in the answer."""

    request_id: str
    frames: list[torch.Tensor] = field(default_factory=list)
    first: int = 0
    received: int = 0
    decoded: int = 0
    stream: bool = False
    end: SpeechEnd | None = None
    samples: list[np.ndarray] = field(default_factory=list)
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    """The end of what was decoded, which fades into the next window."""

    @property
    def complete(self) -> bool:
        return self.end is not None and self.received >= self.end.num_frames


@dataclass(slots=True, frozen=True)
class Window:
    """`codes` [G, context + new frames + those behind them] of a request, of which the first stands at `first` in the
    answer; of the context, `again` frames are decoded once more."""

    request_id: str
    codes: torch.Tensor
    first: int
    context: int
    again: int
    new: int


class Code2WavScheduler(TorchLoopScheduler):
    """Decodes windows of `chunk_frames` new frames (`first_chunk_frames` in the first one, for an early start) with up
    to `left_context` frames before them, and one smaller window at the end.

    Windows are joined without a seam: a later window's audio begins `trim` samples before its first new frame, where
    the one before it ended. So n frames always give n * samples_per_frame - trim samples, in whatever chunks they are
    decoded, with the values of one call wherever the left context covers the vocoder's receptive field.

    A vocoder whose samples depend on later frames too is given up to `lookahead` frames behind a window's new ones, as
    soon as they are there.

    Answers that are not streamed are decoded in windows of `whole_frames`: one call up to that many frames. Beyond,
    Hugging Face's `chunked_decode` (which cuts at 300 frames with a context of 25) leaves out `trim` samples at every
    cut; here they are not left out.

    Chunks and the request itself may come in any order. The result is the last piece of audio, or all of it.
    """

    def __init__(
        self,
        vocoder: Vocoder,
        chunk_frames: int = 10,
        left_context: int = 25,
        first_chunk_frames: int | None = None,
        whole_frames: int = 300,
        max_batch: int = 8,
        crossfade_samples: int = 0,
        name: str = "code2wav",
        lookahead: int = 0,
    ) -> None:
        super().__init__(name)
        self._first_chunk_frames = chunk_frames if first_chunk_frames is None else first_chunk_frames
        if min(chunk_frames, self._first_chunk_frames, left_context, whole_frames, max_batch) < 1 or lookahead < 0:
            raise InvalidArgument(
                "chunk_frames, left_context, whole_frames and max_batch must be at least 1, lookahead at least 0"
            )
        most = min(chunk_frames, self._first_chunk_frames, left_context) * vocoder.samples_per_frame - vocoder.trim
        if not 0 <= crossfade_samples <= most:
            raise InvalidArgument(f"crossfade_samples must be 0..{most}, within the left context and every window")
        self._crossfade = crossfade_samples
        self._vocoder = vocoder
        self._chunk_frames = chunk_frames
        self._left_context = left_context
        self._lookahead = lookahead
        self._whole_frames = whole_frames
        self._max_batch = max_batch
        self._speeches: dict[str, _Speech] = {}

    def _again(self, context: int) -> int:
        """Of a window's context, the frames that the crossfade needs."""
        return min(context, -(-self._crossfade // self._vocoder.samples_per_frame))

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Frames of context that are not decoded again, and in all, of a streamed answer's windows; the last one may be
        shorter."""
        decoded = self._first_chunk_frames
        windows = [(0, decoded)]
        while windows[-1][0] < self._left_context:
            context = min(self._left_context, decoded)
            windows.append((context, context + self._chunk_frames))
            decoded += self._chunk_frames
        return [(context - self._again(context), frames) for context, frames in windows]

    def stats(self) -> Mapping[str, int]:
        return {"running": len(self._speeches)}

    def drop(self, request_id: str) -> None:
        self._speeches.pop(request_id, None)

    def take(self, message: IncomingMessage) -> None:
        if message.type == "stream_done":
            return  # the request itself says how many frames there are
        speech = self._speeches.setdefault(message.request_id, _Speech(message.request_id))
        data = message.data
        if isinstance(data, FrameChunk):
            # A copy, for the chunk may lie in memory that is to be given back.
            speech.frames.append(data.codes.clone())
            speech.received += len(data.codes)
        elif isinstance(data, SpeechEnd):
            speech.end = data
        else:
            raise OmniError(f"{type(data).__name__} is no input of a vocoder stage")
        speech.stream = data.stream
        if self._is_finished(speech):
            self._give(speech, speech.held)

    def decode(self, windows: Sequence[Window]) -> Sequence[np.ndarray]:
        """float32 samples of each of `windows`, whose context and frames are equally many, after the context that is
        not decoded again. To be overridden where a speech depends on more than its codes."""
        codes = torch.stack([window.codes for window in windows])
        audio: np.ndarray = self._vocoder.decode(codes, windows[0].context - windows[0].again).numpy()
        return list(audio)

    def work(self) -> bool:
        alike: dict[tuple[int, int, int], list[Window]] = {}
        for speech in self._speeches.values():
            if (window := self._next_window(speech)) is not None:
                alike.setdefault((window.context, window.new, window.codes.shape[1]), []).append(window)
        for windows in alike.values():
            for start in range(0, len(windows), self._max_batch):
                self._decode(windows[start : start + self._max_batch])
        return bool(alike)

    def _next_window(self, speech: _Speech) -> Window | None:
        waiting = speech.received - speech.decoded
        size = self._whole_frames
        if speech.stream:
            size = self._chunk_frames if speech.decoded else self._first_chunk_frames
        if waiting == 0 or not (speech.complete or (speech.stream and waiting >= size + self._lookahead)):
            return None
        new = min(size, waiting)
        context = min(self._left_context, speech.decoded)
        frames = torch.cat(speech.frames)
        begin = speech.decoded - context - speech.first
        end = begin + context + min(waiting, new + self._lookahead)
        speech.frames, speech.first = [frames[begin:]], speech.decoded - context
        return Window(speech.request_id, frames[begin:end].T, speech.first, context, self._again(context), new)

    def _decode(self, windows: list[Window]) -> None:
        self.batch_sizes.observe(len(windows))
        speeches = [self._speeches[window.request_id] for window in windows]
        for speech in speeches:
            if not speech.decoded:
                self.on_began(speech.request_id)
        start = time.monotonic() if self.traces else 0.0
        try:
            decoded = self.decode(windows)
        except Exception as error:
            logger.exception("decoding %d windows failed", len(windows))
            for window in windows:
                self.fail(window.request_id, error)
            return
        if start:
            self.note_step([window.request_id for window in windows], start)
        for window, speech, samples in zip(windows, speeches, decoded, strict=True):
            speech.decoded += window.new
            behind = window.codes.shape[1] - window.context - window.new
            samples = samples[: len(samples) - behind * self._vocoder.samples_per_frame]
            repeated = window.again * self._vocoder.samples_per_frame
            if window.context == window.again:  # from the very beginning, where a trimmed frame has fewer samples
                repeated -= self._vocoder.trim
            self._give(speech, self._faded(speech, samples, repeated))

    def _faded(self, speech: _Speech, samples: np.ndarray, repeated: int) -> np.ndarray:
        """What was held and `samples`, of which `repeated` were decoded before; without what is to be held now."""
        if not self._crossfade:
            return samples
        held = speech.held
        if len(held):
            fade = np.linspace(0, 1, len(held), dtype=np.float32)
            again, new = samples[repeated - len(held) : repeated], samples[repeated:]
            samples = np.concatenate((held * (1 - fade) + again * fade, new))
        if self._is_finished(speech):
            return samples
        speech.held = samples[-self._crossfade :].copy()
        return samples[: -self._crossfade]

    @staticmethod
    def _is_finished(speech: _Speech) -> bool:
        return speech.complete and speech.decoded == speech.received

    def _give(self, speech: _Speech, samples: np.ndarray) -> None:
        finished = self._is_finished(speech)
        if not speech.stream:
            speech.samples.append(samples)
            if not finished:
                return
            samples = np.concatenate(speech.samples)
        output = AudioOutput(np.ascontiguousarray(samples), self._vocoder.sample_rate)
        if finished and speech.end is not None:
            output.finish_reason, output.num_frames = speech.end.finish_reason, speech.received
            self.drop(speech.request_id)
        self.outbox.put(OutgoingMessage(speech.request_id, "result" if finished else "stream", output))
