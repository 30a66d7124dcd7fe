"""The oracle's recorded cases: what Hugging Face makes of a conversation on the tiny checkpoint."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, OmniRequest, TextPart, VideoPart

HERE = Path(__file__).parent
MEDIA = HERE / "media"
FIXTURES = HERE / "fixtures"
CASES = ("text", "text_stop", "audio", "image", "video", "video_sound", "audio_image", "all", "multi_turn")

AUDIO_TOLERANCE = 2e-5
"""Between log-mel features of two CPUs: another order of the sums in a float32 FFT makes 7e-6, AVX2 against AVX512."""


@dataclass(frozen=True)
class Features:
    """A tensor recorded by its `shape`, root mean square `norm`, and every `step`-th value of the flattened tensor."""

    shape: tuple[int, ...]
    step: int
    values: np.ndarray
    norm: float

    def error(self, tensor: Any) -> float:
        """Largest difference of `tensor` (torch or numpy) at the recorded places; asserts the shape."""
        array = np.asarray(tensor)
        assert array.shape == self.shape, (array.shape, self.shape)
        flat = array.reshape(-1).astype(np.float64)
        assert abs(np.sqrt((flat**2).mean()) - self.norm) < 1e-3 * self.norm
        return float(np.abs(flat[:: self.step] - self.values).max())


@dataclass(frozen=True)
class Case:
    """One conversation and everything greedy generation made of it.

    `input_ids` int64 [P]; `position_ids` int64 [3, P]; `answer` holds the thinker's tokens with the end token where one
    came; `codes` int64 [G, frames]; `waveform` float32 [samples] at 24 kHz. `*_ends` are "stop" or "length".
    `margins`: the smallest difference of the two best logits, by "thinker", "talker" and "code_predictor", and of the
    last used and the first unused expert's probability under "router".
    """

    name: str
    conversation: list[dict[str, Any]]
    voice: str
    thinker_max_tokens: int
    talker_max_tokens: int
    text: str
    answer_ends: str
    speech_ends: str
    rope_delta: int
    margins: dict[str, float]
    checkpoint: str
    input_ids: np.ndarray
    position_ids: np.ndarray
    answer: np.ndarray
    codes: np.ndarray
    waveform: np.ndarray
    image_grids: np.ndarray | None
    video_grids: np.ndarray | None
    audio_lengths: np.ndarray | None
    features: dict[str, Features]
    """By "pixel_values", "pixel_values_videos" and "audio_features" (mel bins, frames of all clips)."""

    def messages(self) -> list[Message]:
        """The conversation with the media files' bytes."""
        return [Message(turn["role"], [_part(part) for part in turn["content"]]) for turn in self.conversation]

    def sampling(self) -> dict[str, Any]:
        """Greedy sampling parameters, as a client writes them."""
        return {
            "temperature": 0.0,
            "max_tokens": self.thinker_max_tokens,
            "talker": {"temperature": 0.0, "repetition_penalty": 1.05, "max_tokens": self.talker_max_tokens},
        }

    def request(self, **changes: Any) -> OmniRequest:
        """The request that must give this case's result; `changes` override its fields."""
        fields: dict[str, Any] = {"messages": self.messages(), "voice": self.voice, "sampling": self.sampling()}
        return OmniRequest(**{**fields, **changes})

    def openai_messages(self) -> list[dict[str, Any]]:
        """The conversation as OpenAI chat messages, media as base64."""
        return [
            {"role": turn["role"], "content": [_openai_part(part) for part in turn["content"]]}
            for turn in self.conversation
        ]


@cache
def load_case(name: str) -> Case:
    """The case called `name`, one of `CASES`; asserts that the media files are those that the oracle read."""
    about = json.loads((FIXTURES / f"{name}.json").read_text("utf-8"))
    for file, digest in about["media_sha256"].items():
        assert hashlib.sha256((MEDIA / file).read_bytes()).hexdigest() == digest, f"{file} is not what the oracle read"
    with np.load(FIXTURES / f"{name}.npz") as stored:
        arrays = dict(stored)
    features = {
        key.removesuffix(".values"): Features(
            tuple(arrays[key.replace(".values", ".shape")].tolist()),
            int(arrays[key.replace(".values", ".step")]),
            values,
            float(arrays[key.replace(".values", ".norm")]),
        )
        for key, values in arrays.items()
        if key.endswith(".values")
    }
    copied = ("voice", "thinker_max_tokens", "talker_max_tokens", "text", "answer_ends", "speech_ends", "rope_delta")
    return Case(
        name=name,
        conversation=about["messages"],
        margins=about["margins"],
        checkpoint=about["checkpoint"],
        image_grids=arrays.get("image_grid_thw"),
        video_grids=arrays.get("video_grid_thw"),
        audio_lengths=arrays.get("audio_lengths"),
        features=features,
        **{key: about[key] for key in copied},
        **{key: arrays[key] for key in ("input_ids", "position_ids", "answer", "codes", "waveform")},
    )


def _part(part: dict[str, Any]) -> ContentPart:
    if part["type"] == "text":
        return TextPart(part["text"])
    data = np.fromfile(MEDIA / part["file"], np.uint8)
    return {"audio": AudioPart, "image": ImagePart, "video": VideoPart}[part["type"]](data=data)


def _openai_part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    data = base64.b64encode((MEDIA / part["file"]).read_bytes()).decode()
    suffix = Path(part["file"]).suffix.removeprefix(".")
    if part["type"] == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": suffix}}
    mime = {"jpg": "image/jpeg", "png": "image/png", "mp4": "video/mp4"}[suffix]
    key = f"{part['type']}_url"
    return {"type": key, key: {"url": f"data:{mime};base64,{data}"}}
