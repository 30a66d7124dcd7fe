"""What to serve, and where: the options of a tritonserver, and its command line."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from omni_python.serve.environment import Installation, ServerSetupError

SHARED_MEMORY = Path("/dev/shm")

TRACE_HEADER = "(?i)traceparent"
"""The header, as a pattern, that Triton passes on to the pipelines as a parameter: W3C Trace Context."""

_STUB_REGION = 4 << 20  # 1 MiB at the start, which grows in steps of 1 MiB with the responses in flight


def _new_name() -> str:
    return f"omni_{os.getpid()}_{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What to serve, and where. A port of 0 stands for a free one.

    `models` are loaded at the start (explicit mode, in which a dead model can be loaded again; `*` is all). `name` is
    the server's id and begins the names of its shared-memory regions; by default a new one. Building an AR stage can
    take minutes (imports, kernels, CUDA graphs), hence the long `stub_timeout_s`. `extra` goes to tritonserver.
    """

    model_repository: Path
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    models: tuple[str, ...] = ("*",)
    backend_directory: Path | None = None
    name: str = ""
    stub_timeout_s: int = 600
    exit_timeout_s: int = 30
    extra: tuple[str, ...] = ()

    def resolved(self) -> ServerOptions:
        """The same with free ports and a name filled in, and an absolute repository.

        Raises ServerSetupError if there is no repository, or `host` cannot be listened on.
        """
        if not self.model_repository.is_dir():
            raise ServerSetupError(f"there is no model repository at {self.model_repository.resolve()}")
        ports = free_ports(self.host, [self.http_port, self.grpc_port, self.metrics_port])
        return replace(
            self,
            model_repository=self.model_repository.resolve(),
            http_port=ports[0],
            grpc_port=ports[1],
            metrics_port=ports[2],
            name=self.name or _new_name(),
        )

    def check_ports(self) -> None:
        """Raise ServerSetupError for a port in use, which tritonserver would find out with all its models loaded."""
        for name, port in (("HTTP", self.http_port), ("gRPC", self.grpc_port), ("metrics", self.metrics_port)):
            try:
                socket.create_server((self.host, port)).close()
            except (OSError, UnicodeError) as error:
                raise cannot_listen(f"{self.host}:{port} for {name}", error) from None

    def check_shared_memory(self, free: int | None = None) -> None:
        """Raise ServerSetupError where /dev/shm has not the `free` bytes for the regions of all stubs, which would fail
        to start, or lose responses later, each in its own way."""
        models = len(list(self.model_repository.glob("*/config.pbtxt")))
        free = shutil.disk_usage(SHARED_MEMORY).free if free is None else free
        if free < models * _STUB_REGION:
            raise ServerSetupError(
                f"{SHARED_MEMORY} has {free >> 20} MiB free, and {models} models need {models * _STUB_REGION >> 20}: "
                "make it larger (docker run --shm-size=1g; in Kubernetes an emptyDir of medium Memory)"
            )

    def command(self, installation: Installation) -> list[str]:
        """The command line of `installation`'s server."""
        return [
            str(installation.executable),
            f"--id={self.name}",
            f"--model-repository={self.model_repository}",
            f"--backend-directory={self.backend_directory or installation.backend_directory}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in self.models),
            # The configurations are complete; guessing at them would start every stub twice.
            "--disable-auto-complete-config",
            f"--backend-config=python,shm-region-prefix-name={self.name}_",
            f"--backend-config=python,stub-timeout-seconds={self.stub_timeout_s}",
            f"--exit-timeout-secs={self.exit_timeout_s}",
            *(f"--{service}-address={self.host}" for service in ("http", "grpc", "metrics")),
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            *(f"--{service}-header-forward-pattern={TRACE_HEADER}" for service in ("http", "grpc")),
            *self.extra,
        ]


def free_ports(host: str, ports: list[int]) -> list[int]:
    """`ports` with each 0 replaced by a port that is free now, all different. Raises ServerSetupError where there is
    none on this host."""
    with contextlib.ExitStack() as held:
        result = []
        for port in ports:
            if port == 0:
                try:
                    holder = held.enter_context(socket.create_server((host, 0)))
                except (OSError, UnicodeError) as error:
                    raise cannot_listen(f"a free port of {host}", error) from None
                port = holder.getsockname()[1]
            result.append(port)
        return result


def cannot_listen(where: str, error: OSError | UnicodeError) -> ServerSetupError:
    """What to tell of an error of `socket.create_server`."""
    number = (isinstance(error, OSError) and error.errno) or 0
    if number > 0 and number != errno.EADDRNOTAVAIL:
        return ServerSetupError(f"cannot listen on {where}: {os.strerror(number)}")
    reason = "not a valid name"
    if isinstance(error, OSError):  # the resolver's errors have numbers of their own, and the address in their text
        reason = os.strerror(number) if number > 0 else (error.strerror or str(error)).partition(" (while")[0]
    return ServerSetupError(
        f"cannot listen on {where}: {reason}; the host must be an IPv4 address of this machine such as 127.0.0.1, a "
        "name of one, or 0.0.0.0 for all of them"
    )
