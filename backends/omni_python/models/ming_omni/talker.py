"""The talker: a language model that reads a text and the latents so far, and a flow that makes the next ones."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from omni_python.layers.language_model import TextDecoder
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.ming_omni.architecture import TalkerConfig
from omni_python.models.ming_omni.flow import Aggregator, DirectionModel, FlowMatching

_BUFFERS = "rotary_embed.inv_freq"


class Talker(nn.Module):
    """`stop_head` gives two logits: go on, and stop. `spk_head` projects the embedding of a speaker, of which there is
    none without the network that makes it."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.decoder.hidden
        self.model = TextDecoder(config.decoder, config.vocab)
        direction = DirectionModel(config.flow, config.latent, hidden)
        self.cfm = FlowMatching(direction, config.steps, config.guidance)
        self.aggregator = Aggregator(config.aggregator, config.latent, hidden)
        self.stop_head = nn.Linear(hidden, 2)
        self.spk_head = nn.Linear(config.speaker, hidden)


def load_talker(
    path: str | Path, config: TalkerConfig, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> Talker:
    """The talker of the checkpoint at `path`. Raises `CheckpointError`."""
    with on_meta():
        talker = Talker(config)
    if is_dummy(load_format):
        return draw_weights(talker, dtype, device)
    stored = read_tensors(Path(path) / "talker", "", dtype, device)
    return assign(talker, {name: t for name, t in stored.items() if not name.endswith(_BUFFERS)}, "talker")
