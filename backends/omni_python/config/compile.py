"""Writes the Triton model repository of a pipeline: the orchestrator's model and one model for each process group."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import (
    DataType,
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelParameter,
    ModelTransactionPolicy,
)

from omni_python.config.errors import ConfigError, Problem
from omni_python.config.files import save_pipeline
from omni_python.config.hosts import check_host
from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import ProcessGroup, Topology, resolve_topology
from omni_python.proto.tensors import INPUTS, OUTPUTS, STAGE_INPUTS, STAGE_OUTPUTS, TensorSpec

_HEADER = "# Written by `omni compile`: change 1/pipeline.yaml of the pipeline's model and compile it again.\n"

# Triton's configuration calls strings what its clients call BYTES.
_DATA_TYPES = {"BYTES": "TYPE_STRING"}


def compile_pipeline(config: PipelineConfig, repository: Path, host: str | None = None) -> list[Path]:
    """Write the models of `config` into the folder `repository`; returns the files written, sorted.

    Of a pipeline on several hosts, those of one `host`; where the orchestrator is on another, the model with the
    pipeline's name keeps the host's processes. Models of an earlier compilation of the same pipeline that it no longer
    has are removed. Raises `ConfigError`, and writes nothing, if a model's folder is there that does not belong to this
    pipeline, or `host` is none of its hosts.
    """
    topology = resolve_topology(config)
    models = {model.name: model for model in model_configs(topology, check_host(config, host))}
    _check_owners(topology.pipeline, list(models), repository)
    for name in compiled_models(repository, topology.pipeline):
        if name not in models:
            shutil.rmtree(repository / name)

    written: list[Path] = []
    for name, model in models.items():
        version = repository / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        settings = repository / name / "config.pbtxt"
        settings.write_text(config_text(model), encoding="utf-8")
        written.append(settings)
        if name == topology.orchestrator_model:
            # With its name written out, another model_path does not rename the pipeline.
            save_pipeline(config.changed(name=topology.pipeline), version / "pipeline.yaml")
            written.append(version / "pipeline.yaml")
        else:
            # Triton wants the folder, and git keeps no empty ones.
            (version / ".gitkeep").touch()
            written.append(version / ".gitkeep")
    return sorted(written)


def compiled_models(repository: Path, pipeline: str) -> list[str]:
    """The models in `repository` that were compiled from the pipeline of that name, sorted."""
    return sorted(path.parent.name for path in repository.glob("*/config.pbtxt") if _owner(path) == pipeline)


def model_configs(topology: Topology, host: str = "") -> list[ModelConfig]:
    """Triton's configuration of every model of a host ("" for a pipeline on one): the orchestrator's, or its keeper's,
    then those of the process groups in their order."""
    orchestrator = _model_config(topology.orchestrator_model, INPUTS, OUTPUTS)
    orchestrator.instance_group.append(_instances(None))
    role = "orchestrator" if host == topology.orchestrator_host else "keeper"
    of_host = {"omni_host": host} if host else {}
    _set_parameters(orchestrator, omni_role=role, omni_pipeline=topology.pipeline, **of_host)
    models = [orchestrator]
    for group in topology.on_host(host):
        model = _model_config(group.triton_model, STAGE_INPUTS, STAGE_OUTPUTS)
        # A tensor-parallel replica is one instance too: rank 0, which starts the others.
        if group.replicas == 1:
            model.instance_group.append(_instances(group.gpu))
        else:
            model.instance_group.extend(replica_instances(group, range(group.replicas)))
        _set_parameters(model, omni_role="stage", omni_pipeline=topology.pipeline, omni_process=group.name, **of_host)
        models.append(model)
    return models


def model_with_replicas(topology: Topology, group: ProcessGroup, replicas: Collection[int]) -> str:
    """The configuration, as Triton's load API takes it (JSON), of a process's model with some of its replicas alone."""
    model = next(model for model in model_configs(topology, group.host) if model.name == group.triton_model)
    del model.instance_group[:]
    model.instance_group.extend(replica_instances(group, sorted(replicas)))
    return json_format.MessageToJson(model, preserving_proto_field_name=True)


def replica_instances(group: ProcessGroup, replicas: Iterable[int]) -> list[ModelInstanceGroup]:
    """A group of one instance for each of these replicas of a process.

    Triton calls the instance `<model>_r<replica>_0`, which tells its process who it is. The host policy tells the
    instances apart for Triton too: when a model is loaded with fewer or more of them, it ends and starts just these,
    and the others go on.
    """
    found = []
    for replica in replicas:
        instance = _instances(group.gpu_of(replica))
        instance.name, instance.host_policy = f"{group.triton_model}_r{replica}", f"r{replica}"
        found.append(instance)
    return found


def config_text(model: ModelConfig) -> str:
    """The text of a config.pbtxt, which reads back as the same configuration; equal ones give equal texts."""
    text = text_format.MessageToString(model)
    if text_format.Parse(text, ModelConfig()) != model:
        raise RuntimeError(f"the configuration of model {model.name!r} changes when it is printed and read back")
    return _HEADER + text


def _model_config(name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> ModelConfig:
    return ModelConfig(
        name=name,
        backend="omni_python",
        max_batch_size=0,
        input=[
            ModelInput(name=spec.name, data_type=_data_type(spec), dims=spec.dims, optional=spec.optional)
            for spec in inputs
        ],
        output=[ModelOutput(name=spec.name, data_type=_data_type(spec), dims=spec.dims) for spec in outputs],
        model_transaction_policy=ModelTransactionPolicy(decoupled=True),
    )


def _data_type(spec: TensorSpec) -> int:
    return DataType.Value(_DATA_TYPES.get(spec.dtype, f"TYPE_{spec.dtype}"))


def _instances(gpu: int | None) -> ModelInstanceGroup:
    if gpu is None:
        return ModelInstanceGroup(kind=ModelInstanceGroup.KIND_CPU, count=1)
    return ModelInstanceGroup(kind=ModelInstanceGroup.KIND_GPU, count=1, gpus=[gpu])


def _set_parameters(model: ModelConfig, **values: str) -> None:
    for key, value in values.items():
        model.parameters[key].CopyFrom(ModelParameter(string_value=value))


def _owner(settings: Path) -> str | None:
    """The pipeline from which a model was compiled; None for models of other origin."""
    try:
        model = text_format.Parse(settings.read_text(encoding="utf-8"), ModelConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError):
        return None
    if model.backend != "omni_python" or "omni_pipeline" not in model.parameters:
        return None
    return model.parameters["omni_pipeline"].string_value


def _check_owners(pipeline: str, models: list[str], repository: Path) -> None:
    problems = [
        Problem("name", f"the folder {repository / name} is not part of pipeline {pipeline!r}; choose another name")
        for name in models
        if any(path.is_file() for path in (repository / name).rglob("*"))
        and _owner(repository / name / "config.pbtxt") != pipeline
    ]
    if problems:
        raise ConfigError(problems)
