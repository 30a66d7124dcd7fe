"""Where each request goes. Imports no torch, since the orchestrator needs this module too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from omni_python.models.qwen3_omni.payloads import AudioInput, Preprocessed, Prompt, VisionInput
    from omni_python.models.text.payloads import ThinkerResult
    from omni_python.proto.payload import Payload
    from omni_python.proto.request import OmniRequest


def active_terminals(request: OmniRequest) -> list[str] | None:
    """A request for text alone never reaches the speech stages."""
    if request.modalities is not None and "audio" not in request.modalities:
        return ["decode"]
    return None


def route_preprocessed(request_id: str, output: Preprocessed) -> list[str]:
    """Only the encoders that have something to encode."""
    return [*_encoders(output.vision is not None, output.audio is not None), "mm_aggregate"]


def project_to_image_encoder(output: Preprocessed) -> VisionInput | None:
    return output.vision


def project_to_audio_encoder(output: Preprocessed) -> AudioInput | None:
    return output.audio


def project_to_aggregate(output: Preprocessed) -> Prompt:
    """The prompt, with a note of which encoders will send something."""
    return msgspec.structs.replace(
        output.prompt, has_vision=output.vision is not None, has_audio=output.audio is not None
    )


def active_sources(request_id: str, source: str, payload: Payload) -> list[str] | None:
    """What mm_aggregate waits for: known once the prompt is there."""
    if source != "preprocessing":
        return None
    prompt: Prompt = payload  # type: ignore[assignment]
    return ["preprocessing", *_encoders(prompt.has_vision, prompt.has_audio)]


def route_answer(request_id: str, output: ThinkerResult) -> list[str]:
    """The talker hears of answers that are to be spoken."""
    return ["decode", "talker_ar"] if output.speech else ["decode"]


def _encoders(vision: bool, audio: bool) -> list[str]:
    return ["image_encoder"] * vision + ["audio_encoder"] * audio
