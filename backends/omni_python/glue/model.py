"""Which of the two kinds of model this process is."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from omni_python.config.files import load_pipeline
from omni_python.config.schema import PipelineConfig
from omni_python.control.directory import server_directory
from omni_python.proto.errors import OmniError

_OLDEST_SERVER_FOR_NUMPY_2 = "25.01"
"""Up to 24.10 (seen) the stub silently turns every array of numpy 2 into an empty tensor."""


class Model(Protocol):
    """What Triton asks of a model after `initialize`."""

    def execute(self, requests: Sequence[Any]) -> None: ...
    def finalize(self) -> None: ...


@dataclass(frozen=True)
class ModelContext:
    """What a model's configuration and place say."""

    config: PipelineConfig
    process: str | None
    """None for the orchestrator."""
    repository: Path
    directory: Path
    """The server's private socket directory."""


def create_model(args: dict[str, str]) -> Model:
    """The model that `args`, those of Triton's `initialize`, describe. Raises `OmniError` with what to mend."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    _check_numpy(os.environ.get("NVIDIA_TRITON_SERVER_VERSION", "24.10"))
    context = read_context(args)
    if context.process is None:
        from omni_python.glue.orchestrator import Orchestrator

        return Orchestrator(context)
    from omni_python.glue.stage import StageModel

    return StageModel(context)


def read_context(args: dict[str, str]) -> ModelContext:
    parameters = {name: value["string_value"] for name, value in json.loads(args["model_config"])["parameters"].items()}
    try:
        pipeline, role = parameters["omni_pipeline"], parameters["omni_role"]
        process = parameters["omni_process"] if role == "stage" else None
    except KeyError as missing:
        raise OmniError(
            f"model {args['model_name']}: config.pbtxt lacks the parameter {missing}; write it with `omni compile`"
        ) from None
    repository = Path(args["model_repository"]).parent
    config = load_pipeline(repository / pipeline / "1" / "pipeline.yaml")
    # The stub is a child of tritonserver: all models of one server meet in one directory.
    directory = server_directory(config.endpoints.resolved_base_path, os.getppid())
    return ModelContext(config, process, repository, directory)


def _check_numpy(server_version: str) -> None:
    if int(np.__version__.split(".")[0]) >= 2 and server_version < _OLDEST_SERVER_FOR_NUMPY_2:
        raise OmniError(
            f"Triton {server_version} loses the contents of numpy {np.__version__}'s arrays; install numpy<2 in the "
            f"environment of this server's `python3`"
        )
