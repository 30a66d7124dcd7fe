"""Stage factories. The recogniser runs on the CPU or a GPU, all others on the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from omni_python.models.loading.placement import Dtype, placement
from omni_python.models.preprocessing_stage import preprocessing_stage
from omni_python.models.speech_to_speech.hearing import HearingScheduler
from omni_python.models.speech_to_speech.info import DICTIONARY, RECOGNISER, SYNTHESISER
from omni_python.models.speech_to_speech.kokoro import Kokoro
from omni_python.models.speech_to_speech.letters_to_sounds import LettersToSounds
from omni_python.models.speech_to_speech.preprocess import Preprocessor
from omni_python.models.speech_to_speech.pronunciation import Pronunciation
from omni_python.models.speech_to_speech.reader import ReaderScheduler
from omni_python.models.speech_to_speech.recogniser import Recogniser
from omni_python.models.speech_to_speech.sentences import SentenceSplitter
from omni_python.models.speech_to_speech.synthesis import SynthesisScheduler
from omni_python.models.speech_to_speech.transcript import TranscriptScheduler
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.scheduling.base import Scheduler


def create_preprocessing(
    model_path: str, workers: int = 1, media: dict[str, Any] | None = None, sound_seconds: float = 600.0
) -> Scheduler:
    """OmniRequest -> Utterance. `media`: a `MediaPolicy`; at most `sound_seconds` of a request are heard."""
    loader = MediaLoader(MediaPolicy.of(media))
    return preprocessing_stage(Preprocessor(model_path, loader, sound_seconds), loader, workers)


def create_recogniser(
    model_path: str,
    gpu_id: int | None = None,
    threads: int = 0,
    window_seconds: float = 25.0,
    silence_seconds: float = 10.0,
    dtype: Dtype = "auto",
) -> HearingScheduler:
    """Utterance -> Words, Heard. 0 `threads` are as many as cores, whatever OMP_NUM_THREADS says: this process computes
    nothing else. `window_seconds` and `silence_seconds`: see `Recogniser`."""
    torch_dtype, device = placement(gpu_id, dtype)
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    recogniser = Recogniser(Path(model_path) / RECOGNISER, torch_dtype, device, window_seconds, silence_seconds)
    recogniser.warm_up()
    return HearingScheduler(recogniser)


def create_transcript() -> TranscriptScheduler:
    """Words, Heard -> text."""
    return TranscriptScheduler()


def create_reader(model_path: str, first_clause: int = 15, longest: int = 200) -> ReaderScheduler:
    """Words, Heard -> Sentence, Reading. `first_clause` and `longest`: see `SentenceSplitter`."""
    folder = Path(model_path) / DICTIONARY
    letters_to_sounds = LettersToSounds(folder / "letters_to_sounds.npz")
    pronounce = Pronunciation([folder / "us_gold.json", folder / "us_silver.json"], letters_to_sounds)
    return ReaderScheduler(pronounce, make_splitter=lambda: SentenceSplitter(first_clause, longest))


def create_synthesis(model_path: str, threads: int = 0) -> SynthesisScheduler:
    """Sentence, Reading -> speech. 0 `threads` are as many as cores."""
    kokoro = Kokoro(Path(model_path) / SYNTHESISER, threads)
    kokoro.warm_up()
    return SynthesisScheduler(kokoro)
