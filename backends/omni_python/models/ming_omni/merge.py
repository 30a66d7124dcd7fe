"""Fan-in before the thinker."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omni_python.models.ming_omni.payloads import ChatInput, ChatPrompt, ClipEmbeds, PictureEmbeds
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import Payload


def merge_for_thinker(payloads: Mapping[str, Payload]) -> ChatInput:
    """One request's prompt and the embeddings of its media, from what each source stage sent (by stage name)."""
    prompt: ChatPrompt | None = None
    seen: torch.Tensor | None = None
    heard: torch.Tensor | None = None
    for source, payload in payloads.items():
        match payload:
            case ChatPrompt():
                prompt = payload
            case PictureEmbeds():
                seen = payload.embeds
            case ClipEmbeds():
                heard = payload.embeds
            case _:
                raise OmniError(f"stage {source!r} sent a {type(payload).__name__}, no part of a thinker's input")
    if prompt is None:
        raise OmniError(f"none of {', '.join(payloads) or 'no stage'} sent the prompt")
    return ChatInput(prompt, seen, heard)
