"""The tiny checkpoint on a GPU in float32, inside tritonserver, against what Hugging Face made of it on a CPU.

    PYTHONPATH=.:backends python3 scripts/check_gpu.py CHECKPOINT [--gpu 0] [--dtype float32|bfloat16]
        [--engine torch|sglang]

CHECKPOINT is what `omni checkpoint` builds. In float32 texts must be equal and waveforms within 1e-4; bfloat16 only
has to answer, since its choices may differ where two tokens are nearly as likely: how far it agrees is printed.
A case that fails prints its error, and the others go on.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from tests.oracle.cases import CASES, Case, load_case

from omni_python.client import OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import TritonServer

ON_ENGINE = ("thinker", "talker_ar")
MODELS = ("image_encoder", "audio_encoder", "thinker", "talker_ar", "code2wav")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--engine", default="torch", help="of thinker and talker: torch or sglang")
    parser.add_argument("--server-log", type=Path)
    args = parser.parse_args()
    config = on_gpu(args.checkpoint, args.gpu, args.dtype, args.engine)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        compile_pipeline(config, Path(folder))
        options = ServerOptions(model_repository=Path(folder))
        with (
            TritonServer.start(options, log=args.server_log, timeout_s=400) as server,
            OmniClient(server.grpc_url, "qwen3_omni") as client,
        ):
            for name in CASES:
                try:
                    wrong += not agrees(client, load_case(name))
                except Exception as error:
                    print(f"{name}: {type(error).__name__}: {error}", flush=True)
                    wrong += 1
    if args.dtype == "float32" and wrong:
        raise SystemExit(f"{wrong} of {len(CASES)} cases differ")


def on_gpu(checkpoint: Path, gpu: int, dtype: str, engine: str) -> Qwen3OmniSpeechPipelineConfig:
    """The pipeline with all its models on a GPU."""
    stages = []
    for stage in Qwen3OmniSpeechPipelineConfig(model_path="none").stages:
        if stage.name in MODELS:
            arguments = {**stage.factory_args, "dtype": dtype, "total_gpu_memory_fraction": 0.15}
            if stage.name in ON_ENGINE:
                arguments["engine"] = engine
            stage = stage.model_copy(update={"gpu": gpu, "factory_args": arguments})
        stages.append(stage)
    return Qwen3OmniSpeechPipelineConfig(model_path=str(checkpoint.resolve()), stages=stages)


def agrees(client: OmniClient, case: Case) -> bool:
    """Whether the answer to `case` is the oracle's; prints how far it is."""
    answer = client.chat(messages=case.openai_messages(), voice=case.voice, sampling=case.sampling())
    same = answer.text == case.text
    until = next((at for at, pair in enumerate(zip(answer.text, case.text, strict=False)) if pair[0] != pair[1]), None)
    shaped = answer.audio.shape == case.waveform.shape
    error = float(np.abs(answer.audio - case.waveform).max()) if shaped and len(case.waveform) else 0.0
    text = "equal" if same else f"different from character {until} on of {len(case.text)}"
    print(f"{case.name}: text {text}, samples equal {shaped}, largest difference {error:.1e}", flush=True)
    return same and shaped and error < 1e-4


if __name__ == "__main__":
    main()
