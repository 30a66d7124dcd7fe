"""What crosses the edges of the Qwen2.5-Omni pipeline.

Letters in shapes: P prompt tokens, H the thinker's hidden size.
"""

from __future__ import annotations

import torch

from omni_python.models.text.options import GenerationOptions
from omni_python.proto.payload import Payload
from omni_python.proto.sampling import SamplingParams


class MediaFeatures(Payload):
    """All media of one request in prompt order. `audio` are log-mel frames, float32 [mel bins, frames of all clips],
    `audio_lengths` int64 [clips]; `image` and `video` are patches, float32 [patches, values], and their `*_grids` int64
    [n, 3] of (t, h, w) in patches."""

    audio: torch.Tensor | None = None
    audio_lengths: torch.Tensor | None = None
    image: torch.Tensor | None = None
    image_grids: torch.Tensor | None = None
    video: torch.Tensor | None = None
    video_grids: torch.Tensor | None = None


class MediaEmbeds(Payload):
    """What the encoders made of them, each [tokens, H]."""

    audio: torch.Tensor | None = None
    image: torch.Tensor | None = None
    video: torch.Tensor | None = None


class Question(Payload):
    """preprocessing -> thinker, by way of the encoder where it has `features`, which puts `embeds` in their place.

    `input_ids` int64 [P], with one placeholder for each media embedding, and `position_ids` int64 [3, P] (time, height,
    width); `rope_delta` is the position of the first answer token minus P.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    rope_delta: int
    options: GenerationOptions
    features: MediaFeatures | None = None
    embeds: MediaEmbeds | None = None


class HeardPrompt(Payload):
    """thinker -> talker, the first chunk: of each token of the prompt the thinker's output and its own embedding
    added, [P, H]; the embedding of media is left out."""

    states: torch.Tensor
    position_ids: torch.Tensor
    rope_delta: int
    voice: str
    sampling: SamplingParams
    stream: bool


class HeardToken(Payload):
    """thinker -> talker: the same of one token of the answer that the thinker has read, [H]."""

    state: torch.Tensor


class SpeechCodes(Payload):
    """talker -> token2wav: codes int64 [codes, 1], in order, the voice that they are for, and the seed of the noise
    that the waveform is made from."""

    codes: torch.Tensor
    stream: bool
    voice: str
    seed: int


class SpeechCodesEnd(Payload):
    """talker -> token2wav: how many codes there were and why they ended ("stop" or "length")."""

    num_frames: int
    finish_reason: str
    stream: bool
