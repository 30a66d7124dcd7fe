"""Which way a payload goes from one process to another, and why. Decided for each edge and payload."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from omni_python.config.schema import PipelineConfig, RelayConfig
from omni_python.config.topology import Edge, ProcessGroup, Topology

INLINE_LIMIT = 16 * 1024
"""Bytes of tensors up to which a payload rides in its message: below it a slot costs more than the copy."""

DEVICE_RELAYS = {"nixl": "nixl_cuda", "nccl": "nccl_cuda"}
"""What carries tensors from GPU to GPU between hosts, by backend; others carry them through the host."""


def host_way(nbytes: int, same_host: bool, backend: str) -> str:
    """How a payload's tensors on the host travel: "inline", or by which relay."""
    if nbytes <= INLINE_LIMIT:
        return "inline"
    return "shm" if same_host else backend


def device_way(same_host: bool, backend: str) -> str | None:
    """How tensors on a GPU travel where both sides have it: by which relay, or None: they are copied to the host and
    go as those do."""
    return "cuda_shm" if same_host else DEVICE_RELAYS.get(backend)


def host_identity() -> str:
    """Equal in two processes that can open each other's memory: one kernel, one PID namespace, one value of the
    environment variable OMNI_RELAY_HOST (for processes that only seem to share a host)."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.environ.get('OMNI_RELAY_HOST', '')}"


@dataclass(frozen=True)
class Way:
    """What `payload` is (for example "up to 16 KB"), how it travels, and why."""

    payload: str
    relay: str
    reason: str


def explain(config: PipelineConfig, topology: Topology, edge: Edge) -> Iterator[Way]:
    """All ways of an edge."""
    if edge.same_process:
        yield Way("everything", "by reference", "same process")
        return
    yield Way(f"up to {INLINE_LIMIT >> 10} KB", "in the message", "cheaper than a slot and its credit")
    source, target = topology.group_of(edge.source), topology.group_of(edge.target)
    sender, receiver = relay_gpu(config, source), relay_gpu(config, target)
    if source.host != target.host:
        if sender is not None and receiver is not None and (relay := device_way(False, config.relay_backend)):
            yield Way("tensors on the GPU", relay, f"hosts {source.host} and {target.host}, relay_backend")
        yield Way("larger tensors", config.relay_backend, f"hosts {source.host} and {target.host}, relay_backend")
        return
    if sender is not None and receiver is not None:
        ours, theirs = _replica_gpus(source), _replica_gpus(target)
        how = f"same GPU {ours}, nothing is copied" if ours == theirs == str(sender) else f"GPU {ours} to GPU {theirs}"
        yield Way("tensors on the GPU", "cuda_shm", f"same host, {how}")
    elif source.gpu is not None:
        why = "the sender's relay.device is cpu" if sender is None else "the receiver keeps no pool on a GPU"
        yield Way("tensors on the GPU", "shm", f"{why}: copied to the host first")
    yield Way("larger tensors on the host", "shm", "same host")
    if config.relay_backend != "shm" and not config.hosts:
        yield Way("processes on other hosts", config.relay_backend, "relay_backend")
        if sender is not None and receiver is not None and (relay := device_way(False, config.relay_backend)):
            yield Way("there from GPU to GPU", relay, f"relay_backend {config.relay_backend}")


def _replica_gpus(group: ProcessGroup) -> str:
    return "|".join(dict.fromkeys(str(group.gpu_of(replica)) for replica in range(group.replicas)))


def relay_gpu(config: PipelineConfig, group: ProcessGroup, replica: int = 0) -> int | None:
    """The GPU where a replica of a process keeps a pool: its own, unless a stage of it asks for relay.device cpu."""
    relays = [config.stage(name).relay or RelayConfig() for name in group.stages]
    return None if any(relay.device == "cpu" for relay in relays) else group.gpu_of(replica)
