"""How answers look in a notebook."""

from __future__ import annotations

import base64
import html

import numpy as np

from omni_python.proto.wav import wav_file


def player(samples: np.ndarray, sample_rate: int) -> str:
    """HTML that plays float32 samples [n]: they are inside it, as a WAV file."""
    data = base64.b64encode(wav_file(samples, sample_rate)).decode()
    return f'<audio controls preload="auto" src="data:audio/wav;base64,{data}"></audio>'


def paragraph(text: str) -> str:
    """HTML of plain text with its line breaks; nothing in it is taken for markup."""
    return f'<p style="white-space: pre-wrap">{html.escape(text)}</p>'


def small(text: str) -> str:
    """HTML of a note."""
    return f'<p style="opacity: 0.6; font-size: 85%">{html.escape(text)}</p>'
