"""Where each request goes. Imports no torch, since the orchestrator needs this module too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_python.models.text.payloads import ThinkerResult
    from omni_python.proto.request import OmniRequest


def active_terminals(request: OmniRequest) -> list[str]:
    """A request for text alone never reaches the speech stages, and none the one that would generate images."""
    if request.modalities is not None and "audio" not in request.modalities:
        return ["decode"]
    return ["decode", "audio_vae"]


def active_text_terminals(request: OmniRequest) -> list[str]:
    return ["decode"]


def route_answer(request_id: str, output: ThinkerResult) -> list[str]:
    """The segmenter hears of answers that are to be spoken."""
    return ["decode", "segmenter"] if output.speech else ["decode"]


def route_text(request_id: str, output: ThinkerResult) -> list[str]:
    return ["decode"]
