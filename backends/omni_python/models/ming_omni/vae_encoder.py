"""The AudioVAE's encoder: a waveform to latents. Voices to speak with are kept as such."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from omni_python.layers.frame_transformer import FrameTransformer
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, draw_weights, is_dummy
from omni_python.models.loading.modules import assign, on_meta
from omni_python.models.ming_omni.architecture import VAEConfig
from omni_python.models.ming_omni.audio_vae import qwen2_tensors

LEAST_DEVIATION = 1e-4
"""Of a latent, as in diffusers' OobleckDiagonalGaussianDistribution, which the published code calls."""
_UNUSED = ("embed_tokens.weight", "norm.weight", "norm.bias")
"""Of the backbones, which read no tokens; and a norm that the published code has and does not call."""


class LatentEncoder(nn.Module):
    """Module names are those of published checkpoints, but for the backbones', which are Qwen2's."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self._config = config
        size = config.encoder.hidden
        self.fc1 = nn.Linear(config.input, size, bias=False)
        self.fc2 = nn.Linear(size, size)
        self.encoder = FrameTransformer(config.encoder)
        self.aggregator = FrameTransformer(config.aggregator)
        self.cls_embed = nn.Parameter(torch.empty(1, 1, size))
        self.fc3 = nn.Linear(size, 2 * config.latent)

    def forward(self, samples: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """`samples` [n] of whole latents, `noise` [latents, latent] -> latents drawn with it, of the same shape."""
        config = self._config
        frames = F.pad(samples, (0, config.input - config.encoded_hop)).unfold(0, config.input, config.encoded_hop)
        x = self.encoder(self.fc2(self.fc1(frames))[None])
        groups = x.unflatten(1, (-1, config.upsampling))
        last = self.cls_embed[None].expand(1, groups.shape[1], 1, -1)
        joined = self.aggregator(torch.cat((groups, last), dim=2).flatten(1, 2))
        mean, scale = self.fc3(joined[0, config.upsampling :: config.upsampling + 1]).chunk(2, dim=1)
        return mean + (F.softplus(scale) + LEAST_DEVIATION) * noise


def load_latent_encoder(
    path: str | Path, config: VAEConfig, device: str, load_format: LoadFormat = "auto"
) -> LatentEncoder:
    """Of the checkpoint at `path`, in float32. Raises `CheckpointError`."""
    with on_meta():
        encoder = LatentEncoder(config)
    if is_dummy(load_format):
        return draw_weights(encoder, torch.float32, device)
    tensors = read_tensors(Path(path) / "talker" / "vae", "encoder.", torch.float32, device)
    for name in [name for name in tensors if name.endswith(_UNUSED[0]) or name in _UNUSED]:
        del tensors[name]
    for prefix, backbone in (("encoder.", config.encoder), ("aggregator.", config.aggregator)):
        tensors |= qwen2_tensors(prefix, backbone, tensors["fc2.bias"])
    return assign(encoder, tensors, "AudioVAE's encoder")
