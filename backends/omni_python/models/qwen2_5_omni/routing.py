"""Where each request goes. Imports no torch, since the orchestrator needs this module too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_python.models.qwen2_5_omni.payloads import Question
    from omni_python.models.text.payloads import ThinkerResult
    from omni_python.proto.request import OmniRequest


def active_terminals(request: OmniRequest) -> list[str] | None:
    """A request for text alone never reaches the speech stages."""
    if request.modalities is not None and "audio" not in request.modalities:
        return ["decode"]
    return None


def route_question(request_id: str, output: Question) -> list[str]:
    """By way of the encoder where there are media."""
    return ["thinker"] if output.features is None else ["media_encoder"]


def route_answer(request_id: str, output: ThinkerResult) -> list[str]:
    """The talker hears of answers that are to be spoken."""
    return ["decode", "talker"] if output.speech else ["decode"]
