"""The checkpoint's voices: sounds, and the words that are spoken in them, that a speech begins with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from omni_python.models.loading.checkpoint import CheckpointError, load_json
from omni_python.models.loading.dummy import LoadFormat
from omni_python.models.ming_omni.architecture import VAEConfig
from omni_python.models.ming_omni.talker import Talker
from omni_python.models.ming_omni.vae_encoder import load_latent_encoder
from omni_python.preprocessing.audio import decode_audio

MANIFEST = "data/voice_name.json"
"""In the folder talker: each voice's `prompt_text` and `prompt_wav_path`."""
PREFERRED = "db30"
"""Speaks where no voice is asked for, as in SGLang-Omni."""
OWN_VOICE = "default"
"""What the talker speaks with where it is given no voice: chosen anew by every seed, and for every piece of a text."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Voice:
    """`latents` [n, latent] of the sound, and `inputs` [n / patch, hidden], made of its patches."""

    text: str
    latents: torch.Tensor
    inputs: torch.Tensor


def voice_names(model_path: str | Path) -> list[str]:
    """In lower case, sorted, with `OWN_VOICE`. Raises `CheckpointError` for a manifest that is none."""
    return sorted({OWN_VOICE, *_manifest(model_path)})


def default_voice(names: list[str]) -> str:
    """Of these voices the one that speaks where none is asked for."""
    return PREFERRED if PREFERRED in names else next((name for name in names if name != OWN_VOICE), OWN_VOICE)


@torch.inference_mode()
def load_voices(
    model_path: str | Path, talker: Talker, config: VAEConfig, load_format: LoadFormat = "auto"
) -> Mapping[str, Voice]:
    """Every voice but `OWN_VOICE`, encoded. A voice has the same latents wherever it is loaded, for its noise has a
    seed."""
    manifest = _manifest(model_path)
    if not manifest:
        return {}
    weight, patch = talker.stop_head.weight, talker.config.patch
    encoder = load_latent_encoder(model_path, config, str(weight.device), load_format)
    voices = {}
    for name, (text, file) in manifest.items():
        samples = decode_audio(np.frombuffer(file.read_bytes(), np.uint8), config.sample_rate)
        spoken = torch.from_numpy(samples.copy())
        whole = -(-len(spoken) // (config.samples_per_latent * patch)) * patch
        padded = torch.cat((torch.zeros(whole * config.samples_per_latent - len(spoken)), spoken))
        noise = torch.randn(whole, config.latent, generator=torch.Generator().manual_seed(0))
        latents = encoder(padded.to(weight.device), noise.to(weight.device)).to(weight.dtype)
        voices[name] = Voice(text, latents, talker.aggregator(latents.unflatten(0, (-1, patch))))
    return voices


def _manifest(model_path: str | Path) -> dict[str, tuple[str, Path]]:
    """The words and the file of each voice whose file is there: published manifests name some of other machines."""
    folder = (Path(model_path) / "talker").resolve()
    if not (folder / MANIFEST).exists():
        return {}
    found = {}
    for name, entry in load_json(folder, MANIFEST).items():
        try:
            text, path = str(entry["prompt_text"]), folder / str(entry["prompt_wav_path"])
        except (KeyError, TypeError):
            raise CheckpointError(
                f"{folder / MANIFEST}: voice {name!r} has no prompt_text and prompt_wav_path"
            ) from None
        if path.is_file() and path.resolve().is_relative_to(folder):
            found[name.lower()] = (text, path)
        else:
            logger.warning(
                "the voice %s is left out: its sound %s is not in the checkpoint's folder talker", name, path
            )
    return found
