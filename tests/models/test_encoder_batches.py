"""Long inputs encoded in pieces, and short ones of several requests together, give what Hugging Face's model gives."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

from omni_python.models.qwen3_omni.encoders import AudioEncoder, VisionEncoder
from omni_python.models.qwen3_omni.payloads import AudioInput, VisionEmbeds, VisionInput
from tests.models.tiny_model import checkpoint, hf_model

Grid = tuple[int, int, int]


@cache
def vision_encoder() -> VisionEncoder:
    return VisionEncoder(checkpoint())


@cache
def audio_encoder() -> AudioEncoder:
    return AudioEncoder(checkpoint())


def sizes_seen(module: Any, dimension: int = 0) -> list[int]:
    """From now on: what each forward of `module` gets, by the length of its input's `dimension`."""
    seen: list[int] = []
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[dimension]))
    return seen


def pixels(grids: list[Grid]) -> torch.Tensor:
    return torch.randn(sum(math.prod(grid) for grid in grids), 1536)


def vision_input(images: list[Grid], videos: list[Grid]) -> VisionInput:
    return VisionInput(
        image_pixels=pixels(images) if images else None,
        image_grids=torch.tensor(images) if images else None,
        video_pixels=pixels(videos) if videos else None,
        video_grids=torch.tensor(videos) if videos else None,
    )


def check_vision(made: VisionEmbeds, given: VisionInput) -> None:
    thinker = hf_model(checkpoint()).thinker
    for embeds, taps, values, grids in (
        (made.image, made.image_deepstack, given.image_pixels, given.image_grids),
        (made.video, made.video_deepstack, given.video_pixels, given.video_grids),
    ):
        if values is None:
            assert embeds is None and taps == []
            continue
        with torch.no_grad():
            expected = thinker.get_image_features(values, grids, return_dict=True)
        torch.testing.assert_close(embeds, expected.pooler_output, rtol=1e-5, atol=1e-5)
        for tap, expected_tap in zip(taps, expected.deepstack_features, strict=True):
            torch.testing.assert_close(tap, expected_tap, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("most", [1, 40, 64, 200])
def test_a_long_video_is_encoded_in_pieces(most: int) -> None:
    encoder = vision_encoder()
    seen = sizes_seen(encoder._tower.patch_embed)
    encoder.max_batch_patches = most
    given = vision_input([(1, 6, 4)], [(7, 4, 6), (2, 2, 4), (5, 4, 4)])
    check_vision(encoder(given), given)
    assert sum(seen) == 24 + 7 * 24 + 2 * 8 + 5 * 16
    step = 24
    assert max(seen) <= max(most, step), "a forward never gets more than the limit, but for one step alone"
    assert len(seen) <= 1 + 2 * sum(seen) / max(most, 8), "and pieces are not smaller than they need to be"


def test_a_minute_of_video_needs_no_more_than_the_limit() -> None:
    encoder = vision_encoder()
    seen = sizes_seen(encoder._tower.patch_embed)
    encoder.max_batch_patches = 500
    given = vision_input([], [(60, 8, 12)])
    check_vision(encoder(given), given)
    assert max(seen) <= 500 and sum(seen) == 60 * 96 and len(seen) == 12


def test_pictures_of_several_requests_share_a_forward() -> None:
    encoder = vision_encoder()
    seen = sizes_seen(encoder._tower.patch_embed)
    encoder.max_batch_patches = 1000
    requests = [
        vision_input([(1, 4, 4)], []),
        vision_input([(1, 2, 8), (1, 6, 4)], [(3, 4, 4)]),
        vision_input([], [(2, 4, 6)]),
    ]
    made = list(encoder.encode(requests))
    assert len(made) == 3 and seen == [16 + 16 + 24 + 48 + 48]
    for embeds, given in zip(made, requests, strict=True):
        check_vision(embeds, given)


def audio_input(lengths: list[int]) -> AudioInput:
    return AudioInput(torch.randn(128, sum(lengths)), torch.tensor(lengths))


def check_audio(made: torch.Tensor, given: AudioInput) -> None:
    longest = int(given.lengths.max())
    padded = torch.zeros(len(given.lengths), 128, longest)
    for row, clip in zip(padded, given.features.split(given.lengths.tolist(), 1), strict=True):
        row[:, : clip.shape[1]] = clip
    mask = (torch.arange(longest) < given.lengths[:, None]).long()
    with torch.no_grad():
        expected = hf_model(checkpoint()).thinker.get_audio_features(padded, mask, return_dict=True)
    torch.testing.assert_close(made, expected.last_hidden_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rest", [0, 1, 37, 99, 100, 350])
def test_long_sound_is_encoded_in_pieces(rest: int) -> None:
    encoder = audio_encoder()
    frames, tokens = sizes_seen(encoder._tower.conv2d1), sizes_seen(encoder._tower.layers[0].fc1)
    encoder.max_batch_frames = 1700
    given = audio_input([4 * 800 + rest, 250, 60, 1900])
    check_audio(encoder(given).audio, given)
    assert max(frames) <= 17 + 1, "chunks of 100 frames; the end of a clip may be a short one"
    assert max(tokens) <= 2 * 104 + 13 and len(tokens) > 3


@pytest.mark.parametrize("lengths", [[3], [99], [100], [101], [40, 77], [5, 130]])
def test_short_sounds_of_several_requests_give_what_each_gives_alone(lengths: list[int]) -> None:
    """What is convolved of the end of a clip depends on the longest clip of its own request, and of no other's."""
    encoder = audio_encoder()
    encoder.max_batch_frames = 3000
    tokens = sizes_seen(encoder._tower.layers[0].fc1)
    others = [audio_input([850, 33]), audio_input([64]), audio_input([200])]
    requests = [others[0], audio_input(lengths), *others[1:]]
    made = list(encoder.encode(requests))
    assert len(made) == 4
    for embeds, given in zip(made, requests, strict=True):
        check_audio(embeds.audio, given)
    assert len(tokens) <= 4


def test_requests_of_a_second_and_more_share_a_forward() -> None:
    encoder = audio_encoder()
    encoder.max_batch_frames = 3000
    tokens = sizes_seen(encoder._tower.layers[0].fc1)
    requests = [audio_input([130]), audio_input([900, 20]), audio_input([100])]
    for embeds, given in zip(encoder.encode(requests), requests, strict=True):
        check_audio(embeds.audio, given)
    assert len(tokens) == 1
