"""Every kernel against float64 on fresh random inputs: on a GPU, or else in Triton's interpreter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

if TYPE_CHECKING:
    from omni_python.layers.kernels import attention, codes, frames, linear, moe, recent
else:
    pytest.importorskip(
        "triton", reason="triton is not installed: pip install --no-deps triton==3.6.0 for its interpreter"
    )
    from omni_python.layers.kernels import attention, codes, frames, linear, moe, recent

from omni_python.layers.kv_cache import PAGE_TOKENS  # noqa: E402
from omni_python.model_runner.sampler import RowSampling, choose_tokens, draw  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy's, of the interpreter
EPS = 1e-6
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
"""The interpreter multiplies bfloat16 matrices wrongly."""
ON_GPU = DEVICE == "cuda"


def randn(*shape: int, scale: float = 1.0, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return (torch.randn(*shape) * scale).to(DEVICE, dtype)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative; anything that is no number is infinite."""
    difference = (got.double() - expected).norm() / expected.norm()
    return float(difference) if difference.isfinite() else float("inf")


def normed(x: torch.Tensor, gain: torch.Tensor | None = None) -> torch.Tensor:
    return F.rms_norm(x.double(), (x.shape[-1],), None if gain is None else gain.double(), EPS)


@pytest.mark.parametrize("rows", [1, 3, 7, 37])
@pytest.mark.parametrize("size", [(4100, 2048), (1024, 3072)] if ON_GPU else [(18, 48), (40, 128)], ids=str)
def test_linear(rows: int, size: tuple[int, int]) -> None:
    out, inner = size
    x, residual = randn(rows, inner, scale=3.0), randn(rows, out)
    weight = randn(out, inner, scale=inner**-0.5)
    assert error(linear.linear(x, weight), x.double() @ weight.double().T) < 1e-2
    plain = normed(x) @ weight.double().T
    wide = linear.linear(x, weight, normed=True, eps=EPS, dtype=torch.float32)
    assert wide.dtype == torch.float32 and error(wide, plain) < 1e-2
    expected = x.double() @ weight.double().T + residual.double()
    assert linear.linear(x, weight, residual=residual) is residual
    assert error(residual, expected) < 1e-2
    gate, up = plain.chunk(2, dim=1)
    assert error(linear.linear(x, weight, normed=True, eps=EPS, gated=True), F.silu(gate) * up) < 2e-2


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()), dim=-1)


@pytest.mark.parametrize(("splits", "new", "norm"), [(1, 1, True), (3, 1, True), (3, 2, True), (1, 2, False)])
def test_attention(splits: int, new: int, norm: bool) -> None:
    """Sequences of several lengths, pages in a random order, stale values in them; the cache gets the new tokens."""
    heads = attention.Heads(heads=4, kv_heads=2, dim=32)
    lengths = [0, 1, 16, 77] if new == 1 else [0, 0, 0]
    sequences = len(lengths)
    pages = 16
    table = torch.randperm((sequences + 2) * pages).view(-1, pages).to(DEVICE, torch.int32)
    row = torch.randperm(sequences + 2)[:sequences].to(DEVICE, torch.int32)
    shape = (len(table) * pages * PAGE_TOKENS, heads.kv_heads, heads.dim)
    keys, values = randn(*shape), randn(*shape)
    slots = (table[row.long()].long()[:, :, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS, device=DEVICE)).flatten(1)
    untouched = torch.ones(shape[0], dtype=torch.bool, device=DEVICE)
    for index, length in enumerate(lengths):
        keys[slots[index, length:]] = values[slots[index, length:]] = torch.nan  # of a former holder; must not be read
        untouched[slots[index, length:]] = False
    old_keys = keys.clone()
    qkv = randn(sequences * new, (heads.heads + 2 * heads.kv_heads) * heads.dim)
    q_norm, k_norm = (randn(heads.dim) if norm else None for _ in range(2))
    angles = torch.rand(sequences * new, heads.dim // 2, device=DEVICE) * 500
    past = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    where = attention.Where(table, row, past, angles.cos(), angles.sin(), new)
    buffers = attention.SplitBuffers(splits, sequences, heads, DEVICE)
    out = attention.attend(qkv, q_norm, k_norm, EPS, heads, keys, values, where, buffers)
    again = attention.attend(qkv, q_norm, k_norm, EPS, heads, keys, values, where, buffers)
    assert torch.equal(out, again), "the buffers are left as they were found"
    assert torch.equal(keys[untouched], old_keys[untouched])
    q, k, v = qkv.double().split([size * heads.dim for size in (heads.heads, heads.kv_heads, heads.kv_heads)], dim=1)
    q, k = q.view(-1, heads.heads, heads.dim), k.reshape(-1, heads.kv_heads, heads.dim)
    if norm:
        q, k = normed(q, q_norm), normed(k, k_norm)
    q, k = turned(q, angles.double()[:, None]), turned(k, angles.double()[:, None])
    v = v.reshape(-1, heads.kv_heads, heads.dim)
    for index, length in enumerate(lengths):
        mine = slice(index * new, (index + 1) * new)
        fresh = slots[index, length : length + new]
        assert error(keys[fresh], k[mine]) < 1e-2 and torch.equal(values[fresh], v[mine].to(values.dtype))
        all_k = torch.cat((keys[slots[index, :length]].double(), k[mine])).repeat_interleave(heads.shared, 1)
        all_v = torch.cat((values[slots[index, :length]].double(), v[mine])).repeat_interleave(heads.shared, 1)
        mask = torch.ones(new, length + new, dtype=torch.bool, device=DEVICE).tril(length)
        expected = F.scaled_dot_product_attention(
            q[mine].transpose(0, 1), all_k.transpose(0, 1), all_v.transpose(0, 1), attn_mask=mask
        )
        assert error(out[mine], expected.transpose(0, 1).flatten(1)) < 2e-2


@pytest.mark.parametrize("rows", [1, 5, 17] if ON_GPU else [1, 3])
@pytest.mark.parametrize("always", [0, 2])
@pytest.mark.parametrize("normalise", [False, True])
def test_experts(rows: int, always: int, normalise: bool) -> None:
    hidden, size, experts, top_k = (1024, 384, 60, 6) if ON_GPU else (64, 48, 8, 3)
    weights = moe.MoEWeights(
        router=randn(experts + bool(always), hidden, scale=hidden**-0.5),
        gate_up=randn(experts + always, 2 * size, hidden, scale=hidden**-0.5),
        down=randn(experts + always, hidden, size, scale=size**-0.5),
        top_k=top_k,
        always=always,
        normalise=normalise,
    )
    x = randn(2 * rows + 4, hidden, scale=0.1)  # small beside what is added, which its rounding would hide
    likeliest = (normed(x) @ weights.router.double().T)[:, :experts].softmax(-1).topk(top_k + 1, dim=-1).values
    clear = (likeliest[:, -2] - likeliest[:, -1]) > 1e-3 * likeliest[:, -2]  # others may fall to either side
    x = x[clear][:rows]
    assert len(x) == rows
    rowwise = normed(x)
    logits = rowwise @ weights.router.double().T
    shares, chosen = logits[:, :experts].softmax(-1).topk(top_k, dim=-1)
    if normalise:
        shares = shares / shares.sum(-1, keepdim=True)
    expected = x.double()
    for row in range(rows):
        parts = [(int(expert), float(share)) for expert, share in zip(chosen[row], shares[row], strict=True)]
        if always:
            parts += [(experts + extra, float(logits[row, -1].sigmoid())) for extra in range(always)]
        for expert, share in parts:
            gate, up = (weights.gate_up[expert].double() @ rowwise[row]).chunk(2)
            expected[row] += share * (weights.down[expert].double() @ (F.silu(gate) * up))
    added = expected - x.double()
    routing = moe.route(logits.float(), weights)
    assert set(routing.active[: int(routing.count)].tolist()) == {
        *chosen.flatten().tolist(),
        *range(experts, experts + always),
    }
    before = x.double()
    assert moe.mix(x, EPS, weights) is x
    assert error(x.double() - before, added) < 3e-2


@pytest.mark.parametrize("vocab", [1000, 2048] if ON_GPU else [100])
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 50), (torch.bfloat16, None), (torch.float32, None)])
def test_codes(vocab: int, dtype: torch.dtype, most: int | None) -> None:
    """The same codes as the plain draw, where no two of the likeliest are equal and no draw falls on a border."""
    rows, hidden = (200, 1024) if ON_GPU else (8, 40)
    logits = randn(rows, vocab, scale=2.0, dtype=dtype)
    embedding = randn(vocab, hidden)
    sampled = torch.arange(rows, device=DEVICE) % 4 != 0
    temperature = torch.where(sampled, torch.rand(rows, device=DEVICE) + 0.5, 0.0)
    top_k = torch.tensor([50, 7, 50, 1] if most else [50, 0, 80, 3], device=DEVICE).repeat(rows // 4)
    top_p = torch.rand(rows, device=DEVICE) * 0.5 + 0.5
    uniforms = torch.rand(rows, 3, device=DEVICE)
    made = torch.full((rows, 3), -1, device=DEVICE)
    total = torch.randn(rows, hidden, device=DEVICE)
    before = total.clone()
    x = codes.draw_codes(logits, embedding, temperature, top_k, top_p, uniforms[:, 1], made[:, 1], total, most)
    scaled = logits.double() / temperature.clamp(min=1e-5).double()[:, None]
    expected = draw(scaled, top_k, top_p.double(), uniforms[:, 1].double())
    expected = torch.where(sampled, expected, logits.argmax(-1))
    values = logits.gather(1, made[:, 1:2])[:, 0]
    same = made[:, 1] == expected
    assert (values[~sampled] == logits.amax(-1)[~sampled]).all()
    assert same.float().mean() > 0.7, "ties of bfloat16 values may be told apart either way"
    assert (values == logits.gather(1, expected[:, None])[:, 0]).float().mean() > 0.9
    assert (made[:, 0] == -1).all() and (made[:, 2] == -1).all()
    torch.testing.assert_close(x, embedding[made[:, 1]], rtol=0, atol=0)
    torch.testing.assert_close(total, before + x.float())


def test_codes_have_the_frequencies_of_the_plain_draw() -> None:
    vocab, rows = 64, 400 if ON_GPU else 20
    logits = randn(1, vocab, scale=1.5, dtype=torch.bfloat16).expand(rows, -1).contiguous()
    uniforms = (torch.arange(rows, device=DEVICE) + 0.5) / rows
    made = torch.empty(rows, dtype=torch.int64, device=DEVICE)
    total = torch.zeros(rows, 16, device=DEVICE)
    ones = torch.ones(rows, device=DEVICE)
    top_k = torch.full((rows,), 50, device=DEVICE)
    codes.draw_codes(logits, randn(vocab, 16), ones, top_k, 0.8 * ones, uniforms, made, total)
    expected = draw(logits.double(), 50, 0.8, uniforms.double())
    value = logits[0].float()
    by_value = [torch.zeros(len(value.unique()), device=DEVICE) for _ in range(2)]
    rank = value.unique(return_inverse=True)[1]
    for counts, tokens in zip(by_value, (made, expected), strict=True):
        counts.index_add_(0, rank[tokens], ones)
    # Equal values are one group; the cut of top_p through a group keeps as many of it either way.
    assert (by_value[0] - by_value[1]).abs().max() <= 2


@pytest.mark.parametrize("vocab", [4097] if ON_GPU else [101])
def test_recent_tokens_are_penalised_and_drawn_anew(vocab: int) -> None:
    """As plain operations choose, in float64; some rows have logits that are no numbers."""
    rows, many = 320 if ON_GPU else 12, 16
    logits = randn(rows, vocab, scale=2.0, dtype=torch.float32)
    logits[:, -1] = logits.amax(1) + 1.0  # rows that may take the last token often do
    kinds = torch.arange(rows, device=DEVICE) % 4
    sampled = kinds != 0
    best = logits[:, :-1].topk(many, dim=1).indices
    past = torch.where(torch.rand(rows, many, device=DEVICE) < 0.5, best, -1).T.int().contiguous()
    not_last = (torch.rand(rows, device=DEVICE) < 0.7).int()
    temperature = torch.where(sampled, torch.rand(rows, device=DEVICE) + 0.3, 0.0)
    top_k = torch.tensor([0, 30, 0, 90], dtype=torch.int32, device=DEVICE).repeat(rows // 4)
    top_p = torch.rand(rows, device=DEVICE) * 0.5 + 0.5
    penalty = 1.0 + torch.rand(rows, device=DEVICE)
    uniforms = torch.rand(2, rows, device=DEVICE)
    draws = recent.RecentDraws(past, temperature, top_k, top_p, penalty, not_last, uniforms)
    valid, tokens = recent.choose_with_recent(logits, draws, 1.0, 0.9).T
    assert (valid == 1).all()
    seen = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=DEVICE)
    seen = seen.scatter(1, torch.where(past < 0, vocab, past).T.long(), True)[:, :-1]
    suppressed = torch.zeros_like(seen)
    suppressed[:, -1] = not_last > 0

    def plain(temperature: torch.Tensor, top_p: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        scale = torch.where(sampled, temperature, 1.0).double()
        how = RowSampling(sampled, scale, top_k.long(), top_p.double(), penalty.double(), uniforms.double())
        return choose_tokens(logits.double(), how, seen, suppressed)

    once = plain(temperature, top_p, uniforms[0])
    again = plain(torch.ones_like(temperature), torch.full_like(top_p, 0.9), uniforms[1])
    repeated = sampled & seen.gather(1, once[:, None])[:, 0]
    assert (tokens == torch.where(repeated, again, once)).float().mean() > 0.9, "few draws fall on a border"
    if ON_GPU:
        assert repeated.any() and not repeated.all()
    logits[0, 5], logits[1, 7] = torch.nan, torch.inf
    valid, tokens = recent.choose_with_recent(logits[:3], draws, 1.0, 0.9).T
    assert valid.tolist() == [0, 0, 1] and (tokens >= 0).all() and (tokens < vocab).all()


def test_frames_are_embedded() -> None:
    books, vocab, hidden = (10, 4096, 2560) if ON_GPU else (4, 30, 600)
    rows = 5
    embeddings, first = randn(books * vocab, hidden), randn(vocab, hidden)
    made = torch.randint(0, vocab, (books, rows), dtype=torch.int32, device=DEVICE)
    x = frames.embed_frames(made, embeddings, first, 0.3)
    places = made.long() + torch.arange(books, device=DEVICE)[:, None] * vocab
    expected = 0.3 * (embeddings.double()[places].sum(0) + first.double()[made[0].long()])
    assert x.dtype == embeddings.dtype and error(x, expected) < 1e-2
