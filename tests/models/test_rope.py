"""Rotary positions against transformers' own `get_rope_index`, on fresh random layouts."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from omni_python.layers.rope_index import RopeIndex
from omni_python.models.qwen3_omni.features import audio_tokens
from omni_python.models.qwen3_omni.prompt import PromptBuilder, VideoSpan
from omni_python.models.qwen3_omni.tiny_config import Dimensions, tiny_config
from tests.models.tiny_model import checkpoint
from tests.oracle.cases import CASES, load_case

CONFIG = tiny_config(Dimensions())


@cache
def hugging_face() -> Any:
    """The thinker without weights: its rope index needs the configuration alone."""
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    with torch.device("meta"):
        return Qwen3OmniMoeThinkerForConditionalGeneration(Qwen3OmniMoeConfig.from_dict(CONFIG).thinker_config)


@cache
def builder() -> PromptBuilder:
    return PromptBuilder(checkpoint())


class Layout:
    """A random prompt of texts and media; with `sound`, every video has a sound track."""

    def __init__(self, random: np.random.Generator, sound: bool) -> None:
        self.sound = sound
        self.images: list[list[int]] = []
        self.videos: list[list[int]] = []
        self.seconds: list[float] = []
        self.frames: list[int] = []
        lone: list[int] = []
        spans: list[VideoSpan] = []
        text = "<|im_start|>user\n"
        for kind in random.choice(["text", "audio", "image", "video"], random.integers(1, 7)):
            rows, columns = (2 * int(n) for n in random.integers(1, 12, 2))
            if kind == "text":
                text += " word" * int(random.integers(1, 9))
            elif kind == "audio":
                self.frames.append(int(random.integers(1, 700)))
                lone.append(audio_tokens(self.frames[-1]))
                text += "<|audio_start|><|audio_pad|><|audio_end|>"
            elif kind == "image":
                self.images.append([1, rows, columns])
                text += "<|vision_start|><|image_pad|><|vision_end|>"
            else:
                steps = int(random.integers(1, 6))
                self.videos.append([steps, rows, columns])
                self.seconds.append(float(random.choice([1.0, 2.0, 3.0])))
                heard = 0
                if sound:
                    self.frames.append(int(random.integers(1, 700)))
                    heard = audio_tokens(self.frames[-1])
                spans.append(VideoSpan((steps, rows, columns), self.seconds[-1], heard))
                text += "<|vision_start|><|video_pad|><|vision_end|>"
        pictures = [math.prod(grid) // 4 for grid in self.images]
        self.ids = builder().expand(text + "<|im_end|>\n", lone, pictures, spans)

    def tensors(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return torch.tensor(self.images) if self.images else None, torch.tensor(self.videos) if self.videos else None


@pytest.mark.parametrize("sound", [False, True], ids=["silent", "sound"])
def test_equals_hugging_face_on_random_layouts(sound: bool) -> None:
    random = np.random.default_rng()
    rope = RopeIndex.from_config(CONFIG)
    kinds = 0
    for _ in range(60):
        layout = Layout(random, sound)
        images, videos = layout.tensors()
        expected, delta = hugging_face().get_rope_index(
            layout.ids[None],
            images,
            videos,
            torch.ones_like(layout.ids)[None],
            sound,
            torch.tensor(layout.frames) if layout.frames else None,
            torch.tensor(layout.seconds) if layout.seconds else None,
        )
        positions, made_delta = rope(layout.ids, images, videos, layout.seconds)
        assert positions.dtype == torch.int64
        torch.testing.assert_close(positions, expected[:, 0].to(torch.int64), rtol=0, atol=0)
        assert made_delta == int(delta.reshape(-1)[0])
        kinds |= (images is not None) | (videos is not None) << 1 | bool(layout.frames) << 2
    assert kinds == 7, "every kind of medium must have occurred"


def test_silent_and_talking_videos_in_one_prompt() -> None:
    """Hugging Face has one switch for all videos of a prompt; each must be as it is in a prompt of its own."""
    rope = RopeIndex.from_config(CONFIG)
    text = "<|vision_start|><|video_pad|><|vision_end|>"
    silent, talking = VideoSpan((2, 4, 6), 1.0), VideoSpan((3, 4, 4), 1.0, 30)
    parts, offset = [], 0
    for span in (silent, talking):
        ids = builder().expand(text, videos=[span])
        positions, _ = rope(ids, None, torch.tensor([span.grid]), [1.0])
        parts.append(positions + offset)
        offset = int(parts[-1].max()) + 1
    both = builder().expand(text + text, videos=[silent, talking])
    positions, delta = rope(both, None, torch.tensor([silent.grid, talking.grid]), [1.0, 1.0])
    torch.testing.assert_close(positions, torch.cat(parts, 1), rtol=0, atol=0)
    assert delta == offset - len(both)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_oracle(name: str) -> None:
    case = load_case(name)
    images, videos = (None if grid is None else torch.from_numpy(grid) for grid in (case.image_grids, case.video_grids))
    seconds = [1.0] * (0 if case.video_grids is None else len(case.video_grids))
    positions, delta = RopeIndex.from_config(CONFIG)(torch.from_numpy(case.input_ids), images, videos, seconds)
    np.testing.assert_array_equal(positions.numpy(), case.position_ids)
    assert delta == case.rope_delta
