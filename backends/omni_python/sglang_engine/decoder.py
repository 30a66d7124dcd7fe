"""A mixture-of-experts decoder on SGLang's layers, whose inputs may be embeddings.

Import it after `cpu_kernels.prepare`.

It serves every stack with Qwen3's attention: without a shared expert the thinker's, with one the talker's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.distributed import get_pp_group, get_tp_group
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.utils import MultiPlatformOp
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.models.qwen2_moe import Qwen2MoeMLP
from sglang.srt.models.qwen3_moe import Qwen3MoeDecoderLayer, Qwen3MoeForCausalLM, Qwen3MoeSparseMoeBlock
from sglang.srt.models.qwen3_vl_moe import Qwen3MoeLLMModel
from torch import nn

from omni_python.model_runner.base import PromptInput
from omni_python.proto.errors import OmniError

SPARE_ROWS = 64
"""CUDA graphs are captured for round batch sizes, so buffers need more rows than there are requests."""


@dataclass(slots=True, frozen=True)
class PromptSlice:
    """`tokens` of a prompt from its place `start` on, at the place `at` of the flattened batch."""

    prompt: PromptInput
    start: int
    at: int
    tokens: int


class SharedExpertBlock(Qwen3MoeSparseMoeBlock):
    """With one more expert for every token, weighted by its own sigmoid gate; SGLang's own block needs a GPU for it."""

    def __init__(self, layer_id: int, config: Any) -> None:
        super().__init__(layer_id, config)
        self.shared_expert = Qwen2MoeMLP(config.hidden_size, config.shared_expert_intermediate_size, config.hidden_act)
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, x: torch.Tensor, forward_batch: Any = None) -> torch.Tensor:
        # First of all, for the other experts may write their output over their input.
        shared = torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return super().forward(x, forward_batch) + shared


class SharedExpertLayer(Qwen3MoeDecoderLayer):
    def __init__(self, config: Any, layer_id: int, **kwargs: Any) -> None:
        super().__init__(config=config, layer_id=layer_id, **kwargs)
        self.mlp: nn.Module
        del self.mlp  # frees its memory before the other one is made
        self.mlp = SharedExpertBlock(layer_id, config)


class OmniDecoder(Qwen3MoeForCausalLM):
    """Before a step with prompts its owner sets `slices`; with `omni_feedback` before every other one `inputs`.

    Of the config beside Hugging Face's names: `omni_weights`, prefixes of the checkpoint's names and what they become
    here; `omni_deepstack` layers with deepstack features; `omni_tap`, the hidden state kept for every slot of the KV
    cache (counted as in `layers.decoder.Decoder`), or None; `omni_slots`; `omni_rows`; `omni_feedback`.
    """

    slices: list[PromptSlice]
    """On rank 0 of a tensor-parallel group alone: the others get its embeddings, and where `deepstack_comes` features.
    """
    deepstack_comes: bool
    last_hidden: torch.Tensor
    """[rows, H], each row's normed output at its last token."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        nn.Module.__init__(self)
        self.config = config
        self.quant_config = quant_config
        self.pp_group = get_pp_group()
        layer = SharedExpertLayer if config.shared_expert_intermediate_size else Qwen3MoeDecoderLayer
        self.model = Qwen3MoeLLMModel(config=config, quant_config=quant_config, decoder_layer_type=layer)
        self.model.deepstack_embed_to_decoder_layer = range(config.omni_deepstack)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, quant_config=quant_config)
        self.logits_processor = LogitsProcessor(config)
        # Else it gathers by NVLink multicast where it can, which not all hosts allow.
        self.logits_processor._logits_gatherer._state = None
        rows, hidden = config.omni_rows + SPARE_ROWS, config.hidden_size
        self.tp_group = get_tp_group()
        self.slices = []
        self.deepstack_comes = False
        self.inputs = torch.zeros(rows, hidden) if config.omni_feedback else None
        self.last_hidden = torch.zeros(rows, hidden)
        tap = config.omni_tap if self.tp_group.rank_in_group == 0 else None
        self.tapped = None if tap is None else torch.zeros(config.omni_slots, hidden)
        if self.last_hidden.is_cuda and self.last_hidden.dtype == torch.float32:
            self._use_plain_operations()

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any) -> Any:
        if forward_batch.mrope_positions is not None:
            positions = forward_batch.mrope_positions
        if forward_batch.forward_mode.is_extend():
            hidden = self._prompts(input_ids, positions, forward_batch)
            lengths = forward_batch.extend_seq_lens
            last = hidden[torch.cumsum(lengths, dim=0) - 1]
        else:
            # The layers write the residual stream over their input.
            embeds = None if self.inputs is None else self.inputs[: len(input_ids)].clone()
            self.model.layers_to_capture = []
            hidden = last = self.model(input_ids, positions, forward_batch, embeds)
        self.last_hidden[: len(last)].copy_(last)
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def _prompts(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        # Ids beyond the vocabulary stand for media, whose embeddings come with the prompt.
        embeds = self.model.embed_tokens(input_ids.clamp(max=self.config.vocab_size - 1))
        for part in self.slices:
            embeds[part.at : part.at + part.tokens] = part.prompt.embeds[part.start : part.start + part.tokens]
        tap, layers = self.config.omni_tap, self.config.num_hidden_layers
        self.model.layers_to_capture = [] if self.tapped is None or tap in (0, layers) else [tap]
        deepstack = self._deepstack(embeds)
        if self.tp_group.world_size > 1:
            self.share(embeds)
            if deepstack is None and self.deepstack_comes:
                deepstack = embeds.new_empty(len(embeds), self.config.omni_deepstack * embeds.shape[1])
            if deepstack is not None:
                self.share(deepstack)
        first = embeds.clone() if self.tapped is not None and tap == 0 else None
        hidden = self.model(input_ids, positions, forward_batch, embeds, input_deepstack_embeds=deepstack)
        tapped = hidden if first is None else first
        if self.model.layers_to_capture:
            hidden, (tapped,) = hidden
        if self.tapped is not None:
            self.tapped[forward_batch.out_cache_loc] = tapped
        return hidden

    def _deepstack(self, embeds: torch.Tensor) -> torch.Tensor | None:
        """[tokens, layers * H], the layers' features side by side; None where no token of the batch has any."""
        joined: torch.Tensor | None = None
        for part in self.slices:
            features = part.prompt.deepstack
            if features is None:
                continue
            places = features.tokens - part.start
            chosen = (places >= 0) & (places < part.tokens)
            if joined is None:
                joined = embeds.new_zeros(len(embeds), self.config.omni_deepstack * embeds.shape[1])
            joined[places[chosen] + part.at] = torch.cat([layer[chosen] for layer in features.layers], dim=1)
        return joined

    def share(self, tensor: torch.Tensor) -> None:
        """Overwrite `tensor`, of one shape on all ranks, with what it holds on rank 0."""
        self.tp_group.broadcast(tensor, src=0)

    def whole(self, layer: nn.Module) -> torch.Tensor:
        """The weight [vocab, H] of the embedding or the head, on rank 0 put together from all ranks' shards, on others
        [0, H]. All ranks call it at once. Without other ranks it shares the layer's memory.
        """
        shard: torch.Tensor = layer.weight.data  # type: ignore[assignment]
        group = self.tp_group
        if group.world_size == 1:
            return shard[: self.config.vocab_size]
        parts = [torch.empty_like(shard) for _ in range(group.world_size)] if group.rank_in_group == 0 else None
        torch.distributed.gather(shard, parts, dst=0, group=group.device_group)
        return shard[:0] if parts is None else torch.cat(parts)[: self.config.vocab_size]

    def _use_plain_operations(self) -> None:
        """SGLang's kernels for experts round to float16 where they are not given bfloat16, and some others take no
        float32; its plain operations, which it has for compilers, do."""
        for module in self.modules():
            if isinstance(module, MultiPlatformOp):
                module.enter_torch_compile(num_tokens=1)

    @torch.no_grad()
    def draw_weights(self) -> None:
        """Random weights; what comes out of a matrix is about as large as what goes in.

        All ranks draw the same, so what they hold whole is equal.
        """
        generator = torch.Generator(self.last_hidden.device).manual_seed(0)
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                scale = 0.02 if "embed_tokens" in name else weight.shape[-1] ** -0.5
                weight.normal_(0.0, scale, generator=generator)
        if self.config.tie_word_embeddings:
            self.lm_head.weight.data.copy_(self.model.embed_tokens.weight.data)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], is_mtp: bool = False) -> None:
        for parameter in self.parameters():
            parameter.data.fill_(torch.nan)
        super().load_weights(self._renamed(weights))
        if self.config.tie_word_embeddings:
            self.lm_head.weight.data.copy_(self.model.embed_tokens.weight.data)
        # SGLang skips what it does not find, and weights that nobody loaded are no error there.
        missing = [name for name, parameter in self.named_parameters() if parameter.isnan().any()]
        if missing:
            raise OmniError(f"the checkpoint has no weights, or broken ones, for {', '.join(missing)}")

    def _renamed(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterable[tuple[str, torch.Tensor]]:
        prefixes: Mapping[str, str] = self.config.omni_weights
        for name, tensor in weights:
            for given, own in prefixes.items():
                if name.startswith(given):
                    yield from _apart(own + name.removeprefix(given), tensor)
                    break


def _apart(name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
    """The experts of a layer one by one, as published checkpoints have them, where newer transformers fused them."""
    stem, _, leaf = name.rpartition(".")
    if not stem.endswith(".experts"):
        yield name, tensor
        return
    for index, expert in enumerate(tensor):
        if leaf == "gate_up_proj":
            gate, up = expert.chunk(2)
            yield f"{stem}.{index}.gate_proj.weight", gate
            yield f"{stem}.{index}.up_proj.weight", up
        else:
            yield f"{stem}.{index}.{leaf}.weight", expert
