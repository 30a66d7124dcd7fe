"""What a Triton model's configuration and place say of its part in a pipeline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from omni_python.config.files import load_pipeline
from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import replica_of_instance
from omni_python.control.directory import server_directory
from omni_python.control.parent import server_pid
from omni_python.proto.errors import OmniError


@dataclass(frozen=True)
class ModelContext:
    """What a model's configuration and place say."""

    config: PipelineConfig
    process: str | None
    """None for the orchestrator, and for a keeper."""
    replica: int
    host: str
    """The one that the model was compiled for; "" for a pipeline on one host."""
    is_keeper: bool
    repository: Path
    directory: Path
    """The server's private socket directory."""


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
    directory = server_directory(config.endpoints.resolved_base_path, server_pid())
    replica, host = replica_of_instance(args["model_instance_name"]), parameters.get("omni_host", "")
    return ModelContext(config, process, replica, host, role == "keeper", repository, directory)
