"""Ming-flash-omni-2.0 as published, in plain float64: one request, no cache, no streaming, nothing of this package.

It reads the tensors by the checkpoint's own names. The facts (order of operations, names, constants that no file of the
checkpoint tells) are those of the published modeling files: of the talker and of hearing as sglang-omni (its
models/ming_omni) carries them, of seeing and of positions as copies of inclusionAI's Ming repository have them
(qwen3_moe_vit, modeling_bailingmm2, modeling_bailing_moe_v2, processing_bailingmm2).
"""

from __future__ import annotations

import json
import math
import wave
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer  # type: ignore[import-untyped]

Weights = dict[str, torch.Tensor]

Film = tuple[int, int, int]
"""Of a picture or a video: steps, and rows and columns of its embeddings."""

CFG_STEPS = {10: [0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32]}


@dataclass
class Prompt:
    """`tokens`; `seen` [n, hidden] stand for pictures and videos, whose sizes are `films`, and `heard` for sounds."""

    tokens: list[int]
    films: list[Film] = field(default_factory=list)
    seen: torch.Tensor | None = None
    heard: torch.Tensor | None = None


@dataclass
class Choices:
    """`tokens` with the end, where it came; `margin` is the smallest distance of a choice from the next best."""

    tokens: list[int] = field(default_factory=list)
    margin: float = math.inf


@dataclass
class Spoken:
    """`pieces`: of each, its latents [n, latent]. `stopped`: whether every one of them stopped by itself."""

    pieces: list[torch.Tensor] = field(default_factory=list)
    stopped: bool = True
    margin: float = math.inf


class Reference:
    """One checkpoint directory, whole in memory."""

    def __init__(self, directory: Path) -> None:
        talker = directory / "talker"
        self.config = _json(directory)
        self.llm: dict[str, Any] = self.config["llm_config"]
        self.talker_config, self.talker_llm, self.vae_config = (
            _json(talker),
            _json(talker / "llm"),
            _json(talker / "vae"),
        )
        self.thinker, self.talker, self.vae = _load(directory), _load(talker), _load(talker / "vae")
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.directory = talker
        self.talker_tokenizer = Tokenizer.from_file(str(talker / "llm" / "tokenizer.json"))

    # ---- texts

    def prompt(
        self,
        text: str,
        system: str = "你是一个友好的AI助手。",
        films: Sequence[tuple[torch.Tensor, Film]] = (),
        sounds: Sequence[torch.Tensor] = (),
    ) -> Prompt:
        """Of one user's turn. In it stand what the other methods give for each medium."""
        turns = f"<role>SYSTEM</role>{system}\n\ndetailed thinking off<|role_end|><role>HUMAN</role>{text}<|role_end|>"
        prompt = Prompt(self.tokenizer.encode(turns + "<role>ASSISTANT</role>").ids, [size for _, size in films])
        if films:
            prompt.seen = torch.cat([embeds for embeds, _ in films])
        if sounds:
            prompt.heard = torch.cat(list(sounds))
        return prompt

    @staticmethod
    def sound(heard: torch.Tensor) -> str:
        return "<audio>" + "<audioPatch>" * len(heard) + "</audio>"

    @staticmethod
    def picture(film: Film) -> str:
        return "<image>" + "<imagePatch>" * (film[1] * film[2]) + "</image>\n"

    @staticmethod
    def video(film: Film, times: Sequence[float]) -> str:
        """`times` in seconds: of each frame that was looked at."""
        middles = [(times[2 * step] + times[min(2 * step + 1, len(times) - 1)]) / 2 for step in range(film[0])]
        steps = [f"<{time:.1f} seconds><image>" + "<framePatch>" * (film[1] * film[2]) + "</image>" for time in middles]
        return "<video>" + "".join(steps) + "</video>"

    def text(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def talker_prompt(self, text: str, voice: str = "", patches: int = 0) -> list[int]:
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
        return [token for part in parts for token in self.talker_tokenizer.encode(part).ids]

    # ---- the thinker

    def answer(self, prompt: Prompt, max_tokens: int) -> Choices:
        """Greedy."""
        result = Choices()
        while True:
            best = self.logits(prompt, result.tokens)[-1].topk(2)
            result.margin = min(result.margin, float(best.values[0] - best.values[1]))
            result.tokens.append(int(best.indices[0]))
            if result.tokens[-1] == self.llm["eos_token_id"] or len(result.tokens) == max_tokens:
                return result

    def logits(self, prompt: Prompt, answer: list[int]) -> torch.Tensor:
        w, c = self.thinker, self.llm
        x = w["model.model.word_embeddings.weight"][prompt.tokens + answer]
        gates = ["gate"] * len(x)
        for kinds, embeds, gate in (
            (("<imagePatch>", "<framePatch>"), prompt.seen, "image_gate"),
            (("<audioPatch>",), prompt.heard, "audio_gate"),
        ):
            wanted = [self.tokenizer.token_to_id(kind) for kind in kinds]
            places = [place for place, token in enumerate(prompt.tokens) if token in wanted]
            assert len(places) == (0 if embeds is None else len(embeds))
            for place, embed in zip(places, [] if embeds is None else embeds, strict=True):
                x[place], gates[place] = embed, gate
        angles = self._turns(prompt, len(answer))
        for layer in range(c["num_hidden_layers"]):
            at = f"model.model.layers.{layer}."
            x = x + self._thinker_attention(at, _rms(x, w[at + "input_layernorm.weight"], c["rms_norm_eps"]), angles)
            normed = _rms(x, w[at + "post_attention_layernorm.weight"], c["rms_norm_eps"])
            if layer < c["first_k_dense_replace"]:
                x = x + _gated(w, at + "mlp.", normed)
            else:
                x = x + self._experts(at + "mlp.", normed, gates)
        return _rms(x, w["model.model.norm.weight"], c["rms_norm_eps"]) @ w["model.lm_head.weight"].T

    def _turns(self, prompt: Prompt, more: int) -> torch.Tensor:
        """The angle of each token's frequencies, [n, frequencies]. Of the published positions (time, height, width)
        those of a picture lie around its moment, and the next moment is the next token's."""
        patches = [self.tokenizer.token_to_id(kind) for kind in ("<imagePatch>", "<framePatch>")]
        blocks = [(rows, columns) for steps, rows, columns in prompt.films for _ in range(steps)]
        positions: list[tuple[int, int, int]] = []
        moment, place = 0, 0
        while place < len(prompt.tokens):
            if prompt.tokens[place] not in patches:
                positions.append((moment, moment, moment))
                place += 1
            else:
                rows, columns = blocks.pop(0)
                for row in range(rows):
                    for column in range(columns):
                        up, left = row - (rows - 1) // 2, column - (columns - 1) // 2
                        positions.append((moment, moment + up, moment + left))
                place += rows * columns
            moment += 1
        positions += [(moment + later,) * 3 for later in range(more)]
        time, height, width = self.llm["rope_scaling"]["mrope_section"]
        turned = 2 * (time + height + width)
        angles = torch.zeros(len(positions), turned // 2, dtype=torch.float64)
        for frequency in range(turned // 2):
            axis = (1, 2)[frequency % 2] if frequency < height + width else 0
            slow = self.llm["rope_theta"] ** -(2 * frequency / turned)
            angles[:, frequency] = torch.tensor([position[axis] * slow for position in positions])
        return angles

    def _thinker_attention(self, at: str, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        w, c = self.thinker, self.llm
        heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        joined = x @ w[at + "attention.query_key_value.weight"].T
        query, key, value = joined.view(len(x), -1, dim).split([heads, kv, kv], dim=1)
        query = _rms(query, w[at + "attention.query_layernorm.weight"], c["rms_norm_eps"])
        key = _rms(key, w[at + "attention.key_layernorm.weight"], c["rms_norm_eps"])
        turned = int(dim * c["partial_rotary_factor"])
        query, key = (
            torch.cat((_halves_turned(part[..., :turned], angles), part[..., turned:]), dim=-1) for part in (query, key)
        )
        return _attended(query, key, value, len(x)) @ w[at + "attention.dense.weight"].T

    def _experts(self, at: str, x: torch.Tensor, gates: list[str]) -> torch.Tensor:
        w = self.thinker
        weights = torch.stack([self._routed(f"{at}{gate}.", row) for gate, row in zip(gates, x, strict=True)])
        out = _gated(w, at + "shared_experts.", x)
        for expert in range(weights.shape[1]):
            out = out + _gated(w, f"{at}experts.{expert}.", x) * weights[:, expert, None]
        return out

    def _routed(self, at: str, x: torch.Tensor) -> torch.Tensor:
        """The weight of each expert for one token, 0 for most."""
        c = self.llm
        scores = (self.thinker[at + "weight"] @ x).sigmoid()
        biased = (scores + self.thinker[at + "expert_bias"]).tolist()
        size = c["num_experts"] // c["n_group"]
        quality = [sum(sorted(biased[g * size : (g + 1) * size])[-2:]) for g in range(c["n_group"])]
        groups = sorted(range(c["n_group"]), key=lambda g: -quality[g])[: c["topk_group"]]
        candidates = [g * size + index for g in groups for index in range(size)]
        chosen = sorted(candidates, key=lambda e: -biased[e])[: c["num_experts_per_tok"]]
        weights = torch.zeros_like(scores)
        weights[chosen] = scores[chosen] / scores[chosen].sum() * c["routed_scaling_factor"]
        return weights

    def heard(self, samples: torch.Tensor) -> torch.Tensor:
        """The thinker's embeddings of a sound [n] at 16 kHz."""
        w, c = self.thinker, self.config["audio_config"]
        whisper = c["whisper_encoder_config"]
        x = _log_mel(samples.double(), whisper["n_mels"])
        x = F.gelu(F.conv1d(x[None], w["audio.conv1.weight"], w["audio.conv1.bias"], padding=1))
        x = F.gelu(F.conv1d(x, w["audio.conv2.weight"], w["audio.conv2.bias"], stride=2, padding=1))[0].T
        x = x + w["audio.positional_embedding"][: len(x)]
        for block in range(whisper["n_layer"]):
            at = f"audio.blocks.{block}."
            normed = _layer_norm(w, at + "attn_ln", x)
            query, value = (_linear(w, f"{at}attn.{part}", normed) for part in ("query", "value"))
            key = normed @ w[at + "attn.key.weight"].T
            query, key, value = (part.view(len(x), whisper["n_head"], -1) for part in (query, key, value))
            x = x + _linear(w, at + "attn.out", _attended(query, key, value, None))
            wide = F.gelu(_linear(w, at + "mlp.0", _layer_norm(w, at + "mlp_ln", x)))
            x = x + _linear(w, at + "mlp.2", wide)
        x = _layer_norm(w, "audio.ln_post", x).T[None]
        pad = c["ds_kernel_size"] // 2
        x = F.conv1d(
            x, w["linear_proj_audio.0.weight"], w["linear_proj_audio.0.bias"], stride=c["ds_stride"], padding=pad
        )[0].T
        x = _linear(w, "linear_proj_audio.3", F.gelu(x))
        return x / x.norm(dim=1, keepdim=True)

    def seen(self, frames: torch.Tensor) -> tuple[torch.Tensor, Film]:
        """The thinker's embeddings of a picture, or of a video's frames, uint8 [n, height, width, 3] of a size that the
        processor leaves as it is."""
        w, c, p = self.thinker, self.config["vision_config"], _json(self.directory.parent, "preprocessor_config.json")
        if len(frames) % 2:
            frames = torch.cat((frames, frames[-1:]))
        side = c["patch_size"]
        pixels = (frames.double() / 255 - torch.tensor(p["image_mean"])) / torch.tensor(p["image_std"])
        rows, columns = pixels.shape[1] // side, pixels.shape[2] // side
        made = [self._step(pair, rows, columns) for pair in pixels.split(2)]
        x = torch.cat(made)
        x = _linear(w, "linear_proj.2", F.gelu(_linear(w, "linear_proj.0", x)))
        return x / x.norm(dim=1, keepdim=True), (len(made), rows // 2, columns // 2)

    def _step(self, pixels: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Of two frames [2, height, width, 3]: [tokens, size]."""
        w, c = self.thinker, self.config["vision_config"]
        side, size, heads = c["patch_size"], c["hidden_size"], c["num_heads"]
        kernel, table = w["vision.patch_embed.proj.weight"], w["vision.pos_embed.weight"]
        places = [  # the four patches of a token follow each other
            (2 * row + below, 2 * column + beside)
            for row in range(rows // 2)
            for column in range(columns // 2)
            for below in (0, 1)
            for beside in (0, 1)
        ]
        wide = math.isqrt(len(table))
        patches, turns = [], []
        slow = 10000.0 ** -(torch.arange(0, size // heads // 2, 2).double() / (size // heads // 2))
        for row, column in places:
            patch = pixels[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
            x = (kernel * patch.permute(3, 0, 1, 2)).sum((1, 2, 3, 4)) + w["vision.patch_embed.proj.bias"]
            # the table is stretched over the picture from corner to corner
            down, right = row * (wide - 1) / max(rows - 1, 1), column * (wide - 1) / max(columns - 1, 1)
            for top in range(wide):
                for left in range(wide):
                    near = max(1 - abs(down - top), 0) * max(1 - abs(right - left), 0)
                    x = x + near * table[top * wide + left]
            patches.append(x)
            turns.append(torch.cat((row * slow, column * slow)))
        x, angles = torch.stack(patches), torch.stack(turns)
        for block in range(c["depth"]):
            at = f"vision.blocks.{block}."
            joined = _linear(w, at + "attn.qkv", _layer_norm(w, at + "norm1", x, 1e-6))
            query, key, value = (part.reshape(len(x), heads, -1) for part in joined.chunk(3, dim=1))
            query, key = (_halves_turned(part, angles) for part in (query, key))
            x = x + _linear(w, at + "attn.proj", _attended(query, key, value, None))
            wider = F.gelu(_linear(w, at + "mlp.linear_fc1", _layer_norm(w, at + "norm2", x, 1e-6)), approximate="tanh")
            x = x + _linear(w, at + "mlp.linear_fc2", wider)
        x = _layer_norm(w, "vision.merger.norm", x, 1e-6).reshape(len(x) // 4, 4 * size)
        return _linear(w, "vision.merger.linear_fc2", F.gelu(_linear(w, "vision.merger.linear_fc1", x)))

    # ---- the talker

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
        c, w = self.talker_config, self.talker
        patch, latent = c["patch_size"], c["flowmodel"]["in_channels"]
        history = torch.zeros(c["history_patch_size"], latent, dtype=torch.float64)
        x = w["model.embed_tokens.weight"][prompt]
        if voice is not None:
            history = torch.cat((history, voice))[-len(history) :]
            said = torch.stack([self._aggregated(part) for part in voice.split(patch)])
            x = torch.cat((x[: -len(said)], said))
        patches: list[torch.Tensor] = []
        while len(patches) < max_steps:
            hidden = _qwen2(w, "model.", self.talker_llm, x)[-1]
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
        c = self.talker_config
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
        first = _linear(w, at + "t_embedder.time_mlp.0", torch.cat((angles.sin(), angles.cos())))
        first = _linear(w, at + "t_embedder.time_mlp.2", F.silu(first))
        first = first + _linear(w, at + "c_embedder.cond_embedder", hidden)
        places = _linear(w, at + "x_embedder", torch.cat((history, x)))
        out = self._blocks(at, self.talker_config["flowmodel"], torch.cat((first[None], places)))
        return out[-len(x) :]

    def _aggregated(self, latents: torch.Tensor) -> torch.Tensor:
        at, w = "aggregator.", self.talker
        places = torch.cat((w[at + "word_embedder.weight"], _linear(w, at + "x_embedder", latents)))
        return self._blocks(at, self.talker_config["aggregator"], places)[0]

    def _blocks(self, at: str, config: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        w, heads = self.talker, config["num_heads"]
        for block in range(config["depth"]):
            name = f"{at}blocks.{block}."
            normed = _rms(x, w[name + "norm1.weight"], 1e-6)
            query, key, value = (_linear(w, f"{name}attn.to_{part}", normed).view(len(x), heads, -1) for part in "qkv")
            if name + "attn.q_norm.weight" in w:
                query = _rms(query, w[name + "attn.q_norm.weight"], 1e-6)
                key = _rms(key, w[name + "attn.k_norm.weight"], 1e-6)
            angles = torch.arange(len(x)).double()[:, None] * w[at + "rotary_embed.inv_freq"]
            out = _attended(_neighbours_turned(query, angles), _neighbours_turned(key, angles), value, None)
            x = x + _linear(w, name + "attn.to_out.0", out)
            wide = _linear(w, name + "mlp.ff.0.0", _rms(x, w[name + "norm2.weight"], 1e-6))
            x = x + _linear(w, name + "mlp.ff.2", F.gelu(wide, approximate="tanh"))
        return _linear(w, at + "final_layer.linear", _rms(x, w[at + "final_layer.norm_final.weight"], 1e-6))

    # ---- the AudioVAE

    def voice(self, name: str) -> tuple[str, torch.Tensor]:
        """Its words, and the latents of its sound, drawn with the noise of seed 0."""
        told = json.loads((self.directory / "data" / "voice_name.json").read_text())[name]
        with wave.open(str(self.directory / told["prompt_wav_path"])) as file:
            assert file.getframerate() == self.vae_config["sample_rate"]
            samples = torch.frombuffer(bytearray(file.readframes(file.getnframes())), dtype=torch.int16) / 32768
        config, w = self.vae_config["enc_kwargs"], self.vae
        group, size, latent = self.vae_config["patch_size"], config["hop_size"], config["latent_dim"]
        whole = group * self.talker_config["patch_size"]
        samples = F.pad(samples.double(), (-len(samples) % (whole * size), 0))
        frames = samples.view(-1, size) @ w["encoder.fc1.weight"].T
        window = config["backbone"]["sliding_window"]
        x = _qwen2(w, "encoder.encoder.", config["backbone"], _linear(w, "encoder.fc2", frames), window)
        rows = []
        for part in x.split(group):
            rows += [*part, w["encoder.cls_embed"][0, 0]]
        backbone = {**config["backbone"], "num_hidden_layers": 4}
        x = _qwen2(w, "encoder.aggregator.", backbone, torch.stack(rows), window)[group :: group + 1]
        mean, scale = _linear(w, "encoder.fc3", x).split(latent, dim=1)
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
        x = _linear(w, "decoder.fc1", latents.double())
        frames = []
        for frame in range(len(x) * times):  # between the middles of the two latents that are nearest
            place = min(max((frame + 0.5) / times - 0.5, 0), len(x) - 1)
            before = int(place)
            after = min(before + 1, len(x) - 1)
            frames.append(x[before] * (1 - (place - before)) + x[after] * (place - before))
        x = _qwen2(w, "decoder.decoder.", backbone, torch.stack(frames), backbone["sliding_window"])
        magnitude, phase = _linear(w, "decoder.head.out", x).chunk(2, dim=1)
        spectrum = magnitude.exp().clip(max=100) * torch.exp(1j * phase)
        window = w["decoder.head.istft.window"]
        samples, weights = torch.zeros(2, (len(x) + 3) * hop, dtype=torch.float64)
        for frame, values in enumerate(torch.fft.irfft(spectrum, 4 * hop)):
            samples[frame * hop : (frame + 4) * hop] += values * window
            weights[frame * hop : (frame + 4) * hop] += window**2
        cut = 3 * hop // 2
        return (samples / weights)[cut : len(samples) - cut]


def _json(directory: Path, name: str = "config.json") -> dict[str, Any]:
    read: dict[str, Any] = json.loads((directory / name).read_text())
    return read


def _load(directory: Path) -> Weights:
    from safetensors.torch import load_file

    found: Weights = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= {name: tensor.double() for name, tensor in load_file(file).items()}
    return found


def _linear(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def _layer_norm(weights: Weights, name: str, x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], eps)


def _log_mel(samples: torch.Tensor, bins: int) -> torch.Tensor:
    """As OpenAI's whisper: [bins, n // 160]."""
    padded = F.pad(samples[None, None], (200, 200), mode="reflect")[0, 0]
    frames = padded.unfold(0, 400, 160)[:-1] * torch.hann_window(400, dtype=torch.float64)
    power = torch.fft.rfft(frames).abs() ** 2
    mels = torch.linspace(0, 15 + 27 * math.log(8) / math.log(6.4), bins + 2, dtype=torch.float64)
    edges = torch.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
    hertz = torch.arange(201).double() * 40
    filters = torch.zeros(bins, 201, dtype=torch.float64)
    for band in range(bins):
        low, middle, high = edges[band : band + 3]
        rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
        filters[band] = torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)
    logs = (power @ filters.T).clamp(min=1e-10).log10().T
    return (torch.maximum(logs, logs.max() - 8) + 4) / 4


def _gated(weights: Weights, at: str, x: torch.Tensor) -> torch.Tensor:
    gate, up, down = (weights[f"{at}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _qwen2(w: Weights, prefix: str, config: dict[str, Any], x: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """[n, hidden] -> the normed output."""
    heads, eps = config["num_attention_heads"], config["rms_norm_eps"]
    dim = config["hidden_size"] // heads
    for layer in range(config["num_hidden_layers"]):
        at = f"{prefix}layers.{layer}."
        normed = _rms(x, w[at + "input_layernorm.weight"], eps)
        query, key, value = (_linear(w, f"{at}self_attn.{p}_proj", normed).view(len(x), -1, dim) for p in "qkv")
        slow = config["rope_theta"] ** -(torch.arange(0, dim, 2).double() / dim)
        angles = torch.arange(len(x)).double()[:, None] * slow
        query, key = (_halves_turned(part, angles) for part in (query, key))
        x = x + _attended(query, key, value, window or len(x)) @ w[at + "self_attn.o_proj.weight"].T
        x = x + _gated(w, at + "mlp.", _rms(x, w[at + "post_attention_layernorm.weight"], eps))
    return _rms(x, w[prefix + "norm.weight"], eps)


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor:
    """Each [n, heads, dim]; the last `window` places up to its own are seen, or, without one, all places."""
    n, heads, dim = query.shape
    hidden = torch.zeros(n, n, dtype=torch.bool)
    if window is not None:
        distance = torch.arange(n)[:, None] - torch.arange(n)
        hidden = (distance < 0) | (distance >= window)
    out = []
    for head in range(heads):
        of = head // (heads // key.shape[1])
        scores = (query[:, head] @ key[:, of].T / math.sqrt(dim)).masked_fill(hidden, -math.inf)
        out.append(scores.softmax(-1) @ value[:, of])
    return torch.cat(out, dim=1)


def _halves_turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """`x` [n, heads, dim], `angles` [n, dim / 2]."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _neighbours_turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(2)
