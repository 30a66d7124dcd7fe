"""The declaration of pipelines: models, rules, topology, YAML files, and the Triton model repository made of them."""

from omni_python.config.errors import ConfigError, Problem
from omni_python.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from omni_python.config.topology import Edge, ProcessGroup, Topology, resolve_topology

__all__ = [
    "ConfigError",
    "Edge",
    "EndpointsConfig",
    "PipelineConfig",
    "Problem",
    "ProcessGroup",
    "RelayConfig",
    "StageConfig",
    "Topology",
    "resolve_topology",
]
