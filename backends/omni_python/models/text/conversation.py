"""Messages as a chat template takes them."""

from __future__ import annotations

from collections.abc import Sequence

from omni_python.models.text.chat_template import ChatTemplate
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, ImagePart, Message, TextPart, VideoPart

_KINDS = {AudioPart: "audio", ImagePart: "image", VideoPart: "video"}


def render(template: ChatTemplate, messages: Sequence[Message], media_tokens: Sequence[str]) -> str:
    """The conversation as text that ends where the answer begins, with one placeholder for each media part.

    Raises `InvalidArgument` where a text contains one of `media_tokens`, which would be taken for media.
    """
    for message in messages:
        for part in message.content:
            found = isinstance(part, TextPart) and next((t for t in media_tokens if t in part.text), None)
            if found:
                raise InvalidArgument(f"text must not contain the special token {found}; pass media as content parts")
    return template.render([{"role": message.role, "content": _content(message)} for message in messages])


def _content(message: Message) -> str | list[dict[str, str]]:
    """What the template is given; a turn of mere text is a string, for some templates know no parts in such turns."""
    if not message.has_media:
        return message.text
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": _KINDS[type(part)]}
        for part in message.content
    ]
