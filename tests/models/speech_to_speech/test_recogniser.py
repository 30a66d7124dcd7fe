"""Whisper: features, network and greedy decoding equal to transformers', on a tiny checkpoint with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers  # type: ignore[import-untyped]
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from omni_python.models.speech_to_speech.mel import LogMel
from omni_python.models.speech_to_speech.recogniser import Recogniser, quietest, repeats
from omni_python.models.speech_to_speech.whisper import TextCache, load_whisper

LETTERS = [chr(ord("a") + n) for n in range(26)]
SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|nocaptions|>",
    "<|notimestamps|>",
]
POSITIONS = 150


def save_tiny(path: Path, seed: int) -> WhisperForConditionalGeneration:
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=len(LETTERS) + len(SPECIAL),
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_layers=3,
        decoder_attention_heads=2,
        decoder_ffn_dim=40,
        max_source_positions=POSITIONS,
        max_target_positions=60,
        suppress_tokens=[3],
        begin_suppress_tokens=[0, len(LETTERS)],
        pad_token_id=0,
        bos_token_id=len(LETTERS),
        eos_token_id=len(LETTERS),
        decoder_start_token_id=len(LETTERS) + 1,
    )
    model = WhisperForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4 if parameter.dim() > 1 else 0.1)
    model.save_pretrained(path)
    # Fields that newer transformers moves to the generation's config; published checkpoints have them here.
    written = json.loads((path / "config.json").read_text())
    written |= {"suppress_tokens": [3], "begin_suppress_tokens": [0, len(LETTERS)]}
    (path / "config.json").write_text(json.dumps(written))
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({letter: n for n, letter in enumerate(LETTERS)}, unk_token="a")
    )
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(path / "tokenizer.json"))
    return model


def noise(seed: int, seconds: float) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(int(seconds * 16000)) * 0.1).astype(np.float32)


@pytest.mark.parametrize("bins", [80, 128])
def test_features_are_transformers(bins: int) -> None:
    samples = noise(bins, 1.3)
    extractor = WhisperFeatureExtractor(feature_size=bins, chunk_length=2)
    theirs = extractor(samples, sampling_rate=16000, return_tensors="np").input_features[0]
    ours = LogMel(bins)(torch.from_numpy(np.pad(samples, (0, 32000 - len(samples)))))
    assert ours.shape == theirs.shape == (bins, 200)
    np.testing.assert_allclose(ours, theirs, atol=2e-4)


@torch.inference_mode()
def test_network_is_transformers(tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path, seed=1)
    ours = load_whisper(tmp_path, torch.float32, "cpu")
    mel = torch.randn(16, 2 * POSITIONS)
    tokens = torch.randint(0, 30, (9,))
    expected = theirs(input_features=mel[None], decoder_input_ids=tokens[None]).logits[0]
    for cuts in ([9], [1, 8], [4, 1, 1, 3]):
        cache = TextCache(ours.decoder, ours.encoder(mel))
        end = 0
        for piece in tokens.split(cuts):
            logits = ours.decoder(piece, cache)
            end += len(piece)
            torch.testing.assert_close(logits, expected[end - 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("task", ["translate", "transcribe"])
@torch.inference_mode()
def test_what_is_heard_is_the_plain_models(tmp_path: Path, task: str) -> None:
    """The plain model runs on the whole prompt for each token."""
    model = save_tiny(tmp_path, seed=2)
    samples = noise(7, 1.5)
    pieces = list(Recogniser(tmp_path, margin_s=30).hear(samples, task, "de", max_tokens=12))

    mel = LogMel(16)(torch.from_numpy(np.pad(samples, (0, POSITIONS * 320 - len(samples)))))
    end, start, _, de, translate, transcribe, _, untimed = range(len(LETTERS), len(LETTERS) + len(SPECIAL))
    prompt = [start, de, translate if task == "translate" else transcribe, untimed]
    expected: list[int] = []
    while len(expected) < 12:
        logits = model(input_features=mel[None], decoder_input_ids=torch.tensor([[*prompt, *expected]])).logits[0, -1]
        logits[[3, *range(start, start + 7)]] = -torch.inf
        if not expected:
            logits[[0, end]] = -torch.inf
        token = int(logits.argmax())
        if token == end or repeats([*expected, token]):
            break
        expected.append(token)
    assert len(expected) > 2, "another seed says more"
    assert "".join(piece.text for piece in pieces) == "".join(LETTERS[token] for token in expected)
    assert {piece.language for piece in pieces} == {"en" if task == "translate" else "de"}
    assert sum(piece.tokens for piece in pieces) == len(expected)


@pytest.mark.parametrize("window_s", [0.7, 30.0])
def test_what_is_heard_is_the_same_after_warming_up(tmp_path: Path, window_s: float) -> None:
    save_tiny(tmp_path, seed=2)
    recogniser = Recogniser(tmp_path, window_s=window_s, margin_s=30)
    cold = list(recogniser.hear(noise(7, 1.5), "translate", "de", max_tokens=12))
    recogniser.warm_up()
    assert list(recogniser.hear(noise(7, 1.5), "translate", "de", max_tokens=12)) == cold != []


def test_long_sounds_are_cut_where_they_are_quiet(tmp_path: Path) -> None:
    save_tiny(tmp_path, seed=3)
    recogniser = Recogniser(tmp_path, window_s=1.0, margin_s=30)
    samples = noise(4, 2.5)
    samples[11000:14500] = 0
    windows = list(recogniser._windows(samples))
    assert np.array_equal(np.concatenate(windows), samples)
    assert len(windows[0]) in range(11000, 14500)
    assert all(8000 <= len(window) <= 16000 for window in windows[:-1])
    assert quietest(samples[:16000], 0) in range(11000, 14500)


def test_phrases_that_go_round_in_circles_are_noticed() -> None:
    assert repeats([5, *[7, 8, 9, 10] * 3])
    assert repeats([7] * 12)
    assert not repeats([7] * 11)
    assert not repeats([7, 8, 9, 10, 7, 8, 9, 10, 7, 8, 9])
    assert not repeats(list(range(40)))
