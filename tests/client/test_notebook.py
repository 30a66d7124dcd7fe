"""Answers in a notebook, and speech played as it comes."""

from __future__ import annotations

import base64
import io
import re
import sys
import threading
import wave
from collections.abc import Generator

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from omni_python.client import Answer, AudioChunk, Event, Finished, PlaybackUnavailable, TextDelta, played
from omni_python.serve.triton_server import TritonServer

END = Finished("stop", {}, 0.1, 0.2, 0.5)


def sound(html: str) -> tuple[np.ndarray, int]:
    """What the only player in a page plays."""
    (data,) = re.findall(r'<audio controls [^>]*src="data:audio/wav;base64,([^"]*)"', html)
    with wave.open(io.BytesIO(base64.b64decode(data))) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767, file.getframerate()


def speech(n: int) -> np.ndarray:
    return np.random.default_rng().uniform(-1, 1, n).astype(np.float32)


def test_answers_and_chunks_show_players() -> None:
    samples = speech(5000)
    answer = Answer("<b>1 & 2</b>\nx", samples, 24_000, END)
    shown, _ = DisplayFormatter().format(answer)
    heard, rate = sound(shown["text/html"])
    np.testing.assert_allclose(heard, samples, atol=1e-4)
    assert rate == 24_000
    assert "&lt;b&gt;1 &amp; 2&lt;/b&gt;\nx" in shown["text/html"] and "first audio 0.20 s" in shown["text/html"]
    assert shown["text/plain"] == "Answer('<b>1 & 2</b>\\nx', 0.21 s of speech, stop)"
    shown, _ = DisplayFormatter().format(AudioChunk(samples[:2400], 16_000))
    heard, rate = sound(shown["text/html"])
    assert (len(heard), rate, shown["text/plain"]) == (2400, 16_000, "AudioChunk(0.150 s at 16000 Hz)")


def test_an_answer_without_speech_shows_no_player() -> None:
    shown, _ = DisplayFormatter().format(Answer("Hi", np.empty(0, np.float32), 0, END))
    assert "<audio" not in shown["text/html"] and shown["text/plain"] == "Answer('Hi', stop)"


def test_a_session(noop_server: TritonServer) -> None:
    """What a notebook's kernel does with its cells."""
    shell = InteractiveShell.instance()
    assert shell.display_formatter is not None
    shell.display_formatter.active_types = ["text/plain", "text/html"]
    try:
        cells = [
            f"from omni_python.client import OmniClient\nclient = OmniClient('{noop_server.grpc_url}', 'noop_forward')",
            "display(client.chat('x', sampling={'chunks': 3, 'chunk_bytes': 2}))",
            "list(client.stream('x', sampling={'chunks': 1, 'chunk_bytes': 2}))[0]",
            "client.close()",
        ]
        results = []
        with capture_output() as captured:
            for cell in cells:
                result = shell.run_cell(cell)
                result.raise_error()
                results.append(result.result)
        (first,) = captured.outputs
        assert first.data["text/plain"] == "Answer('xxxxxx{\"chunks\":3}', stop)"
        assert "xxxxxx{&quot;chunks&quot;:3}" in first.data["text/html"]
        assert results[2] == TextDelta("xx")
    finally:
        InteractiveShell.clear_instance()


def test_speech_is_played_in_order_while_events_pass() -> None:
    chunks = [AudioChunk(speech(100), 24_000) for _ in range(5)]
    events: list[Event] = [TextDelta("a"), *chunks, TextDelta("b"), END]
    heard: list[np.ndarray] = []
    all_passed = threading.Event()

    def sink(samples: np.ndarray, sample_rate: int) -> None:
        assert sample_rate == 24_000
        assert all_passed.wait(10), "a slow sound card holds the events up"
        heard.append(samples)

    passed = []
    for event in played(events, sink):
        passed.append(event)
        if event is END:
            all_passed.set()
    assert passed == events
    np.testing.assert_array_equal(np.concatenate(heard), np.concatenate([chunk.samples for chunk in chunks]))


def test_leaving_stops_the_sound_and_the_answer() -> None:
    closed = threading.Event()

    def endless() -> Generator[Event, None, None]:
        try:
            while True:
                yield AudioChunk(speech(10), 24_000)
        finally:
            closed.set()

    heard: list[int] = []
    for number, _ in enumerate(played(endless(), lambda samples, rate: heard.append(len(samples)))):
        if number == 3:
            break
    assert closed.wait(5) and len(heard) <= 4


def test_what_the_sink_raises_comes_out() -> None:
    def sink(samples: np.ndarray, sample_rate: int) -> None:
        raise RuntimeError("unplugged")

    with pytest.raises(RuntimeError, match="unplugged"):
        list(played([AudioChunk(speech(10), 24_000), END], sink))


def test_without_a_sound_card_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(PlaybackUnavailable, match="needs the package sounddevice"):
        list(played([END]))
