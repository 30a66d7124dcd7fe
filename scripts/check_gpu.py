"""The tiny checkpoint on a GPU in float32, inside tritonserver, against what Hugging Face made of it on a CPU.

    PYTHONPATH=.:backends python3 scripts/check_gpu.py CHECKPOINT [--gpu 0] [--dtype float32|bfloat16]

CHECKPOINT is what `omni checkpoint` builds. In float32 texts must be equal and waveforms within 1e-3; bfloat16 only
has to answer, since its choices may differ where two tokens are nearly as likely.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from tests.oracle.cases import CASES, load_case

from omni_python.client import OmniClient
from omni_python.config.compile import compile_pipeline
from omni_python.models.qwen3_omni.config import Qwen3OmniSpeechPipelineConfig
from omni_python.serve.triton_server import ServerOptions, TritonServer

MODELS = ("image_encoder", "audio_encoder", "thinker", "talker_ar", "code2wav")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    stages = []
    for stage in Qwen3OmniSpeechPipelineConfig(model_path="none").stages:
        if stage.name in MODELS:
            arguments = {**stage.factory_args, "dtype": args.dtype, "total_gpu_memory_fraction": 0.1}
            stage = stage.model_copy(update={"gpu": args.gpu, "factory_args": arguments})
        stages.append(stage)
    config = Qwen3OmniSpeechPipelineConfig(model_path=str(args.checkpoint.resolve()), stages=stages)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        compile_pipeline(config, Path(folder))
        with (
            TritonServer.start(ServerOptions(model_repository=Path(folder))) as server,
            OmniClient(server.grpc_url, "qwen3_omni") as client,
        ):
            for name in CASES:
                case = load_case(name)
                answer = client.chat(messages=case.openai_messages(), voice=case.voice, sampling=case.sampling())
                same = answer.text == case.text
                shaped = answer.audio.shape == case.waveform.shape
                error = float(np.abs(answer.audio - case.waveform).max()) if shaped and len(case.waveform) else 0.0
                print(f"{name}: text equal {same}, samples equal {shaped}, largest difference {error:.1e}", flush=True)
                wrong += not (same and shaped and error < 1e-3)
    if args.dtype == "float32" and wrong:
        raise SystemExit(f"{wrong} of {len(CASES)} cases differ")


if __name__ == "__main__":
    main()
