"""What crosses each edge of the Ming-Omni pipelines, beside what all stages that answer in text send."""

from __future__ import annotations

import torch

from omni_python.models.text.options import GenerationOptions
from omni_python.models.text.payloads import DecodeStart
from omni_python.proto.payload import Payload
from omni_python.proto.sampling import SamplingParams


class Clips(Payload):
    """preprocessing -> audio_encoder: log-mel spectra, float32 [bins, frames of all clips one after the other], and
    `lengths` int64 [clips] in frames."""

    features: torch.Tensor
    lengths: torch.Tensor


class Pictures(Payload):
    """preprocessing -> image_encoder: patches of pictures and videos in prompt order, float32 [patches, values of a
    patch], and `grids` int64 [n, 3] of (time, height, width) in patches."""

    patches: torch.Tensor
    grids: torch.Tensor


class ChatPrompt(Payload):
    """preprocessing -> mm_aggregate: `input_ids` int64 [P], with a placeholder for each embedding of media,
    `position_ids` int64 [3, P] (time, height, width), and the position of the answer's first token minus P.
    `has_clips` and `has_pictures` tell which encoders will send theirs."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    rope_delta: int
    options: GenerationOptions
    has_clips: bool = False
    has_pictures: bool = False


class ReadRequest(Payload):
    """Output of the preprocessing stage; each next stage is sent its own part."""

    prompt: ChatPrompt
    clips: Clips | None = None
    pictures: Pictures | None = None


class ClipEmbeds(Payload):
    """audio_encoder -> mm_aggregate: float32 [placeholders, H], in prompt order."""

    embeds: torch.Tensor


class PictureEmbeds(Payload):
    """image_encoder -> mm_aggregate: float32 [placeholders, H], of pictures and videos in prompt order."""

    embeds: torch.Tensor


class ChatInput(Payload):
    """mm_aggregate -> thinker: the prompt, and what is to stand at its placeholders for what is seen and for what is
    heard."""

    prompt: ChatPrompt
    seen: torch.Tensor | None = None
    heard: torch.Tensor | None = None


class SpokenStart(DecodeStart):
    """thinker -> segmenter, first chunk: how to read the answer, and how to speak it."""

    voice: str
    talker: SamplingParams


class PiecesStart(Payload):
    """segmenter -> talker, first chunk: how to speak."""

    voice: str
    sampling: SamplingParams
    stream: bool


class Piece(Payload):
    """segmenter -> talker: a piece of the answer that is spoken by itself."""

    text: str


class PiecesResult(Payload):
    """segmenter -> talker: how many pieces the answer had."""

    pieces: int


class Latents(Payload):
    """talker -> audio_vae, in order: float32 [n, latent + 1], of which the last column is the number of the piece that
    the latent belongs to (pieces are decoded apart). `stream`: whether the client wants audio as it comes."""

    codes: torch.Tensor
    stream: bool


class LatentsResult(Payload):
    """talker -> audio_vae: how many latents there were, and why they ended ("stop" or "length")."""

    num_frames: int
    finish_reason: str
    stream: bool
