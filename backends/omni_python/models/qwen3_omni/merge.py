"""Fan-in before the thinker."""

from __future__ import annotations

from collections.abc import Mapping

from omni_python.models.qwen3_omni.payloads import (
    AudioEmbeds,
    Preprocessed,
    Prompt,
    ThinkerInput,
    VisionEmbeds,
)
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload


def merge_for_thinker(payloads: Mapping[str, Payload]) -> ThinkerInput:
    """One request's prompt and the embeddings of its media, from what each source stage sent (by stage name)."""
    prompt: Prompt | None = None
    vision: VisionEmbeds | None = None
    audio: AudioEmbeds | None = None
    for source, payload in payloads.items():
        match payload:
            case Prompt():
                prompt = payload
            case Preprocessed():
                prompt = payload.prompt
            case VisionEmbeds():
                vision = payload
            case AudioEmbeds():
                audio = payload
            case _:
                raise OmniError(f"stage {source!r} sent a {type(payload).__name__}, no part of a thinker's input")
    if prompt is None:
        raise OmniError(f"none of {', '.join(payloads) or 'no stage'} sent the prompt")
    return ThinkerInput(prompt, vision, audio)
