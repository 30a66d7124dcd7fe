"""Features against the oracle's (torchvision-backed) processors, and their shape rules on fresh random sizes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from omni_python.models.media.patches import Patcher
from omni_python.models.qwen3_omni.features import AudioFeatures, audio_tokens
from omni_python.preprocessing.audio import decode_audio
from omni_python.preprocessing.image import decode_image
from omni_python.preprocessing.video import decode_video
from omni_python.proto.errors import InvalidArgument
from tests.models.tiny_model import checkpoint
from tests.oracle.cases import AUDIO_TOLERANCE, CASES, MEDIA, load_case


@cache
def images() -> Patcher:
    return Patcher.for_images(checkpoint())


@cache
def videos() -> Patcher:
    return Patcher.for_videos(checkpoint())


def files(name: str, kind: str) -> list[bytes]:
    parts = (part for turn in load_case(name).conversation for part in turn["content"])
    return [(MEDIA / part["file"]).read_bytes() for part in parts if part["type"] == kind]


@pytest.mark.parametrize("name", [name for name in CASES if "pixel_values" in load_case(name).features])
def test_image_patches_equal_the_oracle(name: str) -> None:
    resized = [images().resize(decode_image(data)) for data in files(name, "image")]
    patches = torch.cat([images().patches(image[None]) for image in resized])
    assert load_case(name).features["pixel_values"].error(patches) == 0
    grids = [list(images().grid(1, *image.shape[:2])) for image in resized]
    expected = load_case(name).image_grids
    assert expected is not None and grids == expected.tolist()


@pytest.mark.parametrize("name", [name for name in CASES if "pixel_values_videos" in load_case(name).features])
def test_video_patches_equal_the_oracle(name: str) -> None:
    (data,) = files(name, "video")
    frames = decode_video(data, transform=videos().resize).frames
    assert load_case(name).features["pixel_values_videos"].error(videos().patches(frames)) == 0


@pytest.mark.parametrize("name", ["audio", "audio_image", "multi_turn"])
def test_audio_features_equal_the_oracle(name: str) -> None:
    made = AudioFeatures(checkpoint())([decode_audio(data) for data in files(name, "audio")])
    assert load_case(name).features["audio_features"].error(made.features) < AUDIO_TOLERANCE
    expected = load_case(name).audio_lengths
    assert expected is not None and made.lengths.tolist() == expected.tolist()


def heard_by_hugging_face(clips: list[np.ndarray]) -> list[np.ndarray]:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor.from_pretrained(checkpoint())
    heard = extractor(clips, sampling_rate=16000, padding=True, return_attention_mask=True, return_tensors="np")
    masks = heard["attention_mask"].astype(bool)
    return [spectrum[:, mask] for spectrum, mask in zip(heard["input_features"], masks, strict=True)]


@pytest.mark.parametrize("rest", [0, 1, 159, 160, 161, 399, 400, 559, 560, 561, 9000])
def test_clips_are_heard_as_beside_each_other(rest: int) -> None:
    """The longest is longer by `rest` samples. The shorter ones are loudest in their last ones, which frames after
    their end hear best."""
    random = np.random.default_rng()
    length = int(random.integers(1000, 3000))
    clips = [random.normal(0, 0.001, length + more).astype(np.float32) for more in (0, rest, -300)]
    clips[0][-3:] = clips[2][-3:] = 0.9
    made = AudioFeatures(checkpoint())(clips)
    expected = heard_by_hugging_face(clips)
    assert made.lengths.tolist() == [spectrum.shape[1] for spectrum in expected]
    # the filters differ by a rounding
    np.testing.assert_allclose(made.features.numpy(), np.concatenate(expected, axis=1), rtol=0, atol=AUDIO_TOLERANCE)


def test_many_short_clips_take_little_memory_beside_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    stft = torch.stft

    def counted(samples: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        taken.append(samples.numel())
        return stft(samples, *args, **kwargs)

    monkeypatch.setattr(torch, "stft", counted)
    clips = [np.zeros(160000, np.float32), *[np.zeros(800, np.float32)] * 20]
    assert AudioFeatures(checkpoint())(clips).lengths.tolist() == [1000, *[5] * 20]
    assert sum(taken) < 160000 + 20 * 2000


def test_target_sizes_are_those_of_hugging_face() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    random = np.random.default_rng()
    for patcher in (images(), videos()):
        for _ in range(300):
            height, width = (int(n) for n in random.integers(16, 3000, 2))
            expected = smart_resize(height, width, 32, patcher.min_pixels, patcher.max_pixels)
            assert patcher.target_size(height, width) == expected, (height, width)


def test_patches_hold_every_pixel_at_its_place() -> None:
    patcher = images()
    frames = np.random.default_rng().integers(0, 256, (3, 64, 96, 3), np.uint8)  # padded to 4 frames
    patches = patcher.patches(frames).reshape(2, 2, 3, 2, 2, 3, 2, 16, 16)
    t, y, x, channel = 2, 41, 77, 1
    token_row, token_column = y // 32, x // 32
    row, column = y % 32 // 16, x % 32 // 16
    value = patches[t // 2, token_row, token_column, row, column, channel, t % 2, y % 16, x % 16]
    assert value == pytest.approx(frames[t, y, x, channel] / 127.5 - 1, abs=1e-6)
    torch.testing.assert_close(patches[1, ..., 0, :, :], patches[1, ..., 1, :, :])  # the last frame, repeated
    assert patcher.tokens(patcher.grid(3, 64, 96)) == 2 * 2 * 3


def test_extreme_shapes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="4000 x 10 pixels"):
        images().target_size(10, 4000)


def test_audio_that_is_too_short_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least 201"):
        AudioFeatures(checkpoint())([np.zeros(100, np.float32)])


def test_token_counts_are_those_of_hugging_face() -> None:
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

    frames = torch.arange(1, 3000)
    assert [audio_tokens(n) for n in frames.tolist()] == _get_feat_extract_output_lengths(frames).tolist()
