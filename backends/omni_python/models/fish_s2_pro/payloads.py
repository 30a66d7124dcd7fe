"""What crosses each edge of the S2-Pro pipeline."""

from __future__ import annotations

import torch

from omni_python.proto.payload import Payload
from omni_python.proto.sampling import SamplingParams


class SpeechPrompt(Payload):
    """preprocessing -> tts_engine: `tokens` int64 [P], and `codes` int64 [books, n], the frames of the voice to clone,
    which stand at the prompt's n semantic tokens."""

    tokens: torch.Tensor
    codes: torch.Tensor
    sampling: SamplingParams
    stream: bool


class SpeechFrames(Payload):
    """tts_engine -> vocoder, streamed: codec frames int64 [frames, books], in order."""

    codes: torch.Tensor
    stream: bool


class SpeechResult(Payload):
    """tts_engine -> vocoder: how many frames there were, and why they ended ("stop" or "length")."""

    num_frames: int
    finish_reason: str
    stream: bool
