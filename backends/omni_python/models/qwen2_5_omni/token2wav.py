"""Codes to a waveform: transformers' own modules, a diffusion transformer that makes a log-mel spectrum of them by
flow matching, and BigVGAN, which makes samples of that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_python.models.loading.checkpoint import read_tensors
from omni_python.models.loading.modules import assign
from omni_python.models.qwen2_5_omni.info import SAMPLE_RATE
from omni_python.models.qwen2_5_omni.payloads import SpeechCodes
from omni_python.models.qwen2_5_omni.voices import Voice
from omni_python.proto.errors import InvalidArgument, OmniError
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.code2wav import Code2WavScheduler, Window


@dataclass
class Noise:
    """What a speech's spectrum begins as: standard normal, float32 [frames, bins], drawn from `seed` in order, so that
    a frame's noise depends on nothing else. For whole multiples of 16 numbers, which frames of 80 bins are, it is what
    one `torch.randn` of all frames gives."""

    seed: int
    bins: int
    drawn: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._generator = torch.Generator("cpu").manual_seed(self.seed)
        self.drawn = torch.empty(0, self.bins)

    def frames(self, begin: int, end: int) -> torch.Tensor:
        if end > len(self.drawn):
            more = torch.randn(end - len(self.drawn), self.bins, generator=self._generator)
            self.drawn = torch.cat((self.drawn, more))
        return self.drawn[begin:end]


class Token2Wav:
    """`steps` and `guidance` (of the codes and the voice over neither) are those of Hugging Face's generation, whose
    steps grow on a cosine, too."""

    sample_rate = SAMPLE_RATE
    trim = 0

    def __init__(self, module: Any, steps: int = 10, guidance: float = 0.5) -> None:
        """`module` is a `Qwen2_5OmniToken2WavModel`."""
        if steps < 2 or guidance < 0:
            raise InvalidArgument(f"steps ({steps}) must be at least 2, guidance ({guidance}) at least 0")
        self._dit = module.code2wav_dit_model
        self._vocoder = module.code2wav_bigvgan_model
        self._guidance = guidance
        self._device = self._dit.proj_out.weight.device
        even = torch.linspace(0, 1, steps)
        self._times = (1 - torch.cos(torch.pi / 2 * even)).to(self._device)
        self.bins: int = self._dit.mel_dim
        self.mel_frames: int = self._dit.repeats
        """Of one code."""
        self.samples_per_frame = self.mel_frames * math.prod(module.config.bigvgan_config.upsample_rates)
        self.block = max(1, self._dit.block_size // self.mel_frames)
        """Codes that the transformer looks at together."""
        self.longest: int = module.config.dit_config.max_position_embeddings // self.mel_frames

    def speak(self, codes: torch.Tensor, voice: Voice, noise: torch.Tensor) -> torch.Tensor:
        """`codes` int64 [n], `noise` [n * mel_frames, bins] -> float32 [n * samples_per_frame] on the CPU."""
        codes = codes.to(self._device)[None]
        embedding = voice.embedding.to(self._device)[:, None].expand(-1, len(noise), -1)
        reference = voice.reference.to(self._device)

        def flow(time: torch.Tensor, spectrum: torch.Tensor) -> torch.Tensor:
            given = {
                "hidden_states": spectrum,
                "speaker_embedding": embedding,
                "condition_vector": reference,
                "quantized_code": codes,
                "time_step": time,
            }
            if not self._guidance:
                plain: torch.Tensor = self._dit(**given, apply_cfg=False)
                return plain
            guided, free = self._dit(**given, apply_cfg=True).chunk(2)
            return guided + (guided - free) * self._guidance

        spectrum = noise.to(self._device)[None]
        for begin, end in zip(self._times[:-1], self._times[1:], strict=True):
            spectrum = spectrum + _runge_kutta(flow, begin, end - begin, spectrum)
        samples: torch.Tensor = self._vocoder(spectrum.transpose(1, 2))
        return samples.float()

    def decode(self, codes: torch.Tensor, context: int) -> torch.Tensor:
        raise OmniError("a waveform is made for a voice; `Token2WavScheduler` knows it")


def _runge_kutta(flow: Any, time: torch.Tensor, step: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What `value` becomes more in a `step`: Kutta's 3/8 rule of the fourth order."""
    first = flow(time, value)
    second = flow(time + step / 3, value + step * first / 3)
    third = flow(time + step * 2 / 3, value + step * (second - first / 3))
    fourth = flow(time + step, value + step * (first - second + third))
    return (first + 3 * (second + third) + fourth) * step / 8


class Token2WavScheduler(Code2WavScheduler):
    """Windows of codes to sound, in the voice and from the noise of each one's request.

    Every window's spectrum is made anew, and a code's depends a little on all others of its window. So only an answer
    that is not streamed has the very samples of one call; a streamed one has as many, joined by a crossfade.
    """

    def __init__(
        self,
        vocoder: Token2Wav,
        voices: Mapping[str, Voice],
        first_blocks: int,
        chunk_blocks: int,
        context_blocks: int,
        crossfade_samples: int,
    ) -> None:
        """Sizes are in the blocks of the diffusion transformer; each window is given one block behind it."""
        block = vocoder.block
        super().__init__(
            vocoder,
            chunk_frames=chunk_blocks * block,
            left_context=context_blocks * block,
            first_chunk_frames=first_blocks * block,
            whole_frames=vocoder.longest,
            crossfade_samples=crossfade_samples,
            lookahead=block,
            max_batch=1,
            name="token2wav",
        )
        self._token2wav = vocoder
        self._voices = voices
        self._spoken: dict[str, tuple[Voice, Noise]] = {}

    def take(self, message: IncomingMessage) -> None:
        data = message.data
        if isinstance(data, SpeechCodes) and message.request_id not in self._spoken:
            self._spoken[message.request_id] = (self._voices[data.voice], Noise(data.seed, self._token2wav.bins))
        super().take(message)

    def drop(self, request_id: str) -> None:
        super().drop(request_id)
        self._spoken.pop(request_id, None)

    def decode(self, windows: Sequence[Window]) -> list[np.ndarray]:
        return [self._samples(window) for window in windows]

    def _samples(self, window: Window) -> np.ndarray:
        voice, noise = self._spoken[window.request_id]
        first = window.first * self._token2wav.mel_frames
        codes = window.codes[0]
        part = noise.frames(first, first + len(codes) * self._token2wav.mel_frames)
        samples = self._token2wav.speak(codes, voice, part)
        kept: np.ndarray = samples.numpy()[(window.context - window.again) * self._token2wav.samples_per_frame :]
        return kept


def load_token2wav(path: str | Path, config: Any, device: str, steps: int = 10, guidance: float = 0.5) -> Token2Wav:
    """In float32, of the checkpoint at `path`, whose `Qwen2_5OmniConfig` is `config`. Raises `CheckpointError`."""
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

    module = Qwen2_5OmniToken2WavModel._from_config(config.token2wav_config, dtype=torch.float32)
    assign(module, read_tensors(path, "token2wav.", torch.float32), "token2wav")
    return Token2Wav(module.to(device), steps, guidance)
