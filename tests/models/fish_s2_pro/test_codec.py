"""The codec against the plain float64 one: waveform, codes of a voice, and the reach of a window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from omni_python.models.fish_s2_pro.codec import CodecDecoder
from omni_python.models.fish_s2_pro.codec_checkpoint import _of, load_decoder, load_encoder, read_codec
from omni_python.models.fish_s2_pro.vocoder import S2Vocoder
from tests.oracle.fish_s2_pro_reference import FRAME, RATE, Reference

BOOKS = (64, *[32] * 9)


def random_codes(count: int, seed: int) -> torch.Tensor:
    """[books, count]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, size, (count,), generator=generator) for size in BOOKS])


@pytest.fixture(scope="module")
def vocoder(fish: Path) -> S2Vocoder:
    return S2Vocoder(load_decoder(fish, torch.float32, "cpu"))


@pytest.mark.parametrize("frames", [1, 2, 33])
@torch.inference_mode()
def test_the_waveform_is_the_references(vocoder: S2Vocoder, reference: Reference, frames: int) -> None:
    codes = random_codes(frames, seed=frames)
    expected = reference.waveform(codes)
    (found,) = vocoder.decode(codes[None])
    assert found.shape == expected.shape == (frames * FRAME,)
    assert (vocoder.sample_rate, vocoder.samples_per_frame, vocoder.trim) == (RATE, FRAME, 0)
    assert expected.std() > 0.01 and expected.abs().max() < 0.95
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_codes_beyond_a_book_sound_as_its_last(vocoder: S2Vocoder) -> None:
    """The head's codes go up to 4096 for every book, but all books but the first have fewer."""
    codes = random_codes(3, seed=9)
    last = codes.clone()
    codes[4], last[4] = 4095, BOOKS[4] - 1
    assert torch.equal(vocoder.decode(codes[None]), vocoder.decode(last[None]))


@torch.inference_mode()
def test_a_batch_is_its_rows(vocoder: S2Vocoder) -> None:
    rows = [random_codes(7, seed) for seed in range(3)]
    together = vocoder.decode(torch.stack(rows), 3)
    for row, samples in zip(rows, together, strict=True):
        torch.testing.assert_close(samples, vocoder.decode(row[None], 3)[0], atol=2e-5, rtol=0)


@torch.inference_mode()
def test_a_window_with_enough_context_sounds_as_in_the_whole(fish: Path) -> None:
    """And the reach is told exactly: a frame further back is not heard."""
    whole = load_decoder(fish, torch.float32, "cpu")
    sizes = replace(whole.sizes, module=replace(whole.sizes.module, window=3))
    decoder = CodecDecoder(sizes)
    decoder.load_state_dict(_of(decoder, read_codec(fish), torch.float32, "cpu"))
    decoder.double()
    reach = decoder.receptive_frames
    assert reach == 2 * (3 - 1) + 10
    codes = random_codes(40, seed=4)[None]
    expected = decoder(codes)[:, 30 * FRAME :]
    window = decoder(codes[..., 30 - reach :], reach)
    torch.testing.assert_close(window, expected, atol=1e-6, rtol=0)
    for frame, heard in ((30 - reach - 1, False), (30 - reach, True)):
        other = codes.clone()
        other[:, 0, frame] = (other[:, 0, frame] + 1) % BOOKS[0]
        assert bool(decoder(other)[0, 30 * FRAME] != expected[0, 0]) == heard


@pytest.mark.parametrize("samples", [1, FRAME, 3 * FRAME + 5])
@torch.inference_mode()
def test_a_voice_has_the_references_codes(fish: Path, reference: Reference, samples: int) -> None:
    encoder = load_encoder(fish, "cpu")
    voice = 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(samples))
    expected, margin = reference.codes(voice)
    assert margin > 1e-5, "too close to compare in another precision; take another seed"
    found = encoder(F.pad(voice, (0, -samples % FRAME))[None, None])
    assert torch.equal(found[0], expected)
    assert expected.shape == (10, -(-samples // FRAME))
