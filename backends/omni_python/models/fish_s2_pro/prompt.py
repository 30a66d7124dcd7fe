"""The prompt: a conversation in which the system message tells the voice, and the user says what to speak."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from omni_python.models.fish_s2_pro.architecture import S2Config
from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.proto.errors import InvalidArgument

_SPEAKER = re.compile(r"<\|speaker:\d+\|>")


@dataclass(frozen=True)
class Voice:
    """A voice to clone: `codes` int64 [books, n] of a sound, and the words that are spoken in it."""

    codes: torch.Tensor
    text: str


class PromptBuilder:
    """Puts together and tokenizes. Raises `CheckpointError` for a tokenizer without the tokens that it needs."""

    def __init__(self, model_path: str | Path, config: S2Config) -> None:
        self._tokenizer = load_tokenizer(model_path)
        self._config = config
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {
            token_id: token.content for token_id, token in added.items() if not _SPEAKER.fullmatch(token.content)
        }
        self._ids = {name: token_id for token_id, name in self._control.items()}
        expected = {
            "<|im_end|>": config.end,
            "<|semantic:0|>": config.semantic_start,
            f"<|semantic:{config.codes - 1}|>": config.semantic_start + config.codes - 1,
        }
        for name, token_id in expected.items():
            if self._ids.get(name) != token_id:
                raise CheckpointError(f"{model_path}: the tokenizer's {name} is {self._ids.get(name)}, not {token_id}")

    def __call__(self, text: str, voices: Sequence[Voice]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids int64 [P], and the codes int64 [books, n] of its n semantic tokens.

        Every part is tokenized by itself, as fish-speech does. Raises `InvalidArgument` for control tokens in `text`.
        """
        parts: list[list[int]] = [self._encode("<|im_start|>system\n")]
        codes = [torch.zeros(self._config.books, 0, dtype=torch.int64), *(voice.codes for voice in voices)]
        if voices:
            spoken = [
                voice.text if _SPEAKER.search(voice.text) else f"<|speaker:{index}|>{voice.text}"
                for index, voice in enumerate(voices)
            ]
            parts += [
                self._encode("convert the provided text to speech reference to the following:\n\nText:\n"),
                self._checked("\n".join(spoken), "the words of a voice"),
                self._encode("\n\nSpeech:\n"),
                (torch.cat(codes, dim=1)[0] + self._config.semantic_start).tolist(),
            ]
        else:
            parts.append(self._encode("convert the provided text to speech"))
        parts += [
            self._encode("<|im_end|>\n"),
            self._encode("<|im_start|>user\n"),
            self._checked(text, "the text"),
            self._encode("<|im_end|>\n"),
            self._encode("<|im_start|>assistant\n<|voice|>"),
        ]
        return torch.tensor([token for part in parts for token in part]), torch.cat(codes, dim=1)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _checked(self, text: str, what: str) -> list[int]:
        """A client's text: it must not end its own turn, or hold frames that have no codes."""
        ids = self._encode(text)
        control = next((self._control[token] for token in ids if token in self._control), None)
        if control is not None:
            raise InvalidArgument(
                f"{what} holds the control token {control}; only <|speaker:0|> and the like may be said"
            )
        return ids
