"""What crosses each edge of the speech-to-speech pipeline."""

from __future__ import annotations

from omni_python.proto.payload import Payload
from omni_python.proto.request import AudioPart, TextPart


class Utterance(Payload):
    """preprocessing -> recogniser: sounds (float32 at 16 kHz) and texts, to be spoken in their order.

    `task` is one of `recogniser.TASKS`; `language` an ISO 639 code, or None where it is to be found out; `speech`:
    whether the client wants to hear it, in `voice` and at `speed` times the usual pace.
    """

    parts: list[TextPart | AudioPart]
    task: str
    language: str | None
    max_tokens: int
    voice: str
    speed: float
    speech: bool
    stream: bool


class Words(Payload):
    """recogniser -> transcript and reader, streamed: text that follows what came before, in `language`."""

    text: str
    language: str
    voice: str
    speed: float
    speech: bool
    stream: bool


class Heard(Payload):
    """recogniser -> transcript and reader: that was all, in `num_words` chunks; and why it ended ("stop", "length").

    Input tokens are the recogniser's vectors of sound, 50 a second; output tokens those of the text that was heard.
    """

    num_words: int
    num_input_tokens: int
    num_output_tokens: int
    finish_reason: str
    speech: bool
    stream: bool


class Sentence(Payload):
    """reader -> synthesis, streamed: what is spoken in one breath."""

    phonemes: str
    voice: str
    speed: float
    stream: bool


class Reading(Payload):
    """reader -> synthesis: how many sentences there were, and why they ended."""

    num_sentences: int
    finish_reason: str
    stream: bool
