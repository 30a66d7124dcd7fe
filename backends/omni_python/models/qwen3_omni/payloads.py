"""What crosses each edge of the Qwen3-Omni pipeline.

Letters in shapes: P prompt tokens, H the thinker's hidden size, G code groups of a codec frame.
"""

from __future__ import annotations

import torch

from omni_python.models.text.options import GenerationOptions
from omni_python.proto.payload import Payload
from omni_python.proto.sampling import SamplingParams

# ---- preprocessing -> encoders, mm_aggregate


class VisionInput(Payload):
    """Patches of all images and videos of one request, in the order in which they stand in the prompt.

    `*_pixels` float32 [patches, channels * temporal_patch * patch * patch]; `*_grids` int64 [n, 3] of
    (t, h, w) in patches.
    """

    image_pixels: torch.Tensor | None = None
    image_grids: torch.Tensor | None = None
    video_pixels: torch.Tensor | None = None
    video_grids: torch.Tensor | None = None


class AudioInput(Payload):
    """Log-mel features, float32 [mel_bins, frames of all clips one after the other]; `lengths` int64 [clips]."""

    features: torch.Tensor
    lengths: torch.Tensor


class Prompt(Payload):
    """The expanded prompt: `input_ids` int64 [P] with one placeholder id per media embedding,
    `position_ids` int64 [3, P] (temporal, height, width), and the position of the first answer token minus P.
    `has_vision` and `has_audio` tell mm_aggregate which encoders will send their part."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    rope_delta: int
    options: GenerationOptions
    has_vision: bool = False
    has_audio: bool = False


class Preprocessed(Payload):
    """Output of the preprocessing stage; each next stage is sent its own part."""

    prompt: Prompt
    vision: VisionInput | None = None
    audio: AudioInput | None = None


# ---- encoders -> mm_aggregate -> thinker


class VisionEmbeds(Payload):
    """Vision features, float32 [tokens, H], images and videos apart; `*_deepstack` has one for each tapped layer."""

    image: torch.Tensor | None = None
    video: torch.Tensor | None = None
    image_deepstack: list[torch.Tensor] = []
    video_deepstack: list[torch.Tensor] = []


class AudioEmbeds(Payload):
    """Audio features, float32 [tokens of all clips, H]."""

    audio: torch.Tensor


class ThinkerInput(Payload):
    """The prompt and every media embedding that goes into it."""

    prompt: Prompt
    vision: VisionEmbeds | None = None
    audio: AudioEmbeds | None = None


# ---- thinker -> decode, talker_ar


class TalkerPrompt(Payload):
    """First chunk of the edge to the talker, sent right after the thinker's prefill.

    `media_hidden` [m, H] is the output of the thinker's accept layer at the m prompt positions that hold media
    placeholders, in prompt order.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    media_hidden: torch.Tensor | None
    voice: str
    sampling: SamplingParams
    stream: bool


# ---- talker_ar -> code2wav


class CodecFrames(Payload):
    """Codec frames, int64 [frames, G], in order. `stream`: whether the client wants audio as it comes."""

    codes: torch.Tensor
    stream: bool


class TalkerResult(Payload):
    """The end of the speech: how many frames there were and why it ended ("stop", "length" or "repetition")."""

    num_frames: int
    finish_reason: str
    stream: bool = False
