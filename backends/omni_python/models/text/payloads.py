"""What crosses the edges of stages that answer in text."""

from __future__ import annotations

from omni_python.proto.payload import Payload


class AnswerToken(Payload):
    """One token of the answer, as it is sampled."""

    token_id: int


class DecodeStart(Payload):
    """First chunk of the edge to decode: how to answer."""

    stream: bool
    echo_text: str
    stop: list[str]
    num_input_tokens: int


class ThinkerResult(Payload):
    """The whole answer: `output_ids` includes the end-of-sequence token where one was sampled."""

    output_ids: list[int]
    finish_reason: str
    num_input_tokens: int
    speech: bool
