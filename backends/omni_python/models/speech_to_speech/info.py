"""What the pipeline tells its clients about its weights."""

from __future__ import annotations

from pathlib import Path

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.proto.info import PipelineInfo

SAMPLE_RATE = 24000
"""Hz, of Kokoro's speech."""
RECOGNISER, SYNTHESISER, DICTIONARY = "recogniser", "synthesiser", "dictionary"
"""Folders of the weights: a Whisper checkpoint in Hugging Face's format, Kokoro, and what tells how words sound."""
_FAVOURITE = "af_heart"


def describe(model_path: str) -> PipelineInfo:
    """Raises `CheckpointError`."""
    names = voices(model_path)
    return PipelineInfo(("text", "audio"), tuple(names), default_voice(names), SAMPLE_RATE)


def voices(model_path: str | Path) -> list[str]:
    """The names of the voices, sorted."""
    names = sorted(file.stem for file in (Path(model_path) / SYNTHESISER / "voices").glob("*.bin"))
    if not names:
        raise CheckpointError(
            f"{str(model_path)!r} has no voices ({SYNTHESISER}/voices/*.bin); "
            "`omni checkpoint OUT --family speech_to_speech` gets all weights"
        )
    return names


def default_voice(names: list[str]) -> str:
    """The one that speaks where none is asked for."""
    return _FAVOURITE if _FAVOURITE in names else names[0]
