"""Ming-flash-omni-2.0 as published, in plain float64: one request, no cache, no streaming, nothing of this package.

It reads the tensors by the checkpoint's own names. The facts (order of operations, names, constants that no file of the
checkpoint tells) are those of the published modeling files: of the talker and of hearing as sglang-omni (its
models/ming_omni) carries them, of seeing and of positions as copies of inclusionAI's Ming repository have them
(qwen3_moe_vit, modeling_bailingmm2, modeling_bailing_moe_v2, processing_bailingmm2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer  # type: ignore[import-untyped]

from tests.oracle.ming_omni_layers import (
    attended,
    gated,
    halves_turned,
    layer_norm,
    linear,
    load,
    load_json,
    log_mel,
    rms,
)
from tests.oracle.ming_omni_speech_reference import SpeechReference

Film = tuple[int, int, int]
"""Of a picture or a video: steps, and rows and columns of its embeddings."""


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


class Reference:
    """One checkpoint directory, whole in memory."""

    def __init__(self, directory: Path) -> None:
        self.config = load_json(directory)
        self.llm: dict[str, Any] = self.config["llm_config"]
        self.thinker = load(directory)
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.directory = directory
        self.speech = SpeechReference(directory / "talker")

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
            x = x + self._thinker_attention(at, rms(x, w[at + "input_layernorm.weight"], c["rms_norm_eps"]), angles)
            normed = rms(x, w[at + "post_attention_layernorm.weight"], c["rms_norm_eps"])
            if layer < c["first_k_dense_replace"]:
                x = x + gated(w, at + "mlp.", normed)
            else:
                x = x + self._experts(at + "mlp.", normed, gates)
        return rms(x, w["model.model.norm.weight"], c["rms_norm_eps"]) @ w["model.lm_head.weight"].T

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
        query = rms(query, w[at + "attention.query_layernorm.weight"], c["rms_norm_eps"])
        key = rms(key, w[at + "attention.key_layernorm.weight"], c["rms_norm_eps"])
        turned = int(dim * c["partial_rotary_factor"])
        query, key = (
            torch.cat((halves_turned(part[..., :turned], angles), part[..., turned:]), dim=-1) for part in (query, key)
        )
        return attended(query, key, value, len(x)) @ w[at + "attention.dense.weight"].T

    def _experts(self, at: str, x: torch.Tensor, gates: list[str]) -> torch.Tensor:
        w = self.thinker
        weights = torch.stack([self._routed(f"{at}{gate}.", row) for gate, row in zip(gates, x, strict=True)])
        out = gated(w, at + "shared_experts.", x)
        for expert in range(weights.shape[1]):
            out = out + gated(w, f"{at}experts.{expert}.", x) * weights[:, expert, None]
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
        x = log_mel(samples.double(), whisper["n_mels"])
        x = F.gelu(F.conv1d(x[None], w["audio.conv1.weight"], w["audio.conv1.bias"], padding=1))
        x = F.gelu(F.conv1d(x, w["audio.conv2.weight"], w["audio.conv2.bias"], stride=2, padding=1))[0].T
        x = x + w["audio.positional_embedding"][: len(x)]
        for block in range(whisper["n_layer"]):
            at = f"audio.blocks.{block}."
            normed = layer_norm(w, at + "attn_ln", x)
            query, value = (linear(w, f"{at}attn.{part}", normed) for part in ("query", "value"))
            key = normed @ w[at + "attn.key.weight"].T
            query, key, value = (part.view(len(x), whisper["n_head"], -1) for part in (query, key, value))
            x = x + linear(w, at + "attn.out", attended(query, key, value, None))
            wide = F.gelu(linear(w, at + "mlp.0", layer_norm(w, at + "mlp_ln", x)))
            x = x + linear(w, at + "mlp.2", wide)
        x = layer_norm(w, "audio.ln_post", x).T[None]
        pad = c["ds_kernel_size"] // 2
        x = F.conv1d(
            x, w["linear_proj_audio.0.weight"], w["linear_proj_audio.0.bias"], stride=c["ds_stride"], padding=pad
        )[0].T
        x = linear(w, "linear_proj_audio.3", F.gelu(x))
        return x / x.norm(dim=1, keepdim=True)

    def seen(self, frames: torch.Tensor) -> tuple[torch.Tensor, Film]:
        """The thinker's embeddings of a picture, or of a video's frames, uint8 [n, height, width, 3] of a size that the
        processor leaves as it is."""
        w, c = self.thinker, self.config["vision_config"]
        p = load_json(self.directory, "preprocessor_config.json")
        if len(frames) % 2:
            frames = torch.cat((frames, frames[-1:]))
        side = c["patch_size"]
        pixels = (frames.double() / 255 - torch.tensor(p["image_mean"])) / torch.tensor(p["image_std"])
        rows, columns = pixels.shape[1] // side, pixels.shape[2] // side
        made = [self._step(pair, rows, columns) for pair in pixels.split(2)]
        x = torch.cat(made)
        x = linear(w, "linear_proj.2", F.gelu(linear(w, "linear_proj.0", x)))
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
            joined = linear(w, at + "attn.qkv", layer_norm(w, at + "norm1", x, 1e-6))
            query, key, value = (part.reshape(len(x), heads, -1) for part in joined.chunk(3, dim=1))
            query, key = (halves_turned(part, angles) for part in (query, key))
            x = x + linear(w, at + "attn.proj", attended(query, key, value, None))
            wider = F.gelu(linear(w, at + "mlp.linear_fc1", layer_norm(w, at + "norm2", x, 1e-6)), approximate="tanh")
            x = x + linear(w, at + "mlp.linear_fc2", wider)
        x = layer_norm(w, "vision.merger.norm", x, 1e-6).reshape(len(x) // 4, 4 * size)
        return linear(w, "vision.merger.linear_fc2", F.gelu(linear(w, "vision.merger.linear_fc1", x)))
