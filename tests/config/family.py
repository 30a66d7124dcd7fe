"""A small model family for the tests: factories, functions, and a pipeline with fan-out, fan-in and streams."""

from __future__ import annotations

from typing import Any

from omni_python.config import PipelineConfig, StageConfig

HERE = "tests.config.family"


def create_cpu(width: int = 1) -> dict[str, Any]:
    return {"width": width}


def create_encoder(model_path: str, gpu_id: int | None = None, *, dtype: str = "float32") -> dict[str, Any]:
    return {"model_path": model_path, "gpu_id": gpu_id, "dtype": dtype}


def create_engine(model_path: str, gpu_id: int, max_batch: int, **options: Any) -> dict[str, Any]:
    return {"model_path": model_path, "gpu_id": gpu_id, "max_batch": max_batch, **options}


def create_ranked(model_path: str, gpu_id: int, tp_rank: int, tp_size: int) -> dict[str, Any]:
    return {"model_path": model_path, "gpu_id": gpu_id, "tp_rank": tp_rank, "tp_size": tp_size}


def merge(payloads: dict[str, Any]) -> Any:
    return payloads


def project(payload: Any) -> Any:
    return payload


def route(request_id: str, output: Any) -> list[str]:
    return ["decode"]


NOT_A_FUNCTION = 3


class SpeechPipelineConfig(PipelineConfig):
    stages: list[StageConfig] = [
        StageConfig(
            name="prepare",
            process="front",
            factory=f"{HERE}.create_cpu",
            next=["encoder", "aggregate"],
            project_payload={"encoder": f"{HERE}.project"},
        ),
        StageConfig(name="encoder", process="encoder", factory=f"{HERE}.create_encoder", next="aggregate"),
        StageConfig(
            name="aggregate",
            process="front",
            factory=f"{HERE}.create_cpu",
            wait_for=["prepare", "encoder"],
            merge_fn=f"{HERE}.merge",
            next="thinker",
        ),
        StageConfig(
            name="thinker",
            process="thinker",
            factory=f"{HERE}.create_engine",
            factory_args={"max_batch": 8},
            gpu=0,
            next=["decode", "talker"],
            route_fn=f"{HERE}.route",
            stream_to=["talker"],
        ),
        StageConfig(name="decode", process="decode", factory=f"{HERE}.create_cpu", terminal=True),
        StageConfig(
            name="talker",
            process="talker",
            factory=f"{HERE}.create_engine",
            factory_args={"max_batch": 4},
            gpu=1,
            next="vocoder",
            stream_to=["vocoder"],
        ),
        StageConfig(name="vocoder", process="talker", factory=f"{HERE}.create_encoder", gpu=1, terminal=True),
    ]
