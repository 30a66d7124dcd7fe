"""The prompts: a conversation for the thinker, and one piece of text for the talker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.text.options import text_of
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import Message

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


class ThinkerPrompt:
    """Renders and tokenizes conversations."""

    def __init__(self, model_path: str | Path) -> None:
        self._tokenizer = load_tokenizer(model_path)
        self._control = [
            token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special
        ]

    def __call__(self, messages: Sequence[Message]) -> torch.Tensor:
        """Token ids int64 [P], up to where the answer begins. Raises `InvalidArgument` for control tokens in texts."""
        first, *others = messages if messages[0].role == "system" else (None, *messages)
        system = DEFAULT_SYSTEM if first is None else self._checked(first)
        turns = [_turn("system", system + _THINKING_OFF), *(_turn(m.role, self._checked(m)) for m in others if m)]
        text = "".join(turns) + f"<role>{_ROLES['assistant']}</role>"
        return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _checked(self, message: Message) -> str:
        text = text_of(message)
        found = next((token for token in self._control if token in text), None)
        if found is not None:
            raise InvalidArgument(f"text must not contain the control token {found}")
        return text


class TalkerPrompt:
    """Tokenizes what is to be spoken, between what the talker expects around it."""

    def __init__(self, model_path: str | Path) -> None:
        self._tokenizer = load_tokenizer(Path(model_path) / "talker" / "llm")
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {token_id for token_id, token in added.items() if token.special}
        self._before = [token for part in _TALKER_BEFORE for token in self._encode(part)]
        self._after = [token for part in _TALKER_AFTER for token in self._encode(part)]

    def __call__(self, text: str) -> list[int]:
        """Control tokens in `text`, which a thinker may have written as letters, are left out."""
        spoken = [token for token in self._encode(text) if token not in self._control]
        return [*self._before, *spoken, *self._after]

    def longest(self, characters: int) -> int:
        """At most so many tokens has the prompt of a text: no character takes more than its 4 bytes of UTF-8."""
        return len(self._before) + 4 * characters + len(self._after)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _turn(role: str, text: str) -> str:
    return f"<role>{_ROLES[role]}</role>{text}{_TURN_END}"
