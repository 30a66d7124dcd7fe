"""Where each request goes. Imports no torch, since the orchestrator needs this module too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from omni_python.models.ming_omni.payloads import ChatPrompt, Clips, Pictures, ReadRequest
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
    """Each encoder hears of requests that have something for it."""
    encoders = [("image_encoder", output.pictures), ("audio_encoder", output.clips)]
    return [stage for stage, media in encoders if media is not None] + ["mm_aggregate"]


def project_to_image_encoder(output: ReadRequest) -> Pictures | None:
    return output.pictures


def project_to_audio_encoder(output: ReadRequest) -> Clips | None:
    return output.clips


def project_to_aggregate(output: ReadRequest) -> ChatPrompt:
    """The prompt, with a note of which encoders will send something."""
    has_clips, has_pictures = output.clips is not None, output.pictures is not None
    return msgspec.structs.replace(output.prompt, has_clips=has_clips, has_pictures=has_pictures)


def active_sources(request_id: str, source: str, payload: Payload) -> list[str] | None:
    """What mm_aggregate waits for: known once the prompt is there."""
    if source != "preprocessing":
        return None
    prompt: ChatPrompt = payload  # type: ignore[assignment]
    encoders = [("image_encoder", prompt.has_pictures), ("audio_encoder", prompt.has_clips)]
    return ["preprocessing", *(stage for stage, sends in encoders if sends)]


def route_answer(request_id: str, output: ThinkerResult) -> list[str]:
    """The segmenter hears of answers that are to be spoken."""
    return ["decode", "segmenter"] if output.speech else ["decode"]


def route_text(request_id: str, output: ThinkerResult) -> list[str]:
    return ["decode"]
