# ruff: noqa: RUF001  (phonemes and typographic signs)
"""How words sound that no dictionary has: the network of g2p-en (Park & Kim), which writes ARPAbet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from omni_python.models.loading.checkpoint import CheckpointError

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_UNKNOWN, _WORD_END, _FIRST_LETTER = 1, 2, 3
_START, _STOP = 2, 3
# fmt: off
_SOUNDS = [
    "<pad>", "<unk>", "<s>", "</s>", "AA0", "AA1", "AA2", "AE0", "AE1", "AE2", "AH0", "AH1", "AH2", "AO0", "AO1",
    "AO2", "AW0", "AW1", "AW2", "AY0", "AY1", "AY2", "B", "CH", "D", "DH", "EH0", "EH1", "EH2", "ER0", "ER1", "ER2",
    "EY0", "EY1", "EY2", "F", "G", "HH", "IH0", "IH1", "IH2", "IY0", "IY1", "IY2", "JH", "K", "L", "M", "N", "NG",
    "OW0", "OW1", "OW2", "OY0", "OY1", "OY2", "P", "R", "S", "SH", "T", "TH", "UH0", "UH1", "UH2", "UW", "UW0", "UW1",
    "UW2", "V", "W", "Y", "Z", "ZH",
]
# fmt: on
"""In the order of the network's outputs."""
_MOST = 20
"""Sounds of a word, as in g2p-en."""

_VOWELS = {
    "AA": "ɑ",
    "AE": "æ",
    "AH": "ʌ",
    "AO": "ɔ",
    "AW": "W",
    "AY": "I",
    "EH": "ɛ",
    "ER": "ɜɹ",
    "EY": "A",
    "IH": "ɪ",
    "IY": "i",
    "OW": "O",
    "OY": "Y",
    "UH": "ʊ",
    "UW": "u",
}
_UNSTRESSED = {"AH": "ə", "ER": "əɹ"}
_CONSONANTS = {
    "CH": "ʧ",
    "DH": "ð",
    "G": "ɡ",
    "HH": "h",
    "JH": "ʤ",
    "NG": "ŋ",
    "R": "ɹ",
    "SH": "ʃ",
    "TH": "θ",
    "Y": "j",
    "ZH": "ʒ",
}
"""Others are their own letter."""
_STRESS = {"0": "", "1": "ˈ", "2": "ˌ"}


class LettersToSounds:
    """A word in lower case to phonemes as Kokoro writes them. Raises `CheckpointError` for another network's file."""

    def __init__(self, file: Path) -> None:
        try:
            with np.load(file) as arrays:
                weights = {name: torch.from_numpy(arrays[name]).float() for name in arrays.files}
            self._letters, self._encoder = weights["enc_emb"], _cell(weights, "enc")
            self._sounds, self._decoder = weights["dec_emb"], _cell(weights, "dec")
            self._head, self._bias = weights["fc_w"], weights["fc_b"]
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"cannot read the letters' network {file}: {error}") from error
        if len(self._sounds) != len(_SOUNDS):
            raise CheckpointError(f"{file} knows {len(self._sounds)} sounds, not {len(_SOUNDS)}")

    @torch.inference_mode()
    def __call__(self, word: str) -> str:
        state = torch.zeros(1, self._encoder.hidden_size)
        for letter in [*(_FIRST_LETTER + at if (at := _LETTERS.find(c)) >= 0 else _UNKNOWN for c in word), _WORD_END]:
            state = self._encoder(self._letters[letter][None], state)
        phonemes, sound = "", _START
        for _ in range(_MOST):
            state = self._decoder(self._sounds[sound][None], state)
            sound = int((state[0] @ self._head.T + self._bias).argmax())
            if sound == _STOP:
                break
            phonemes += from_arpabet(_SOUNDS[sound])
        return phonemes


def from_arpabet(sound: str) -> str:
    """One sound, like AH1 or ZH; "" for what stands for none."""
    if sound.startswith("<"):
        return ""
    name, stress = (sound[:-1], sound[-1]) if sound[-1].isdigit() else (sound, "0")
    if name in _VOWELS:
        vowel = _UNSTRESSED.get(name, _VOWELS[name]) if stress == "0" else _VOWELS[name]
        return _STRESS[stress] + vowel
    return _CONSONANTS.get(name, name.lower())


def _cell(weights: dict[str, torch.Tensor], side: str) -> nn.GRUCell:
    cell = nn.GRUCell(weights[f"{side}_w_ih"].shape[1], weights[f"{side}_w_hh"].shape[1])
    names = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    cell.load_state_dict({name: weights[f"{side}_{stored}"] for name, stored in names.items()})
    return cell
