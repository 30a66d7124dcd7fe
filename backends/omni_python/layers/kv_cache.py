"""Keys and values in pages, and how the rows of one batch read and write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

PAGE_TOKENS = 16


@dataclass(slots=True, frozen=True)
class KVRow:
    """One row of a batch: its pages in order, how many of its tokens are cached, and how many come now."""

    pages: Sequence[int]
    past: int
    new: int


@dataclass(slots=True, frozen=True)
class _Group:
    """Rows with equally many new tokens, which attend together.

    `tokens` [rows * new] are their places in the flattened batch. Rows without a past attend to their own new
    tokens alone (`page_table` None); others to `page_table` [rows, pages] under `mask` [rows, 1, new, keys].
    """

    rows: int
    new: int
    tokens: torch.Tensor
    page_table: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(slots=True, frozen=True)
class AttentionPlan:
    """Where the tokens of a flattened batch write their keys and values (`slots` [tokens]), and who attends to what."""

    slots: torch.Tensor
    groups: list[_Group]

    @staticmethod
    def build(rows: Sequence[KVRow], device: torch.device | str = "cpu") -> AttentionPlan:
        """The plan of a batch whose tokens are those of `rows`, row after row. Pages must reach past + new tokens."""
        slots: list[int] = []
        alike: dict[tuple[int, bool], list[tuple[KVRow, int]]] = {}
        for row in rows:
            alike.setdefault((row.new, row.past == 0), []).append((row, len(slots)))
            slots += [
                row.pages[t // PAGE_TOKENS] * PAGE_TOKENS + t % PAGE_TOKENS for t in range(row.past, row.past + row.new)
            ]
        groups = [_group(members, new, fresh, device) for (new, fresh), members in alike.items()]
        return AttentionPlan(torch.tensor(slots, device=device), groups)


def _group(members: list[tuple[KVRow, int]], new: int, fresh: bool, device: torch.device | str) -> _Group:
    starts = torch.tensor([start for _, start in members], device=device)
    tokens = (starts[:, None] + torch.arange(new, device=device)).flatten()
    if fresh:
        return _Group(len(members), new, tokens, None, None)
    pages = -(-max(row.past + new for row, _ in members) // PAGE_TOKENS)
    table = [[*row.pages[:pages], *[0] * (pages - len(row.pages))] for row, _ in members]
    past = torch.tensor([row.past for row, _ in members], device=device)
    last_visible = past[:, None] + torch.arange(new, device=device)
    mask = torch.arange(pages * PAGE_TOKENS, device=device) <= last_visible[:, None, :, None]
    return _Group(len(members), new, tokens, torch.tensor(table, device=device), mask)


class PagedKVCache:
    """Keys and values of every layer: each [num_pages * PAGE_TOKENS, kv_heads, head_dim].

    Pages belong to whoever the caller says. Stale values in a page are never seen, but must be finite, since
    0 * nan is nan: `clear` the pages of a request that failed.
    """

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_pages * PAGE_TOKENS, kv_heads, head_dim)
        self.num_pages = num_pages
        self._keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self._values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer."""
        return self._keys[index], self._values[index]

    def clear(self, pages: Sequence[int]) -> None:
        """Make what is in these pages 0."""
        index = torch.tensor(list(pages), device=self._keys[0].device)
        for tensor in (*self._keys, *self._values):
            tensor.view(self.num_pages, PAGE_TOKENS, *tensor.shape[1:]).index_fill_(0, index, 0)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: AttentionPlan
    ) -> torch.Tensor:
        """Store the new tokens' keys and values, and attend.

        query [tokens, heads, head_dim]; key and value [tokens, kv_heads, head_dim]. Returns [tokens, heads, head_dim].
        """
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(0, plan.slots, key)
        values.index_copy_(0, plan.slots, value)
        if len(plan.groups) == 1:
            return self._attend_group(query, key, value, keys, values, plan.groups[0])
        out = torch.empty_like(query)
        for group in plan.groups:
            new = (query[group.tokens], key[group.tokens], value[group.tokens])
            out[group.tokens] = self._attend_group(*new, keys, values, group)
        return out

    def _attend_group(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        group: _Group,
    ) -> torch.Tensor:
        rows, new = group.rows, group.new
        heads, dim = query.shape[1:]
        kv_heads = key.shape[1]
        by_head = query.view(rows, new, heads, dim).transpose(1, 2)
        if group.page_table is None:
            k = key.view(rows, new, kv_heads, dim).transpose(1, 2)
            v = value.view(rows, new, kv_heads, dim).transpose(1, 2)
            out = F.scaled_dot_product_attention(by_head, k, v, is_causal=new > 1, enable_gqa=True)
            return out.transpose(1, 2).reshape(rows * new, heads, dim)
        k = keys.view(-1, PAGE_TOKENS, kv_heads, dim)[group.page_table].view(rows, -1, kv_heads, dim).transpose(1, 2)
        v = values.view(-1, PAGE_TOKENS, kv_heads, dim)[group.page_table].view(rows, -1, kv_heads, dim).transpose(1, 2)
        if new == 1:
            # The heads that share a key head become its queries: every attention kernel can do that, without copies.
            shared = by_head.reshape(rows, kv_heads, heads // kv_heads, dim)
            return F.scaled_dot_product_attention(shared, k, v, attn_mask=group.mask).reshape(rows, heads, dim)
        out = F.scaled_dot_product_attention(by_head, k, v, attn_mask=group.mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(rows * new, heads, dim)
