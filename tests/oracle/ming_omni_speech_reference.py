"""Ming-flash-omni-2.0's talker and AudioVAE, in plain float64: a part of `ming_omni_reference`."""

from __future__ import annotations

import json
import math
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer  # type: ignore[import-untyped]

from tests.oracle.ming_omni_layers import attended, linear, load, load_json, neighbours_turned, qwen2, rms

CFG_STEPS = {10: [0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32]}


@dataclass
class Spoken:
    """`pieces`: of each, its latents [n, latent]. `stopped`: whether every one of them stopped by itself."""

    pieces: list[torch.Tensor] = field(default_factory=list)
    stopped: bool = True
    margin: float = math.inf


class SpeechReference:
    """The talker's folder of a checkpoint, whole in memory."""

    def __init__(self, directory: Path) -> None:
        self.config, self.llm, self.vae_config = (
            load_json(directory),
            load_json(directory / "llm"),
            load_json(directory / "vae"),
        )
        self.talker, self.vae = load(directory), load(directory / "vae")
        self.tokenizer = Tokenizer.from_file(str(directory / "llm" / "tokenizer.json"))
        self.directory = directory

    # ---- the talker

    def prompt(self, text: str, voice: str = "", patches: int = 0) -> list[int]:
        """After the words of a voice, and with as many placeholders as its sound has patches."""
        parts = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
            "<|im_start|>user\n",
            "Please generate speech based on the following description.\n",
            " Text input:\n",
            voice,
            text,
            "<|im_end|>\n",
            "<|im_start|>assistant\n",
            "<audio>",
            *["<audioPatch>"] * patches,
        )
        return [token for part in parts for token in self.tokenizer.encode(part).ids]

    def speak(
        self,
        prompts: list[list[int]],
        seed: int,
        max_steps: int,
        temperature: float = 0.0,
        may_stop: bool = True,
        voice: torch.Tensor | None = None,
    ) -> Spoken:
        """Each piece's prompt by itself, with one stream of noise for all; `voice` [n, latent] is spoken before."""
        noise = torch.Generator().manual_seed(seed)
        spoken = Spoken()
        for prompt in prompts:
            latents, stopped = self._piece(prompt, noise, max_steps, temperature, may_stop, spoken, voice)
            spoken.pieces.append(latents)
            spoken.stopped &= stopped
        return spoken

    def _piece(
        self,
        prompt: list[int],
        noise: torch.Generator,
        max_steps: int,
        temperature: float,
        may_stop: bool,
        spoken: Spoken,
        voice: torch.Tensor | None,
    ) -> tuple[torch.Tensor, bool]:
        c, w = self.config, self.talker
        patch, latent = c["patch_size"], c["flowmodel"]["in_channels"]
        history = torch.zeros(c["history_patch_size"], latent, dtype=torch.float64)
        x = w["model.embed_tokens.weight"][prompt]
        if voice is not None:
            history = torch.cat((history, voice))[-len(history) :]
            said = torch.stack([self._aggregated(part) for part in voice.split(patch)])
            x = torch.cat((x[: -len(said)], said))
        patches: list[torch.Tensor] = []
        while len(patches) < max_steps:
            hidden = qwen2(w, "model.", self.llm, x)[-1]
            found = self._flow(
                torch.randn(1, patch, latent, generator=noise)[0].double(), hidden, history, noise, temperature
            )
            patches.append(found)
            history = torch.cat((history, found))[patch:]
            x = torch.cat((x, self._aggregated(found)[None]))
            logits = w["stop_head.weight"] @ hidden + w["stop_head.bias"]
            if may_stop and len(patches) - 1 > 3:
                spoken.margin = min(spoken.margin, float((logits[1] - logits[0]).abs()))
                if float(logits.softmax(0)[1]) > 0.5:
                    return torch.cat(patches), True
        return torch.cat(patches), False

    def _flow(
        self, x: torch.Tensor, hidden: torch.Tensor, history: torch.Tensor, noise: torch.Generator, temperature: float
    ) -> torch.Tensor:
        c = self.config
        added = None
        if temperature > 0:
            added = torch.randn(c["steps"], *x.shape, generator=noise).double()
        straight = [step / 32 for step in CFG_STEPS[c["steps"]]]
        times = [t - (math.cos(math.pi / 2 * t) - 1 + t) for t in straight]
        for step in range(c["steps"]):
            length = times[step + 1] - times[step]
            wanted = self._direction(x, times[step], hidden, history)
            free = self._direction(x, times[step], torch.zeros_like(hidden), history)
            x = x + (wanted + (wanted - free) * c["cfg_strength"]) * length
            if added is not None:
                x = x + 0.25 * temperature**0.5 * length**0.5 * added[step]
        return x

    def _direction(self, x: torch.Tensor, time: float, hidden: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        at, w = "cfm.model.", self.talker
        exponents = torch.arange(128).double() / 127
        angles = 1000 * time * 10000**-exponents
        first = linear(w, at + "t_embedder.time_mlp.0", torch.cat((angles.sin(), angles.cos())))
        first = linear(w, at + "t_embedder.time_mlp.2", F.silu(first))
        first = first + linear(w, at + "c_embedder.cond_embedder", hidden)
        places = linear(w, at + "x_embedder", torch.cat((history, x)))
        out = self._blocks(at, self.config["flowmodel"], torch.cat((first[None], places)))
        return out[-len(x) :]

    def _aggregated(self, latents: torch.Tensor) -> torch.Tensor:
        at, w = "aggregator.", self.talker
        places = torch.cat((w[at + "word_embedder.weight"], linear(w, at + "x_embedder", latents)))
        return self._blocks(at, self.config["aggregator"], places)[0]

    def _blocks(self, at: str, config: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        w, heads = self.talker, config["num_heads"]
        for block in range(config["depth"]):
            name = f"{at}blocks.{block}."
            normed = rms(x, w[name + "norm1.weight"], 1e-6)
            query, key, value = (linear(w, f"{name}attn.to_{part}", normed).view(len(x), heads, -1) for part in "qkv")
            if name + "attn.q_norm.weight" in w:
                query = rms(query, w[name + "attn.q_norm.weight"], 1e-6)
                key = rms(key, w[name + "attn.k_norm.weight"], 1e-6)
            angles = torch.arange(len(x)).double()[:, None] * w[at + "rotary_embed.inv_freq"]
            out = attended(neighbours_turned(query, angles), neighbours_turned(key, angles), value, None)
            x = x + linear(w, name + "attn.to_out.0", out)
            wide = linear(w, name + "mlp.ff.0.0", rms(x, w[name + "norm2.weight"], 1e-6))
            x = x + linear(w, name + "mlp.ff.2", F.gelu(wide, approximate="tanh"))
        return linear(w, at + "final_layer.linear", rms(x, w[at + "final_layer.norm_final.weight"], 1e-6))

    # ---- the AudioVAE

    def voice(self, name: str) -> tuple[str, torch.Tensor]:
        """Its words, and the latents of its sound, drawn with the noise of seed 0."""
        told = json.loads((self.directory / "data" / "voice_name.json").read_text())[name]
        with wave.open(str(self.directory / told["prompt_wav_path"])) as file:
            assert file.getframerate() == self.vae_config["sample_rate"]
            samples = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16) / 32768
        config, w = self.vae_config["enc_kwargs"], self.vae
        group, size, latent = self.vae_config["patch_size"], config["hop_size"], config["latent_dim"]
        whole = group * self.config["patch_size"]
        samples = F.pad(samples.double(), (-len(samples) % (whole * size), 0))
        frames = samples.view(-1, size) @ w["encoder.fc1.weight"].T
        window = config["backbone"]["sliding_window"]
        x = qwen2(w, "encoder.encoder.", config["backbone"], linear(w, "encoder.fc2", frames), window)
        rows = []
        for part in x.split(group):
            rows += [*part, w["encoder.cls_embed"][0, 0]]
        backbone = {**config["backbone"], "num_hidden_layers": 4}
        x = qwen2(w, "encoder.aggregator.", backbone, torch.stack(rows), window)[group :: group + 1]
        mean, scale = linear(w, "encoder.fc3", x).split(latent, dim=1)
        noise = torch.randn(len(x), latent, generator=torch.Generator().manual_seed(0)).double()
        return told["prompt_text"], mean + (F.softplus(scale) + 1e-4) * noise

    def waveform(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([self._decoded(latents) for latents in pieces]) if pieces else torch.zeros(0)

    def _decoded(self, latents: torch.Tensor) -> torch.Tensor:
        config, w = self.vae_config, self.vae
        backbone, hop, times = (
            config["dec_kwargs"]["backbone"],
            config["dec_kwargs"]["output_dim"],
            config["patch_size"],
        )
        x = linear(w, "decoder.fc1", latents.double())
        frames = []
        for frame in range(len(x) * times):  # between the middles of the two latents that are nearest
            place = min(max((frame + 0.5) / times - 0.5, 0), len(x) - 1)
            before = int(place)
            after = min(before + 1, len(x) - 1)
            frames.append(x[before] * (1 - (place - before)) + x[after] * (place - before))
        x = qwen2(w, "decoder.decoder.", backbone, torch.stack(frames), backbone["sliding_window"])
        magnitude, phase = linear(w, "decoder.head.out", x).chunk(2, dim=1)
        spectrum = magnitude.exp().clip(max=100) * torch.exp(1j * phase)
        window = w["decoder.head.istft.window"]
        samples, weights = torch.zeros(2, (len(x) + 3) * hop, dtype=torch.float64)
        for frame, values in enumerate(torch.fft.irfft(spectrum, 4 * hop)):
            samples[frame * hop : (frame + 4) * hop] += values * window
            weights[frame * hop : (frame + 4) * hop] += window**2
        cut = 3 * hop // 2
        return (samples / weights)[cut : len(samples) - cut]
