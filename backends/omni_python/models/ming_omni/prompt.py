"""The prompts: a conversation for the thinker, and one piece of text for the talker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers  # type: ignore[import-untyped]
import torch

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import Message, TextPart

_ROLES = {"system": "SYSTEM", "user": "HUMAN", "assistant": "ASSISTANT"}
_TURN_END = "<|role_end|>"
DEFAULT_SYSTEM = "你是一个友好的AI助手。"
"""Of a conversation that begins with no system message; it and what follows every system message are the published
template's."""
_THINKING_OFF = "\n\ndetailed thinking off"

_TALKER_BEFORE = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
    "<|im_start|>user\n",
    "Please generate speech based on the following description.\n",
    " Text input:\n",
)
_TALKER_AFTER = ("<|im_end|>\n", "<|im_start|>assistant\n", "<audio>")
"""The published talker's parts, each tokenized by itself."""


CLIP = "<audioPatch>"
"""Stands for one embedding of a clip, between `<audio>` and `</audio>`."""


def clip_token(model_path: str | Path, tokenizer: tokenizers.Tokenizer | None = None) -> int:
    """The id of `CLIP`. Raises `CheckpointError`."""
    found = (tokenizer or load_tokenizer(model_path)).token_to_id(CLIP)
    if found is None:
        raise CheckpointError(f"{model_path}: the tokenizer has no {CLIP}")
    return int(found)


class ThinkerPrompt:
    """Renders and tokenizes conversations. Raises `CheckpointError` for a tokenizer without `CLIP`."""

    def __init__(self, model_path: str | Path) -> None:
        self._tokenizer = load_tokenizer(model_path)
        clip_token(model_path, self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._control = [token.content for token in added if token.special]

    def __call__(self, messages: Sequence[Message], clips: Sequence[int] = ()) -> torch.Tensor:
        """Token ids int64 [P], up to where the answer begins; `clips` are the embeddings of each sound, in order.

        Raises `InvalidArgument` for control tokens in texts.
        """
        counts = iter(clips)
        system = DEFAULT_SYSTEM
        if messages[0].role == "system":
            system, messages = self._content(messages[0], counts), messages[1:]
        turns = [_turn("system", system + _THINKING_OFF)]
        turns += [_turn(message.role, self._content(message, counts)) for message in messages]
        text = "".join(turns) + f"<role>{_ROLES['assistant']}</role>"
        return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _content(self, message: Message, clips: Iterator[int]) -> str:
        parts = []
        for part in message.content:
            if isinstance(part, TextPart):
                found = next((token for token in self._control if token in part.text), None)
                if found is not None:
                    raise InvalidArgument(f"text must not contain the control token {found}")
                parts.append(part.text)
            else:
                parts.append(f"<audio>{CLIP * next(clips)}</audio>")
        return "".join(parts)


class TalkerPrompt:
    """Tokenizes what is to be spoken, between what the talker expects around it."""

    def __init__(self, model_path: str | Path) -> None:
        self._tokenizer = load_tokenizer(Path(model_path) / "talker" / "llm")
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {token_id for token_id, token in added.items() if token.special}
        self._patch = clip_token(model_path, self._tokenizer)
        self._before = [token for part in _TALKER_BEFORE for token in self._encode(part)]
        self._after = [token for part in _TALKER_AFTER for token in self._encode(part)]

    def __call__(self, text: str, voice: str = "", patches: int = 0) -> list[int]:
        """The prompt of `text` after the words of a `voice`, whose sound has so many `patches`: as many tokens stand at
        the end for them. Control tokens in `text`, which a thinker may have written as letters, are left out."""
        spoken = [token for token in self._encode(text) if token not in self._control]
        return [*self._before, *self._encode(voice), *spoken, *self._after, *[self._patch] * patches]

    def longest(self, characters: int, voice: str = "", patches: int = 0) -> int:
        """At most so many tokens has the prompt of a text: no character takes more than its 4 bytes of UTF-8."""
        return len(self("", voice, patches)) + 4 * characters

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _turn(role: str, text: str) -> str:
    return f"<role>{_ROLES[role]}</role>{text}{_TURN_END}"
