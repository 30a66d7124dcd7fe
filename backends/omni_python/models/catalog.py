"""The pipelines and checkpoints that come with the package, by the short names that the commands take."""

from __future__ import annotations

PIPELINES: dict[str, str] = {
    "qwen3_omni": "omni_python.models.qwen3_omni.config.Qwen3OmniSpeechPipelineConfig",
    "qwen3_omni_colocated": "omni_python.models.qwen3_omni.config.Qwen3OmniColocatedPipelineConfig",
    "qwen3_omni_thinker_apart": "omni_python.models.qwen3_omni.config.Qwen3OmniThinkerApartPipelineConfig",
    "qwen3_omni_text": "omni_python.models.qwen3_omni.config.Qwen3OmniTextPipelineConfig",
    "qwen2_5_omni": "omni_python.models.qwen2_5_omni.config.Qwen25OmniPipelineConfig",
    "fish_s2_pro": "omni_python.models.fish_s2_pro.config.FishS2ProPipelineConfig",
    "ming_omni": "omni_python.models.ming_omni.config.MingOmniSpeechPipelineConfig",
    "ming_omni_text": "omni_python.models.ming_omni.config.MingOmniTextPipelineConfig",
    "speech_to_speech": "omni_python.models.speech_to_speech.config.SpeechToSpeechPipelineConfig",
}
"""Short name to the dotted path of the `PipelineConfig` class."""

SIGHTLESS: frozenset[str] = frozenset({"speech_to_speech"})
"""Pipelines that take no pictures."""

READERS: frozenset[str] = frozenset({"fish_s2_pro"})
"""Pipelines that speak the text that they are given, and answer no questions."""

TINY_CHECKPOINTS: dict[str, str] = {
    "qwen3_omni": "omni_python.models.qwen3_omni.tiny",
    "qwen2_5_omni": "omni_python.models.qwen2_5_omni.tiny",
    "fish_s2_pro": "omni_python.models.fish_s2_pro.tiny",
    "ming_omni": "omni_python.models.ming_omni.tiny",
}
"""Model family to the module whose `build(out, seed=...)` writes a checkpoint with random weights."""

PACKAGED_CHECKPOINTS: dict[str, str] = {"speech_to_speech": "omni_python.models.speech_to_speech.weights"}
"""Model family to the module whose `build(out)` writes a checkpoint with real weights, which it downloads."""
