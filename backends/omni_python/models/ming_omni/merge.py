"""Fan-in before the thinker."""

from __future__ import annotations

from collections.abc import Mapping

from omni_python.models.ming_omni.payloads import ChatInput, ChatPrompt, ClipEmbeds
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload


def merge_for_thinker(payloads: Mapping[str, Payload]) -> ChatInput:
    """One request's prompt and the embeddings of its clips, from what each source stage sent (by stage name)."""
    merged: ChatInput | None = None
    clips: ClipEmbeds | None = None
    for source, payload in payloads.items():
        match payload:
            case ChatPrompt():
                merged = ChatInput(payload)
            case ClipEmbeds():
                clips = payload
            case _:
                raise OmniError(f"stage {source!r} sent a {type(payload).__name__}, no part of a thinker's input")
    if merged is None:
        raise OmniError(f"none of {', '.join(payloads) or 'no stage'} sent the prompt")
    if clips is not None:
        merged.embeds = clips.embeds
    return merged
