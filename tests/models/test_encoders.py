"""The encoders alone give what they give inside Hugging Face's full model."""

from __future__ import annotations

import torch

from omni_python.models.qwen3_omni.encoders import AudioEncoder, VisionEncoder
from omni_python.models.qwen3_omni.features import audio_tokens
from omni_python.models.qwen3_omni.payloads import AudioInput, VisionInput
from tests.models.tiny_model import checkpoint, hf_model


def test_audio_embeddings_equal_the_full_model() -> None:
    lengths = torch.randint(3, 450, (3,))
    features = [torch.randn(128, int(n)) for n in lengths]
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    padded = torch.zeros(3, 128, int(lengths.max()))
    for row, clip in zip(padded, features, strict=True):
        row[:, : clip.shape[1]] = clip
    with torch.no_grad():
        expected = hf_model(checkpoint()).thinker.get_audio_features(padded, mask.long(), return_dict=True)
    made = AudioEncoder(checkpoint())(AudioInput(torch.cat(features, 1), lengths)).audio
    torch.testing.assert_close(made, expected.last_hidden_state, rtol=1e-5, atol=1e-5)
    assert len(made) == sum(audio_tokens(n) for n in lengths.tolist())


def test_vision_embeddings_equal_the_full_model() -> None:
    image_grids = torch.tensor([[1, 4, 6], [1, 2, 8]])
    video_grids = torch.tensor([[3, 4, 4]])
    images = torch.randn(int(image_grids.prod(1).sum()), 1536)
    video = torch.randn(int(video_grids.prod(1).sum()), 1536)
    thinker = hf_model(checkpoint()).thinker
    with torch.no_grad():
        expected_image = thinker.get_image_features(images, image_grids, return_dict=True)
        expected_video = thinker.get_video_features(video, video_grids, return_dict=True)
    made = VisionEncoder(checkpoint())(VisionInput(images, image_grids, video, video_grids))
    for embeds, taps, expected in (
        (made.image, made.image_deepstack, expected_image),
        (made.video, made.video_deepstack, expected_video),
    ):
        torch.testing.assert_close(embeds, expected.pooler_output, rtol=1e-5, atol=1e-5)
        assert len(taps) == 2
        for tap, expected_tap in zip(taps, expected.deepstack_features, strict=True):
            torch.testing.assert_close(tap, expected_tap, rtol=1e-5, atol=1e-5)
    alone = VisionEncoder(checkpoint())(VisionInput(video_pixels=video, video_grids=video_grids))
    assert alone.image is None and alone.image_deepstack == []
    assert alone.video is not None and made.video is not None
    torch.testing.assert_close(alone.video, made.video)
