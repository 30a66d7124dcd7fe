"""The schedulers of text and speech: whatever the order in which messages come, what goes out is whole and in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from omni_python.models.speech_to_speech.hearing import HearingScheduler
from omni_python.models.speech_to_speech.payloads import Heard, Reading, Sentence, Utterance, Words
from omni_python.models.speech_to_speech.reader import ReaderScheduler
from omni_python.models.speech_to_speech.recogniser import Recogniser
from omni_python.models.speech_to_speech.synthesis import SAMPLES_PER_FRAME, SynthesisScheduler
from omni_python.models.speech_to_speech.transcript import TranscriptScheduler
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.payload import AudioOutput, TextOutput
from omni_python.proto.request import AudioPart, TextPart
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler
from tests.models.speech_to_speech.test_recogniser import noise, save_tiny

TEXT = "One is here. Two, after a comma, is there! And three"


@contextmanager
def started(scheduler: Scheduler) -> Iterator[Scheduler]:
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()


def words(language: str = "en", stream: bool = True) -> list[Words]:
    return [Words(word, language, "v", 1.0, True, stream) for word in TEXT.split(" ")]


def heard(count: int, stream: bool = True, reason: str = "stop") -> Heard:
    return Heard(count, 50, count, reason, True, stream)


def outputs(scheduler: Scheduler, request_id: str, sent: Sequence[object]) -> list[OutgoingMessage]:
    """What a request gives until it is over; a `Heard` or `Reading` is sent as the request itself."""
    for data in sent:
        kind = "new_request" if isinstance(data, Heard | Reading | Utterance) else "stream_chunk"
        scheduler.inbox.put(IncomingMessage(request_id, kind, data))  # type: ignore[arg-type]
    if not isinstance(sent[0], Utterance):
        scheduler.inbox.put(IncomingMessage(request_id, "stream_done"))
    given = []
    while True:
        message = scheduler.outbox.get(timeout=20)
        assert message is not None and message.request_id == request_id
        given.append(message)
        if message.type != "stream":
            break
    deadline = time.monotonic() + 5
    while any(scheduler.stats().values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(scheduler.stats().values())
    return given


def both_orders(chunks: list[object], end: object) -> list[list[object]]:
    return [[*chunks, end], [end, *chunks]]


@pytest.mark.parametrize("stream", [True, False])
def test_transcript(stream: bool) -> None:
    chunks: list[object] = list(words(stream=stream))
    with started(TranscriptScheduler()) as scheduler:
        for number, sent in enumerate(both_orders(chunks, heard(len(chunks), stream, "length"))):
            *deltas, result = outputs(scheduler, str(number), sent)
            assert [delta.data.text for delta in deltas] == (TEXT.split(" ") if stream else [])
            assert result.data == TextOutput("" if stream else TEXT.replace(" ", ""), "length", 50, len(chunks))


def test_reader() -> None:
    spaced: list[object] = [Words(f" {word}", "en", "v", 1.0, True, True) for word in TEXT.split(" ")]
    with started(ReaderScheduler(lambda sentence: sentence.upper())) as scheduler:
        for number, sent in enumerate(both_orders(spaced, heard(len(spaced)))):
            *sentences, result = outputs(scheduler, str(number), sent)
            assert [message.data.phonemes for message in sentences] == [
                "ONE IS HERE.",
                "TWO, AFTER A COMMA, IS THERE!",
                "AND THREE",
            ]
            assert {message.target for message in sentences} == {"synthesis"}
            assert result.data == Reading(3, "stop", True)


def test_only_english_is_read() -> None:
    with started(ReaderScheduler(str)) as scheduler:
        (error,) = outputs(scheduler, "x", [words(language="fr")[0]])
    assert error.type == "error" and isinstance(error.data, InvalidArgument)
    assert "is 'fr', and only English can be spoken" in str(error.data)


def test_a_text_without_words_is_silent() -> None:
    with started(ReaderScheduler(lambda sentence: "")) as scheduler:
        (result,) = outputs(scheduler, "x", [words()[0], heard(1)])
        assert result.data == Reading(0, "stop", True)


class Beeps:
    """Stands for the network: as many frames as phonemes, each as loud as its letter."""

    def speak(self, phonemes: str, voice: str, speed: float) -> np.ndarray:
        levels = [ord(letter) / 256 for letter in phonemes]
        return np.repeat(np.array(levels, np.float32), SAMPLES_PER_FRAME)


@pytest.mark.parametrize("stream", [True, False])
def test_synthesis(stream: bool) -> None:
    sentences: list[object] = [Sentence(text, "v", 1.0, stream) for text in ("abc", "d", "ef")]
    expected = Beeps().speak("abcdef", "v", 1.0)
    with started(SynthesisScheduler(Beeps())) as scheduler:  # type: ignore[arg-type]
        for number, sent in enumerate(both_orders(sentences, Reading(3, "stop", stream))):
            messages = outputs(scheduler, str(number), sent)
            assert all(isinstance(message.data, AudioOutput) for message in messages)
            assert len(messages) == (4 if stream else 1)
            np.testing.assert_array_equal(np.concatenate([message.data.samples for message in messages]), expected)
            assert messages[-1].data.num_frames == 6 and messages[-1].data.finish_reason == "stop"


def test_hearing(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("whisper")
    save_tiny(path, seed=2)
    recogniser = Recogniser(path, margin_s=30)
    samples = noise(7, 1.5)
    alone = list(recogniser.hear(samples, "translate", "de", 9))
    parts: list[TextPart | AudioPart] = [TextPart("First. "), AudioPart(samples=samples, sample_rate=16000)]
    with started(HearingScheduler(recogniser)) as scheduler:
        *streamed, result = outputs(scheduler, "x", [Utterance(parts, "translate", "de", 9, "v", 1.0, True, True)])
        assert [message.target for message in streamed[:2]] == ["transcript", "reader"]
        pieces = [message.data.text for message in streamed if message.target == "reader"]
        assert pieces == ["First.", *(piece.text for piece in alone)]
        tokens = sum(piece.tokens for piece in alone)
        reason = "length" if tokens == 9 else "stop"
        assert result.data == Heard(len(pieces), 75, tokens, reason, True, True)


def test_requests_are_heard_side_by_side_and_aborts_free_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("whisper")
    save_tiny(path, seed=2)
    recogniser = Recogniser(path, margin_s=30)
    expected = "".join(piece.text for piece in recogniser.hear(noise(7, 1.5), "translate", "de", 9))
    scheduler = HearingScheduler(recogniser)
    for name in ("a", "b", "gone"):
        sound: list[TextPart | AudioPart] = [AudioPart(samples=noise(7, 1.5), sample_rate=16000)]
        request = Utterance(sound, "translate", "de", 9, "v", 1.0, False, True)
        scheduler.inbox.put(IncomingMessage(name, "new_request", request))
    scheduler.abort("gone")
    texts = {"a": "", "b": ""}
    over: set[str] = set()
    with started(scheduler):
        while len(over) < 2:
            message = scheduler.outbox.get(timeout=20)
            assert message is not None and message.target in ("transcript", None), "no speech was asked for"
            if message.type == "result":
                over.add(message.request_id)
            else:
                texts[message.request_id] += message.data.text
    assert texts == {"a": expected, "b": expected}
    assert scheduler.stats() == {"running": 0}
