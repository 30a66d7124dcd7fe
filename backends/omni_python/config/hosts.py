"""Pipelines on several hosts: where each process listens, and the rules that let hosts work together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from omni_python.config.declaration import PipelineDeclaration
from omni_python.config.errors import Problem, config_error, did_you_mean, listed
from omni_python.config.parts import HostConfig
from omni_python.config.topology import Topology, resolve_topology

LAST_PORT = 65535

_NETWORK_BACKENDS = ("nixl",)
_WHY_NOT = {
    "shm": "shared memory ends at a host",
    "nccl": "its groups meet on the loopback interface",
    "mooncake": "its engine listens on every interface, for anybody",
}


@dataclass(frozen=True)
class Listener:
    """Where a process of a pipeline hears those of other hosts."""

    host: str
    address: str
    port: int

    @property
    def url(self) -> str:
        """As sockets take it: "tcp://address:port"."""
        return f"tcp://{url_host(self.address)}:{self.port}"


def url_host(address: str) -> str:
    """An address as it stands in front of a port."""
    return f"[{address}]" if ":" in address else address


def listeners(config: PipelineDeclaration) -> dict[tuple[str | None, int], Listener]:
    """By process (None: the orchestrator) and replica, each process's own; empty for a pipeline on one host.

    Ports count up from the host's: the orchestrator's is its host's first.
    """
    topology = resolve_topology(config)
    used = dict.fromkeys(config.hosts, 0)
    found: dict[tuple[str | None, int], Listener] = {}

    def listen(host: str, process: str | None, replica: int) -> None:
        given = config.hosts[host]
        found[process, replica] = Listener(host, given.address, given.port + used[host])
        used[host] += 1

    if config.hosts:
        listen(topology.orchestrator_host, None, 0)
        for group in topology.groups:
            for replica in range(group.replicas):
                listen(group.host, group.name, replica)
    return found


def check_host(config: PipelineDeclaration, host: str | None) -> str:
    """The host to compile for, "" for a pipeline on one. Raises `ConfigError` unless `host` names one of several."""
    if not config.hosts:
        if host is not None:
            raise config_error("hosts", f"there are none, so that --host {host} means nothing; leave it out")
        return ""
    if host is None:
        raise config_error("hosts", f"each has a repository of its own; choose one with --host: {listed(config.hosts)}")
    if host not in config.hosts:
        raise config_error(
            "hosts", f"there is no host {host!r}{did_you_mean(host, config.hosts)} (hosts: {listed(config.hosts)})"
        )
    return host


def check_hosts(config: PipelineDeclaration) -> Iterator[Problem]:
    """What is wrong with the hosts, in a pipeline whose stages have unique names."""
    unknown = list(_unknown_hosts(config))
    yield from unknown
    if unknown or not config.hosts:
        return
    topology = resolve_topology(config)
    yield from _check_processes(config, topology)
    yield from _check_addresses(config)
    yield from _check_ports(config)
    used = {topology.orchestrator_host, *(group.host for group in topology.groups)}
    for name in config.hosts:
        if name not in used:
            yield Problem(f"hosts.{name}", "runs nothing; give it a stage, or leave it out")
    if len(used) < 2:
        return
    if config.endpoints.key_file is None:
        yield Problem(
            "endpoints.key_file",
            "is required with several hosts: the file on each with the pipeline's key (`omni key FILE` makes one)",
        )
    if config.relay_backend not in _NETWORK_BACKENDS and (crossing := _crossing(topology)):
        yield Problem(
            "relay_backend",
            f"is {config.relay_backend!r}, but {crossing} are on different hosts and {_WHY_NOT[config.relay_backend]}; "
            f"use {listed(_NETWORK_BACKENDS)}",
        )


def _unknown_hosts(config: PipelineDeclaration) -> Iterator[Problem]:
    named = [(f"stages.{stage.name}.host", stage.host) for stage in config.stages]
    for path, name in [("orchestrator_host", config.orchestrator_host), *named]:
        if name is not None and name not in config.hosts:
            yield Problem(
                path, f"there is no host {name!r}{did_you_mean(name, config.hosts)} (hosts: {listed(config.hosts)})"
            )


def _check_processes(config: PipelineDeclaration, topology: Topology) -> Iterator[Problem]:
    for group in topology.groups:
        for name in group.stages[1:]:
            host = config.host_of(config.stage(name))
            if host != group.host:
                yield Problem(
                    f"stages.{name}.host",
                    f"is {host!r}, but {group.stages[0]!r} in the same process {group.name!r} is on {group.host!r}; "
                    "a process is on one host",
                )


def _check_addresses(config: PipelineDeclaration) -> Iterator[Problem]:
    for name, host in config.hosts.items():
        path = f"hosts.{name}.address"
        try:
            address = ipaddress.ip_address(host.address)
        except ValueError:
            if host.address == "localhost" and len(config.hosts) > 1:
                yield Problem(path, "is 'localhost', which for every other host is that host itself")
            continue
        if address.is_unspecified:
            yield Problem(path, f"{host.address} is every interface; name the one address that other hosts reach")
        elif address.is_multicast:
            yield Problem(path, f"{host.address} is no address of one host")
        elif address.is_loopback and not all(map(_is_loopback, config.hosts.values())):
            yield Problem(path, f"{host.address} is this host alone; name the address that other hosts reach")


def _is_loopback(host: HostConfig) -> bool:
    try:
        return ipaddress.ip_address(host.address).is_loopback
    except ValueError:
        return host.address == "localhost"


def _check_ports(config: PipelineDeclaration) -> Iterator[Problem]:
    taken: dict[tuple[str, int], str] = {}
    for listener in listeners(config).values():
        path = f"hosts.{listener.host}.port"
        if listener.port > LAST_PORT:
            yield Problem(path, f"leaves no port up to {LAST_PORT} for each process of the host; choose a lower one")
            return
        other = taken.setdefault((listener.address, listener.port), listener.host)
        if other != listener.host:
            yield Problem(path, f"port {listener.port} of {listener.address} is that of a process of {other!r}, too")
            return


def _crossing(topology: Topology) -> str:
    """Two parts of the pipeline between which payloads go from host to host; "" if there are none."""
    for edge in topology.edges:
        source, target = topology.group_of(edge.source), topology.group_of(edge.target)
        if source.host != target.host:
            return f"{edge.source} and {edge.target}"
    for stage in (topology.entry_stage, *topology.terminal_stages):
        if topology.group_of(stage).host != topology.orchestrator_host:
            return f"the orchestrator and {stage}"
    return ""
