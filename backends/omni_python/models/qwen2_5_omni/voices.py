"""The voices that come with a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from omni_python.models.loading.checkpoint import CheckpointError

FILE = "spk_dict.pt"


@dataclass(frozen=True)
class Voice:
    """`bos_token`, of the thinker's vocabulary, begins the speech; `embedding` float32 [1, size] and `reference`, a
    log-mel spectrum float32 [1, frames, mel bins], are what the waveform is conditioned on."""

    bos_token: int
    embedding: torch.Tensor
    reference: torch.Tensor


def load_voices(path: str | Path) -> dict[str, Voice]:
    """By name in lower case, in the order of the names. Raises `CheckpointError`."""
    file = Path(path) / FILE
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
        found = {
            name.lower(): Voice(int(voice["bos_token"]), voice["cond"].float(), voice["ref_mel"].float())
            for name, voice in stored.items()
        }
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {str(path)!r} has no {FILE}, and so no voice to speak with") from None
    except Exception as error:  # what a broken pickle raises is anything
        raise CheckpointError(f"cannot read the voices in {file}: {error}") from error
    return dict(sorted(found.items()))
