"""Checks Qwen2.5-Omni on a GPU: `python scripts/check_qwen2_5_omni_gpu.py [--gpu N]`.

The tiny checkpoint, all stages on the GPU in float32: greedy answers to text, sound and a picture must be those of
Hugging Face's `generate` on the CPU, and their speech within 1e-3 of its. `--cpu` runs the same without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from tests.models.qwen2_5_omni.test_pipeline import Ask, answers, png, prompt, read_by_hugging_face, text_of  # noqa: E402
from tests.oracle.qwen2_5_omni_reference import Reference  # noqa: E402
from tests.pipeline.harness import running  # noqa: E402

from omni_python.models.qwen2_5_omni import tiny  # noqa: E402
from omni_python.models.qwen2_5_omni.config import Qwen25OmniPipelineConfig  # noqa: E402
from omni_python.proto.request import AudioPart, ContentPart, ImagePart  # noqa: E402

ON_GPU = ("media_encoder", "thinker", "talker", "token2wav")
CLOSE = 1e-3
CLEAR = 5e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="all stages on the CPU")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny"
        tiny.build(path)
        check(path, Path(folder), None if args.cpu else args.gpu)


def check(path: Path, folder: Path, gpu: int | None) -> None:
    overrides: dict[str, Any] = {"thinker": {"kv_tokens": 4096}, "talker": {"kv_tokens": 4096}}
    for stage in ("media_encoder", "thinker", "talker"):
        overrides.setdefault(stage, {})["dtype"] = "float32"
    config = Qwen25OmniPipelineConfig(model_path=str(path), runtime_overrides=overrides)
    if gpu is not None:
        stages = [s.model_copy(update={"gpu": gpu}) if s.name in ON_GPU else s for s in config.stages]
        config = config.model_copy(update={"stages": stages})
    reference = Reference(path)
    random = np.random.default_rng(6)
    clip = random.normal(0, 0.1, 16000).astype(np.float32)
    picture = random.integers(0, 256, (84, 112, 3), np.uint8)
    seen: list[ContentPart] = [AudioPart(samples=clip, sample_rate=16000), ImagePart(png(picture))]
    with running(config, folder) as pipeline:
        for ask in (
            Ask("Hello!", max_codes=60),
            Ask("What time is it?", voice="ethan", seed=11, max_codes=60),
            Ask("What is it?", max_tokens=8, media=[*seen]),
        ):
            read = read_by_hugging_face(path, [clip], [picture]) if ask.media else {}
            sizes = (ask.max_tokens, ask.max_codes, ask.seed, ask.penalty)
            expected = reference(prompt(path, ask), ask.voice.capitalize(), *sizes, **read)
            (answer,) = answers(pipeline, ask)
            same = answer.text == text_of(path, expected.answer) and answer.samples.shape == expected.waveform.shape
            error = float(np.abs(answer.samples - expected.waveform).max()) if same else float("inf")
            told = {"asked": ask.text, "margin": expected.margin, "codes": len(expected.codes), "error": error}
            print(json.dumps(told), flush=True)
            if expected.margin > CLEAR and error > CLOSE:
                raise SystemExit(f"{ask.text!r}: the answer is not Hugging Face's")
    print("ok")


if __name__ == "__main__":
    main()
