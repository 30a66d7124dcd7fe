"""The vocoder: codec frames to a waveform."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from omni_python.layers.cuda_graph import GraphedOnCuda
from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.dummy import LoadFormat, built_dummy, is_dummy
from omni_python.models.loading.modules import on_meta
from omni_python.models.qwen3_omni.vocoder import Vocoder
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
        """`module` is a `Vocoder`."""
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
        self._windows: list[tuple[int, int]] = []
        self._max_batch = 0

    @torch.no_grad()
    def prepare(self, windows: Sequence[tuple[int, int]], max_batch: int) -> None:
        """Capture, on a GPU, the decoding of `windows`, each of so many frames of context and so many in all, of up to
        `max_batch` at once. Shorter windows of the same context are then padded to the next size and number."""
        self._windows, self._max_batch = sorted(set(windows)), max_batch
        for context, frames in reversed(self._windows):  # the largest first: others then find room in its memory
            batch = 1 << (max_batch - 1).bit_length()
            while batch:
                codes = torch.zeros(batch, self.groups, frames, dtype=torch.int64, device=self._weight.device)
                self._graphed(codes, context=context)
                batch //= 2

    def decode(self, codes: torch.Tensor, context: int = 0) -> torch.Tensor:
        """`codes` int64 [B, groups, n] with n > `context`, frames that were decoded before -> the samples after those
        of the frames before: float32 [B, n * samples_per_frame - trim] in -1..1 where there are none, else
        [B, (n - context) * samples_per_frame]. On the CPU."""
        batch, _, frames = codes.shape
        codes = codes.to(self._weight.device)
        size = next((size for before, size in self._windows if before == context and size >= frames), None)
        if size is None or batch > self._max_batch:
            (audio,) = self._forward(codes, context)
            return audio.cpu()
        # All layers are causal up to the samples of `trim`, so what is appended changes nothing.
        together = 1 << (batch - 1).bit_length()
        (audio,) = self._graphed(F.pad(codes, (0, size - frames, 0, 0, 0, together - batch)), context=context)
        return audio[:batch, : (frames - context) * self.samples_per_frame - (0 if context else self.trim)].cpu()

    def _forward(self, codes: torch.Tensor, context: int) -> tuple[torch.Tensor]:
        """The module's own layers, the last and costliest of which only see the columns that the samples need."""
        module = self._module
        hidden = module.columns(codes)
        first_sample = max(0, context * self.samples_per_frame - self.trim)
        first = self._first_column(first_sample)
        hidden = hidden[..., first:].contiguous()
        for block in module.decoder:
            hidden = block(hidden)
        before = first_sample - first * math.prod(module.config.upsample_rates)
        return (hidden[:, 0, before:].clamp(-1, 1).float(),)

    def _first_column(self, sample: int) -> int:
        """The first column of the decoder's input on which `sample`, or a later one, depends."""
        begin, *blocks, _, end = self._module.decoder
        at: int = sample - end.padding
        for stage in reversed(blocks):
            _, upsampled, *units = stage.block
            at -= sum(unit.conv1.padding + unit.conv2.padding for unit in units)
            # Of an output, cut at the left by one stride, the first input is the one that stands at it.
            at //= upsampled.conv.stride[0]
        return max(0, at - begin.padding)


def load_code2wav(
    path: str | Path, config: Any, dtype: torch.dtype, device: str, load_format: LoadFormat = "auto"
) -> Code2Wav:
    """The vocoder of the checkpoint at `path`, whose config is `config`."""
    if is_dummy(load_format):
        return Code2Wav(built_dummy(lambda: Vocoder(config.code2wav_config), dtype, device))
    with on_meta():
        module = Vocoder(config.code2wav_config)
    return Code2Wav(fill(module, read_tensors(path, "code2wav.", dtype, device), "code2wav"))
