"""The vocoder: codec frames to a waveform, by transformers' own module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from omni_python.layers.cuda_graph import GraphedOnCuda
from omni_python.models.qwen3_omni.checkpoint import read_tensors
from omni_python.models.qwen3_omni.dummy import LoadFormat, built_dummy, is_dummy
from omni_python.models.qwen3_omni.weights import fill

SAMPLE_RATE = 24000
"""Of the published model (its processor's `sampling_rate` of speech); config.json does not say it."""


class Code2Wav:
    """Decodes windows of frames.

    A window of n frames gives n * `samples_per_frame` - `trim` samples: each transposed convolution loses
    kernel - stride samples at both ends, `trim` in all. So a frame reaches `trim` samples back before its own start.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, module: Any) -> None:
        config = module.config
        self._module = module
        self._weight = next(module.parameters())
        self.groups: int = config.num_quantizers
        self.samples_per_frame = math.prod([*config.upsample_rates, *config.upsampling_ratios])
        # A decoder block has kernel 2 * rate and stride rate; the later rates multiply what it loses. The layers of
        # `upsampling_ratios` have kernel = stride and lose nothing.
        rates = config.upsample_rates
        self.trim = sum(rate * math.prod(rates[index + 1 :]) for index, rate in enumerate(rates))

        self._graphed = GraphedOnCuda(self._forward)
        self._sizes: list[int] = []
        self._max_batch = 0

    @torch.no_grad()
    def prepare(self, sizes: Sequence[int], max_batch: int) -> None:
        """Capture, on a GPU, the decoding of windows of `sizes` frames, of up to `max_batch` at once.

        Shorter windows are then padded to the next size and number.
        """
        self._sizes, self._max_batch = sorted(set(sizes)), max_batch
        for size in reversed(self._sizes):  # the largest first: the others then find room in its memory
            batch = 1 << (max_batch - 1).bit_length()
            while batch:
                self._graphed(torch.zeros(batch, self.groups, size, dtype=torch.int64, device=self._weight.device))
                batch //= 2

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """`codes` int64 [B, groups, n] with n > 0 -> float32 [B, n * samples_per_frame - trim] in -1..1, on the CPU."""
        batch, _, frames = codes.shape
        codes = codes.to(self._weight.device)
        size = next((size for size in self._sizes if size >= frames), None)
        if size is None or batch > self._max_batch:
            (audio,) = self._forward(codes)
            return audio.cpu()
        # All layers are causal up to the samples of `trim`, so what is appended changes nothing.
        together = 1 << (batch - 1).bit_length()
        (audio,) = self._graphed(F.pad(codes, (0, size - frames, 0, 0, 0, together - batch)))
        return audio[:batch, : frames * self.samples_per_frame - self.trim].cpu()

    def _forward(self, codes: torch.Tensor) -> tuple[torch.Tensor]:
        return (self._module(codes)[:, 0].float(),)


def load_code2wav(
    path: str | Path, config: Any, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> Code2Wav:
    """The vocoder of the checkpoint at `path`, whose `Qwen3OmniMoeConfig` is `config`."""
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

    if is_dummy(load_format):
        return Code2Wav(built_dummy(lambda: Qwen3OmniMoeCode2Wav._from_config(config.code2wav_config), dtype, device))
    # Built on the CPU, not on the meta device: it has buffers that no checkpoint holds.
    module = Qwen3OmniMoeCode2Wav._from_config(config.code2wav_config)
    return Code2Wav(fill(module, read_tensors(path, "code2wav.", dtype, device), "code2wav").to(device))
