"""The prompts: a conversation for the thinker, and one piece of text for the talker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers  # type: ignore[import-untyped]
import torch

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.media.placeholders import MediaTokens
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

CLIP, PICTURE, FRAME = "<audioPatch>", "<imagePatch>", "<framePatch>"
"""Each stands for one embedding: of a sound, of a picture, and of two frames of a video."""


def sound_text(tokens: int) -> str:
    return f"<audio>{CLIP * tokens}</audio>"


def picture_text(tokens: int) -> str:
    return f"<image>{PICTURE * tokens}</image>\n"


def video_text(times: Sequence[float], tokens: int) -> str:
    """At each of `times`, in seconds, as many `tokens`."""
    shown = (f"<{time:.1f} seconds><image>{FRAME * tokens}</image>" for time in times)
    return f"<video>{''.join(shown)}</video>"


def token_id(model_path: str | Path, token: str, tokenizer: tokenizers.Tokenizer) -> int:
    """Raises `CheckpointError`."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise CheckpointError(f"{model_path}: the tokenizer has no {token}")
    return int(found)


def media_tokens(model_path: str | Path) -> MediaTokens:
    """Raises `CheckpointError`."""
    tokenizer = load_tokenizer(model_path)
    picture, frame, clip = (token_id(model_path, token, tokenizer) for token in (PICTURE, FRAME, CLIP))
    return MediaTokens(picture, frame, clip)


class ThinkerPrompt:
    """Renders and tokenizes conversations. Raises `CheckpointError` for a tokenizer without the tokens of media."""

    def __init__(self, model_path: str | Path) -> None:
        self._tokenizer = load_tokenizer(model_path)
        self._tokens = media_tokens(model_path)
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._control = [token.content for token in added if token.special]

    def __call__(self, messages: Sequence[Message], media: Sequence[str] = ()) -> torch.Tensor:
        """Token ids int64 [P], up to where the answer begins; `media` stand for each part that is no text, in order.

        Raises `InvalidArgument` for control tokens in texts.
        """
        texts = iter(media)
        system = DEFAULT_SYSTEM
        if messages[0].role == "system":
            system, messages = self._content(messages[0], texts), messages[1:]
        turns = [_turn("system", system + _THINKING_OFF)]
        turns += [_turn(message.role, self._content(message, texts)) for message in messages]
        text = "".join(turns) + f"<role>{_ROLES['assistant']}</role>"
        return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def positions(self, ids: torch.Tensor, sizes: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, int]:
        """int64 [3, P] (time, height, width), and the position of the answer's first token minus P. `sizes` are rows
        and columns of tokens of each picture, and of each step of a video.

        As the published get_t_scale_rope_index: a picture is one moment, and lies around it in height and width.
        """
        seen = (ids == self._tokens.image) | (ids == self._tokens.video)
        passed = torch.ones(len(ids), dtype=torch.int64)
        passed[1:][seen[1:] & seen[:-1]] = 0  # before each picture, and between any two, is a token of text
        time = passed.cumsum(0) - 1
        positions = time.repeat(3, 1)
        if sizes:
            positions[1:, seen] += torch.cat([_around(rows, columns) for rows, columns in sizes], dim=1)
        return positions, int(time[-1]) + 1 - len(ids)

    def _content(self, message: Message, media: Iterator[str]) -> str:
        parts = []
        for part in message.content:
            if isinstance(part, TextPart):
                found = next((token for token in self._control if token in part.text), None)
                if found is not None:
                    raise InvalidArgument(f"text must not contain the control token {found}")
                parts.append(part.text)
            else:
                parts.append(next(media))
        return "".join(parts)


class TalkerPrompt:
    """Tokenizes what is to be spoken, between what the talker expects around it."""

    def __init__(self, model_path: str | Path) -> None:
        self._tokenizer = load_tokenizer(Path(model_path) / "talker" / "llm")
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {token_id for token_id, token in added.items() if token.special}
        self._patch = token_id(model_path, CLIP, self._tokenizer)
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


def _around(rows: int, columns: int) -> torch.Tensor:
    """Height and width, int64 [2, tokens], of a picture's tokens from its middle."""
    return torch.cartesian_prod(torch.arange(rows) - (rows - 1) // 2, torch.arange(columns) - (columns - 1) // 2).T
