"""How many tokens of KV cache a stage's share of a GPU's memory holds: arithmetic alone, nothing asks a device."""

from __future__ import annotations

from dataclasses import dataclass

from omni_python.layers.decoder import DecoderConfig
from omni_python.layers.kv_cache import PAGE_TOKENS
from omni_python.proto.errors import InvalidArgument

CONTEXT_BYTES = 864 << 20
"""What a process takes beside torch's allocator: CUDA's context, the code of loaded kernels, a relay's pool. Stated,
not measured, since other processes come and go on the card meanwhile; on an H200 `scripts/check_memory.py` saw 0.68 to
0.81 GiB. Its first stage on the GPU pays for it."""

GRAPH_BYTES = 512 << 20
"""Kept free in the share of an autoregressive stage: CUDA graphs, workspaces of libraries, fragments of blocks."""

ENCODER_BYTES = 128 << 20
"""The same for an encoder, which captures no graphs."""


def kv_bytes_per_token(config: DecoderConfig, itemsize: int) -> int:
    """Bytes of one token's keys and values in every layer, in numbers of `itemsize` bytes."""
    return 2 * config.layers * config.kv_heads * config.head_dim * itemsize


def prefill_bytes(config: DecoderConfig, tokens: int, itemsize: int) -> int:
    """Bytes of the intermediate tensors of a prefill of `tokens` tokens, at the layer's widest place.

    Counted in `DecoderLayer`: the residual stream and its copies, queries, keys and values before and after norm and
    rotation, and for each chosen expert its input, gate and up, their product, and the outputs in two orders.
    """
    attention = 3 * (config.heads + 2 * config.kv_heads) * config.head_dim
    if config.experts:
        wide = config.experts_per_token * (3 * config.hidden + 4 * config.expert_intermediate)
        wide += 3 * config.shared_intermediate
    else:
        wide = 4 * config.intermediate
    return tokens * itemsize * (8 * config.hidden + attention + wide)


@dataclass(frozen=True)
class KVBudget:
    """A stage's share of a GPU, `share` bytes, and what of it is not for the KV cache: `weights`, and `reserve` for
    everything that comes with the work."""

    stage: str
    share: int
    weights: int
    reserve: int
    bytes_per_token: int

    @property
    def largest(self) -> int:
        """Tokens that fit, a whole number of pages; 0 where there is no room at all."""
        page = self.bytes_per_token * PAGE_TOKENS
        return max(0, self.share - self.weights - self.reserve) // page * PAGE_TOKENS

    def tokens(self, asked: int | None, most: int) -> int:
        """`asked` tokens where they fit; without a wish as many as fit, up to `most`, which are all that can be used.

        Raises `InvalidArgument` for more than fit, with the sum.
        """
        if asked is not None and -(-asked // PAGE_TOKENS) * PAGE_TOKENS <= self.largest:
            return asked
        if asked is None and self.largest:
            return min(self.largest, -(-most // PAGE_TOKENS) * PAGE_TOKENS)
        what = "no KV cache fits" if asked is None else f"kv_tokens {asked} does not fit"
        advice = f"the largest kv_tokens that fits is {self.largest}; " if self.largest else ""
        raise InvalidArgument(
            f"{self.stage}: {what} into its share of the GPU's memory: {gib(self.share)} less {gib(self.weights)} of "
            f"weights and {gib(self.reserve)} for prompts, graphs and workspaces, at {self.bytes_per_token} bytes a "
            f"token; {advice}give the stage a larger total_gpu_memory_fraction, or fewer prefill_tokens"
        )


def encoder_pieces(stage: str, asked: int | None, share: int, weights: int, bytes_each: int) -> int:
    """How many patches or frames of `bytes_each` an encoder computes at once in its `share` of a GPU's memory: as many
    as were `asked` for, or as fit. Raises `InvalidArgument` for more than fit."""
    largest = max(0, share - weights - ENCODER_BYTES) // bytes_each
    if largest and (asked is None or asked <= largest):
        return asked or largest
    what = "" if asked is None else f"{asked} pieces at once do not fit; "
    raise InvalidArgument(
        f"{stage}: {what}its share of the GPU's memory, {gib(share)}, holds {gib(weights)} of weights, "
        f"{gib(ENCODER_BYTES)} of workspaces and at most {largest} pieces of {bytes_each} bytes; give the stage a "
        "larger total_gpu_memory_fraction"
    )


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.2f} GiB"
