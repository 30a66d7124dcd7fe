"""Where the processes of a pipeline on several hosts are, and how each meets the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omni_python.config.hosts import listeners
from omni_python.config.schema import PipelineConfig
from omni_python.config.topology import resolve_topology
from omni_python.control.curve import load_key
from omni_python.control.network import NetworkPlace
from omni_python.proto.errors import OmniError


@dataclass(frozen=True)
class Place:
    """`coordinator` is the URL of a coordinator on another host, "" where it is on this one."""

    network: NetworkPlace
    coordinator: str = ""


def process_place(config: PipelineConfig, host: str, process: str | None, replica: int = 0) -> Place | None:
    """The place of a process (None: the orchestrator), whose model was compiled for `host`; None for a pipeline on one
    host.

    Raises `OmniError` where it belongs to another host, or there is no key.
    """
    if not _is_spread(config):
        return None
    listener = listeners(config)[process, replica]
    if listener.host != host:
        raise OmniError(
            f"{process or 'the orchestrator'} is on host {listener.host!r}, and its model was compiled for {host!r}: "
            "compile the model repositories of both again"
        )
    return _place(config, host, listener.port)


def keeper_place(config: PipelineConfig, host: str) -> Place | None:
    """The place of a host's keeper, which other hosts do not call."""
    return _place(config, host, 0) if _is_spread(config) else None


def _is_spread(config: PipelineConfig) -> bool:
    topology = resolve_topology(config)
    return any(group.host != topology.orchestrator_host for group in topology.groups)


def _place(config: PipelineConfig, host: str, port: int) -> Place:
    assert config.endpoints.key_file is not None  # says the configuration's validation
    key = load_key(Path(config.endpoints.key_file))
    coordinator = listeners(config)[None, 0]
    network = NetworkPlace(host, config.hosts[host].address, port, key, config.limits.silence_s)
    return Place(network, "" if coordinator.host == host else coordinator.url)
