"""Our layers against Hugging Face's on fresh random weights: logits, ragged batches, prompts then single tokens."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_python.layers.decoder import Deepstack
from omni_python.layers.kv_cache import PAGE_TOKENS, AttentionPlan, KVRow, PagedKVCache
from omni_python.models.loading.checkpoint import CheckpointError, read_tensors
from omni_python.models.qwen3_omni import tiny
from omni_python.models.qwen3_omni.architecture import model_config
from omni_python.models.qwen3_omni.talker import Talker, load_talker
from omni_python.models.qwen3_omni.thinker import Thinker, load_thinker
from omni_python.models.qwen3_omni.tiny_config import Dimensions
from omni_python.models.qwen3_omni.weights import fill
from tests.models.tiny_model import conversation, hf_model, hf_prompt

TOLERANCE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-4}


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that no test has seen before, of other dimensions than the usual ones."""
    out = tmp_path_factory.mktemp("fresh")
    size = Dimensions(thinker_layers=3, talker_layers=2, experts=5, experts_per_token=3, code_groups=17)
    seed = secrets.randbelow(2**31)
    print("checkpoint seed", seed)
    tiny.build(out, size, seed=seed)
    return out


@pytest.fixture(scope="module")
def hf(checkpoint: Path) -> Any:
    return hf_model(checkpoint)


@pytest.fixture(scope="module")
def thinker(checkpoint: Path) -> Thinker:
    return load_thinker(checkpoint, model_config(checkpoint), torch.float32, "cpu")


@pytest.fixture(scope="module")
def talker(checkpoint: Path) -> Talker:
    return load_talker(checkpoint, model_config(checkpoint), torch.float32, "cpu")


class Rows:
    """Rows of different lengths over one cache, with pages handed out in a random order."""

    def __init__(self, cache: PagedKVCache, lengths: list[int]) -> None:
        free = torch.randperm(cache.num_pages).tolist()
        counts = [-(-length // PAGE_TOKENS) for length in lengths]
        self.cache = cache
        self.pages = [[free.pop() for _ in range(count)] for count in counts]
        self.past = [0] * len(lengths)

    def plan(self, new: dict[int, int]) -> AttentionPlan:
        """`new` tokens of each row that is in the batch, by its number."""
        rows = [KVRow(self.pages[row], self.past[row], count) for row, count in new.items()]
        for row, count in new.items():
            self.past[row] += count
        return AttentionPlan.build(rows)


def test_thinker_equals_hugging_face(thinker: Thinker, hf: Any) -> None:
    """With deepstack and 3D positions: logits at every position, and every tapped hidden state."""
    talk = conversation(hf, secrets.randbelow(10**6), ("image", "audio", "video", "image"))
    prompt = hf_prompt(hf, talk)
    expected = hf.thinker.model(**prompt, output_hidden_states=True)
    embeds, positions = prompt["inputs_embeds"][0], prompt["position_ids"][:, 0]
    deepstack = Deepstack(prompt["visual_pos_masks"][0].nonzero()[:, 0], prompt["deepstack_visual_embeds"])
    for tap in range(4):
        rows = Rows(thinker.model.new_cache(16), [len(embeds)])
        hidden, tapped = thinker.model(embeds, positions, rows.cache, rows.plan({0: len(embeds)}), deepstack, tap)
        torch.testing.assert_close(tapped, expected.hidden_states[tap][0], **TOLERANCE)
        torch.testing.assert_close(hidden, expected.last_hidden_state[0], **TOLERANCE)
    logits = hf.thinker.lm_head(expected.last_hidden_state)[0]
    torch.testing.assert_close(thinker.lm_head(hidden), logits, **TOLERANCE)


@pytest.mark.parametrize("part", ["thinker", "talker"])
def test_ragged_batches_equal_single_rows(thinker: Thinker, talker: Talker, hf: Any, part: str) -> None:
    """Rows join a batch with their prompts while others decode; each gets what it gets from Hugging Face alone.

    The talker's layers have a shared expert.
    """
    model, reference = (thinker.model, hf.thinker.model) if part == "thinker" else (talker.model, hf.talker.model)
    lengths = [37, 5, 16, 17, 33, 16]
    embeds = [torch.randn(length, model.config.hidden) for length in lengths]
    expected = [reference(inputs_embeds=row[None]).last_hidden_state[0] for row in embeds]
    got: list[list[torch.Tensor]] = [[] for _ in lengths]
    rows = Rows(model.new_cache(16), lengths)
    steps = [
        {0: 30, 1: 4},  # prompts of two lengths
        {0: 1, 1: 1, 2: 7, 3: 7},  # some decode while others come, two of the same length
        {4: 31, 2: 1, 0: 1},
        {5: 15, 3: 9, 2: 1, 4: 1},  # a row goes on with several tokens
        {2: 1, 0: 1, 4: 1, 5: 1},
    ]
    for step in steps:
        parts, positions = [], []
        for row, count in step.items():
            at = rows.past[row]
            parts.append(embeds[row][at : at + count])
            positions.append(torch.arange(at, at + count))
        hidden, _ = model(torch.cat(parts), torch.cat(positions).expand(3, -1), rows.cache, rows.plan(step))
        for row, piece in zip(step, hidden.split(list(step.values())), strict=True):
            got[row].append(piece)
    for row, pieces in enumerate(got):
        joined = torch.cat(pieces)
        torch.testing.assert_close(joined, expected[row][: len(joined)], **TOLERANCE)
    assert sum(len(torch.cat(pieces)) for pieces in got) == sum(sum(step.values()) for step in steps)


def test_stale_pages_are_not_seen(thinker: Thinker) -> None:
    """What a former holder left in a page is masked, and cleared where it is not finite."""
    embeds = torch.randn(20, thinker.model.config.hidden)
    positions = torch.arange(20).expand(3, -1)

    def run(cache: PagedKVCache) -> torch.Tensor:
        rows = Rows(cache, [20])
        thinker.model(embeds[:19], positions[:, :19], cache, rows.plan({0: 19}))
        return thinker.model(embeds[19:], positions[:, 19:], cache, rows.plan({0: 1}))[0]

    fresh = run(thinker.model.new_cache(2))
    used = thinker.model.new_cache(2)
    full = Rows(used, [32])
    thinker.model(torch.randn(32, 64), torch.arange(32).expand(3, -1), used, full.plan({0: 32}))
    torch.testing.assert_close(run(used), fresh)
    broken = Rows(used, [32])
    thinker.model(torch.full((32, 64), torch.nan), torch.arange(32).expand(3, -1), used, broken.plan({0: 32}))
    assert run(used).isnan().any()
    used.clear([0, 1])
    torch.testing.assert_close(run(used), fresh)


def test_talker_projections_and_head_equal_hugging_face(talker: Talker, hf: Any) -> None:
    ids = torch.randint(0, 1500, (9,))
    hidden = torch.randn(9, hf.config.talker_config.thinker_hidden_size)
    expected = hf.talker.text_projection(hf.thinker.get_input_embeddings()(ids))
    torch.testing.assert_close(talker.project_text(ids), expected, **TOLERANCE)
    torch.testing.assert_close(talker.hidden_projection(hidden), hf.talker.hidden_projection(hidden), **TOLERANCE)
    x = torch.randn(3, hf.config.talker_config.text_config.hidden_size)
    torch.testing.assert_close(talker.codec_head(x), hf.talker.codec_head(x), **TOLERANCE)


def test_code_predictor_equals_hugging_face(talker: Talker, hf: Any) -> None:
    """Greedy codes of a batch, group after group; 17 groups need two pages a row."""
    predictor = hf.talker.code_predictor
    groups = hf.config.talker_config.num_code_groups
    size = hf.config.talker_config.text_config.hidden_size
    hidden, first = torch.randn(5, size), torch.randn(5, size)
    greedy = torch.zeros(5, dtype=torch.bool)
    for rows in (5, 2, 5):  # the cache is used again for every frame
        codes, total = talker.code_predictor(hidden[:rows], first[:rows], greedy[:rows], torch.zeros(rows, groups - 1))
        inputs = torch.stack([hidden[:rows], first[:rows]], dim=1)
        embeds = torch.zeros(rows, size)
        for group in range(groups - 1):
            logits = predictor(inputs_embeds=inputs).logits[:, -1]
            best = logits.topk(2).values
            chosen = logits.gather(1, codes[:, group : group + 1])[:, 0]
            assert (best[:, 0] - chosen).max() < 1e-4
            embed = predictor.model.codec_embedding[group](codes[:, group])
            embeds = embeds + embed
            inputs = torch.cat([inputs, embed[:, None]], dim=1)
        torch.testing.assert_close(total, embeds, **TOLERANCE)


def test_residual_codes_are_drawn_from_the_right_distribution(talker: Talker, hf: Any) -> None:
    """Of 4000 rows alike, the first residual code has the frequencies of top_k 50, top_p 0.8; greedy ones stay so."""
    size, groups = hf.config.talker_config.text_config.hidden_size, hf.config.talker_config.num_code_groups
    hidden, first = torch.randn(1, size), torch.randn(1, size) * 3
    rows = 4000
    generator = torch.Generator().manual_seed(5)
    sampled = torch.ones(rows, dtype=torch.bool)
    sampled[0] = False
    uniforms = torch.rand(rows, groups - 1, generator=generator)
    codes, _ = talker.code_predictor(hidden.expand(rows, -1), first.expand(rows, -1), sampled, uniforms)
    logits = hf.talker.code_predictor(inputs_embeds=torch.stack([hidden, first], dim=1)).logits[0, -1]
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    kept = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(50)(None, logits[None]))[0]
    probabilities = kept.softmax(-1)
    seen = torch.bincount(codes[1:, 0], minlength=len(logits)) / (rows - 1)
    assert not seen[kept.isinf()].any()
    assert (seen - probabilities).abs().max() < 0.04
    assert int(codes[0, 0]) == int(logits.argmax())


def test_fused_and_separate_experts_load_alike(checkpoint: Path, thinker: Thinker) -> None:
    """Published checkpoints hold three matrices an expert, newer transformers write two tensors a layer."""
    fused = {f"model.{name}": tensor for name, tensor in thinker.model.state_dict().items()}
    fused["lm_head.weight"] = thinker.lm_head.weight
    assert "model.layers.0.mlp.experts.gate_up_proj" in fused
    with torch.device("meta"):
        again = Thinker(model_config(checkpoint).thinker_config.text_config)
    fill(again, fused, "thinker")
    stored = read_tensors(checkpoint, "thinker.model.layers.1.mlp.experts.2.")
    up = stored["up_proj.weight"]
    torch.testing.assert_close(
        again.get_parameter("model.layers.1.mlp.experts.gate_up_proj")[2, len(up) :], up, rtol=0, atol=0
    )


def test_missing_weights_are_named(checkpoint: Path) -> None:
    tensors = {f"model.{name}": t for name, t in read_tensors(checkpoint, "thinker.model.").items()}
    tensors["lm_head.weight"] = read_tensors(checkpoint, "thinker.lm_head.")["weight"]
    text = model_config(checkpoint).thinker_config.text_config

    def load(without: str) -> None:
        with torch.device("meta"):
            module = Thinker(text)
        fill(module, {name: t for name, t in tensors.items() if name != without}, "thinker")

    load("nothing")
    with pytest.raises(CheckpointError, match=r"layers\.0\.input_layernorm\.weight"):
        load("model.layers.0.input_layernorm.weight")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.experts\.3\.up_proj\.weight"):
        load("model.layers.1.mlp.experts.3.up_proj.weight")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: pytest -m gpu where there is one")
def test_the_captured_code_predictor_does_the_same(checkpoint: Path, talker: Talker) -> None:
    """On a GPU it is replayed as a graph, with its rows padded to a power of two."""
    device = load_talker(checkpoint, model_config(checkpoint), torch.float32, "cuda")
    size = talker.model.config.hidden
    for rows in (3, 1, 4, 3):
        hidden, first = torch.randn(rows, size), torch.randn(rows, size)
        inputs = (hidden, first, torch.arange(rows) % 2 == 0, torch.rand(rows, talker.code_predictor.groups - 1))
        codes, total = talker.code_predictor(*inputs)
        on_gpu, total_on_gpu = device.code_predictor(*(tensor.cuda() for tensor in inputs))
        assert (on_gpu.cpu() == codes).float().mean() > 0.9  # a draw at a border may fall to its other side
        if (on_gpu.cpu() == codes).all():
            torch.testing.assert_close(total_on_gpu.cpu(), total, rtol=0, atol=1e-3)
