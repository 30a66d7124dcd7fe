"""Where each request goes. Imports no torch, since the orchestrator needs this module too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from omni_python.models.ming_omni.payloads import ChatPrompt, Clips, ReadRequest
    from omni_python.models.text.payloads import ThinkerResult
    from omni_python.proto.payload import Payload
    from omni_python.proto.request import OmniRequest


def active_terminals(request: OmniRequest) -> list[str]:
    """A request for text alone never reaches the speech stages, and none the one that would generate images."""
    if request.modalities is not None and "audio" not in request.modalities:
        return ["decode"]
    return ["decode", "audio_vae"]


def active_text_terminals(request: OmniRequest) -> list[str]:
    return ["decode"]


def route_read(request_id: str, output: ReadRequest) -> list[str]:
    """The encoder hears of requests with sound."""
    return ["audio_encoder", "mm_aggregate"] if output.clips is not None else ["mm_aggregate"]


def project_to_audio_encoder(output: ReadRequest) -> Clips | None:
    return output.clips


def project_to_aggregate(output: ReadRequest) -> ChatPrompt:
    """The prompt, with a note of whether the encoder will send something."""
    return msgspec.structs.replace(output.prompt, has_clips=output.clips is not None)


def active_sources(request_id: str, source: str, payload: Payload) -> list[str] | None:
    """What mm_aggregate waits for: known once the prompt is there."""
    if source != "preprocessing":
        return None
    prompt: ChatPrompt = payload  # type: ignore[assignment]
    return ["preprocessing", "audio_encoder"] if prompt.has_clips else ["preprocessing"]


def route_answer(request_id: str, output: ThinkerResult) -> list[str]:
    """The segmenter hears of answers that are to be spoken."""
    return ["decode", "segmenter"] if output.speech else ["decode"]


def route_text(request_id: str, output: ThinkerResult) -> list[str]:
    return ["decode"]
