"""Speech played while it comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from omni_python.client._errors import OmniClientError
from omni_python.client._events import AudioChunk, Event

Sink = Callable[[np.ndarray, int], None]
"""Takes the next samples (float32 [n]) and their rate in Hz. May block until it has room for more."""


class PlaybackUnavailable(OmniClientError):
    """There is nothing to play sound with; the message says what to install."""


def played(events: Iterable[Event], sink: Sink | None = None) -> Generator[Event, None, None]:
    """The same events; their speech is played as it passes, without holding them up.

        for event in played(client.stream("Tell me a story.")):
            ...

    `sink` gets the chunks, from another thread; by default the sound card, through the package sounddevice. At the end
    this waits until all was played; leaving earlier cuts the sound off, and closes `events` where it can be closed.

    Raises `PlaybackUnavailable` before the first event, and at its end what `sink` raised.
    """
    with _sound_card() if sink is None else _as_it_is(sink) as play:
        chunks: queue.SimpleQueue[AudioChunk | None] = queue.SimpleQueue()
        player = _Player(chunks, play)
        player.start()
        try:
            for event in events:
                if isinstance(event, AudioChunk):
                    chunks.put(event)
                yield event
            chunks.put(None)
            player.join()
        finally:
            player.stop()
            if isinstance(events, Generator):
                events.close()
        if player.error is not None:
            raise player.error


class _Player(threading.Thread):
    def __init__(self, chunks: queue.SimpleQueue[AudioChunk | None], play: Sink) -> None:
        super().__init__(name="omni-playback", daemon=True)
        self.error: Exception | None = None
        self._chunks = chunks
        self._play = play
        self._stopped = False

    def run(self) -> None:
        while (chunk := self._chunks.get()) is not None and not self._stopped:
            try:
                self._play(chunk.samples, chunk.sample_rate)
            except Exception as error:
                self.error = error
                return

    def stop(self) -> None:
        """Drop what was not played yet."""
        self._stopped = True
        self._chunks.put(None)
        self.join()


@contextmanager
def _as_it_is(sink: Sink) -> Iterator[Sink]:
    yield sink


@contextmanager
def _sound_card() -> Iterator[Sink]:
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: without the PortAudio library
        raise PlaybackUnavailable(
            f"playing sound needs the package sounddevice ({error}); or pass a sink, or save_wav"
        ) from None
    stream: Any = None

    def play(samples: np.ndarray, sample_rate: int) -> None:
        nonlocal stream
        if stream is None:
            stream = sounddevice.OutputStream(samplerate=sample_rate, channels=1, dtype="float32")
            stream.start()
        stream.write(np.ascontiguousarray(samples[:, None]))

    try:
        yield play
    finally:
        if stream is not None:
            stream.stop()
            stream.close()
