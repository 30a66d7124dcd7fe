"""The oracle: Hugging Face's own `generate` on the tiny checkpoint, recorded case by case.

Run in an environment of its own (see requirements.txt), never by the tests:

    PYTHONPATH=backends python -m tests.oracle.make_fixtures [CASE ...]

It shares no code with the pipeline but the builder of the checkpoint: media are read with the standard library, Pillow
and PyAV, prompts are made by the model's Hugging Face processor. For each case it tries one question after the other
until every greedy choice (thinker, talker, code predictor) wins by `MIN_MARGIN` and the speech ends as the case wants.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.oracle.fixture_cases import CASES, QUESTIONS, CaseSpec, fill
from tests.oracle.recorded_generation import MEDIA, Oracle

FIXTURES = Path(__file__).parent / "fixtures"
MIN_MARGIN = 0.005
MIN_ROUTER_MARGIN = 2e-5
SAMPLES_KEPT = 4096
"""Of each large tensor, that many values are recorded, evenly spread over the flattened tensor."""


def compact(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor as its shape, evenly spread values, and sums."""
    flat = tensor.reshape(-1).float().numpy()
    step = max(1, flat.size // SAMPLES_KEPT)
    total = flat.astype(np.float64)
    return {"shape": np.array(tensor.shape), "step": step, "values": flat[::step], "norm": np.sqrt((total**2).mean())}


def make(oracle: Oracle, name: str, spec: CaseSpec, checkpoint_hash: str) -> None:
    for question in QUESTIONS:
        messages = fill(spec.messages, question)
        inputs = oracle.inputs(messages)
        sound = any(p["type"] == "video" for m in messages for p in m["content"]) and "input_features" in inputs
        made = oracle.generate(inputs, spec, sound)
        margins = made["margins"]
        problem = problem_of(made, spec)
        print(f"{name}: {question!r} {problem or 'taken'}", {key: round(value, 5) for key, value in margins.items()})
        if problem is None:
            return save(name, spec, messages, inputs, made, checkpoint_hash)
    sys.exit(f"{name}: no question gives clear margins and the wanted end")


def problem_of(made: dict[str, Any], spec: CaseSpec) -> str | None:
    """Why this run makes no good fixture, or None."""
    margins = made["margins"]
    if min(margins[key] for key in ("thinker", "talker", "code_predictor")) < MIN_MARGIN:
        return "margin"
    if margins["router"] < MIN_ROUTER_MARGIN:
        return "router margin"
    if made["speech_ends"] != spec.speech_ends:
        return f"speech ends by {made['speech_ends']}"
    if spec.answer_ends not in (None, made["answer_ends"]):
        return f"answer ends by {made['answer_ends']}"
    if made["codes"].shape[1] < spec.min_frames:
        return f"{made['codes'].shape[1]} frames"
    if not made["text"].strip():
        return "empty answer"
    return None


def save(
    name: str,
    spec: CaseSpec,
    messages: list[dict[str, Any]],
    inputs: dict[str, Any],
    made: dict[str, Any],
    weights: str,
) -> None:
    arrays: dict[str, Any] = {
        "input_ids": inputs["input_ids"][0].numpy(),
        "position_ids": made["position_ids"],
        "answer": np.array(made["answer"]),
        "codes": made["codes"],
        "waveform": made["waveform"],
    }
    for key in ("image_grid_thw", "video_grid_thw"):
        if key in inputs:
            arrays[key] = inputs[key].numpy()
    features: dict[str, torch.Tensor] = {
        key: inputs[key] for key in ("pixel_values", "pixel_values_videos") if key in inputs
    }
    if "input_features" in inputs:
        mask = inputs["feature_attention_mask"].bool()
        arrays["audio_lengths"] = mask.sum(1).numpy()
        features["audio_features"] = inputs["input_features"].permute(0, 2, 1)[mask].T
    for key, tensor in features.items():
        arrays |= {f"{key}.{part}": value for part, value in compact(tensor).items()}
    np.savez_compressed(FIXTURES / f"{name}.npz", **arrays)
    files = sorted({part["file"] for message in messages for part in message["content"] if "file" in part})
    about = {
        "messages": messages,
        "voice": spec.voice,
        "thinker_max_tokens": spec.thinker_tokens,
        "talker_max_tokens": spec.talker_tokens,
        "text": made["text"],
        "answer_ends": made["answer_ends"],
        "speech_ends": made["speech_ends"],
        "rope_delta": made["rope_delta"],
        "margins": made["margins"],
        "checkpoint": weights,
        "media_sha256": {file: hashlib.sha256((MEDIA / file).read_bytes()).hexdigest() for file in files},
        "versions": versions(),
    }
    (FIXTURES / f"{name}.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "torchvision", "numpy", "pillow", "av")}


def declare_torchvision_operators() -> torch.library.Library:
    """Let torchvision import beside a torch that it was not built for.

    Its compiled operators are then absent, but image processing uses none of them; only their names must exist,
    as long as the returned library lives.
    """
    names = "nms qnms roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool _roi_pool_backward "
    names += "ps_roi_pool _ps_roi_pool_backward qroi_align deform_conv2d _deform_conv2d_backward"
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in names.split():
        operators.define(f"{name}(Tensor input) -> Tensor")
    return operators


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    wanted = parser.parse_args().cases or list(CASES)
    try:
        import torchvision  # type: ignore[import-not-found]  # noqa: F401
    except RuntimeError:
        for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        operators = declare_torchvision_operators()  # noqa: F841
    from omni_python.models.qwen3_omni import tiny

    torch.manual_seed(0)
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        weights = tiny.build(directory)
        assert weights == tiny.DEFAULT_HASH, weights
        oracle = Oracle(Path(directory))
        for name in wanted:
            make(oracle, name, CASES[name], weights)


if __name__ == "__main__":
    main()
