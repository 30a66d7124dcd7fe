"""Where each request goes. Imports no torch, since the orchestrator needs this module too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_python.models.speech_to_speech.payloads import Heard
    from omni_python.proto.request import OmniRequest


def active_terminals(request: OmniRequest) -> list[str] | None:
    """A request for text alone never reaches the speech stages."""
    if request.modalities is not None and "audio" not in request.modalities:
        return ["transcript"]
    return None


def route_heard(request_id: str, output: Heard) -> list[str]:
    """What is to be spoken goes to the reader, too."""
    return ["transcript", "reader"] if output.speech else ["transcript"]
