"""Run a tritonserver as a child process: start it, wait until its models are ready, stop it without a trace."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from omni_python.serve.environment import find_installation
from omni_python.serve.given_up import GivenUpStubs
from omni_python.serve.server_log import failure_reason
from omni_python.serve.server_options import SHARED_MEMORY, ServerOptions

_POLL_S = 0.1
_STARTS = 3
_LOST_LOCK = "boost::interprocess::lock_exception"
_LOST_PORT = "already in use"
_KILL_MARGIN_S = 5.0  # past the server's own exit timeout
_CONTROL_MARGIN_S = 30.0  # past the time that a stub has to start
_LIVE_TIMEOUT_S = 2.0
_PR_SET_PDEATHSIG = 1  # prctl(2)


class ServerFailed(RuntimeError):
    """The server ended, or a model could not be loaded; the message has the reason from its log."""


class BadLuck(ServerFailed):
    """A start that failed for a reason that another start does not have."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class TritonServer:
    """A running tritonserver and its stub processes. Also a context manager, which stops it."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int
    process: subprocess.Popen[bytes]
    log: Path
    name: str
    exit_timeout_s: int
    stub_timeout_s: int
    _folder: Path | None

    @classmethod
    def launch(cls, options: ServerOptions, log: Path | None = None, supervised: bool = False) -> TritonServer:
        """Start the process and return at once.

        Without `log`, the log is in a temporary folder that goes with the server. With `supervised` there is none: the
        server writes where this process does, and is killed when the calling thread ends, so that a supervisor that was
        killed leaves the ports free.
        Raises ServerSetupError where no server can run.
        """
        installation = find_installation()
        options = options.resolved()
        options.check_ports()
        options.check_shared_memory()
        # None where nothing is kept: nobody would remove it after a supervisor that is killed.
        folder = None if supervised or log else Path(tempfile.mkdtemp(prefix="omni-server-"))
        log = log or (folder / "tritonserver.log" if folder else Path(os.devnull))
        with contextlib.nullcontext() if supervised else log.open("wb") as output:
            process = subprocess.Popen(
                options.command(installation),
                cwd=installation.working_directory,
                env=installation.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if supervised else subprocess.STDOUT,
                start_new_session=True,  # its own process group, which its stubs share
                preexec_fn=_die_with_parent if supervised else None,
            )
        return cls(
            host="127.0.0.1" if options.host == "0.0.0.0" else options.host,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            metrics_port=options.metrics_port,
            process=process,
            log=log,
            name=options.name,
            exit_timeout_s=options.exit_timeout_s,
            stub_timeout_s=options.stub_timeout_s,
            _folder=folder,
        )

    @classmethod
    def start(cls, options: ServerOptions, log: Path | None = None, timeout_s: float = 600) -> TritonServer:
        """Start the process and wait until it is ready; see `launch` and `wait_ready`. Stopped again if that fails.

        Where that was `BadLuck` the server is started again, `_STARTS` times in all.
        """
        for start in range(1, _STARTS + 1):
            server = cls.launch(options, log)
            try:
                server.wait_ready(timeout_s)
            except BaseException as error:
                server.stop()
                if not isinstance(error, BadLuck) or start == _STARTS:
                    raise
            else:
                return server
        raise AssertionError("unreachable")

    @property
    def http_url(self) -> str:
        """host:port, as tritonclient.http takes it."""
        return f"{self.host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """host:port, as tritonclient.grpc takes it."""
        return f"{self.host}:{self.grpc_port}"

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the server and all its models are ready.

        Raises ServerFailed as soon as the process ends or a model turns out not to load, and after `timeout_s`. It is
        `BadLuck` where Triton gave a stub up (see `GivenUpStubs`), where its Python backend aborted with
        `boost::interprocess::lock_exception`, as 24.10's now and then does while stubs start on a busy machine, or
        where a port that was free was taken before the server could bind it.
        """
        deadline = time.monotonic() + timeout_s
        given_up = GivenUpStubs(self.process.pid)
        while (now := time.monotonic()) < deadline:
            if self.has_exited():
                said = self.log.read_text(errors="replace")
                kind = BadLuck if any(loss in said for loss in (_LOST_LOCK, _LOST_PORT)) else ServerFailed
                raise kind(f"tritonserver did not start: {failure_reason(said)}")
            if self.is_ready():
                return
            if stubs := given_up.look(now):
                raise BadLuck(f"tritonserver gave up {', '.join(stub.name for stub in stubs)} while it started")
            status, _ = self._http("GET", "/v2/health/ready")
            if status == 400 and self._answers() and (failed := self._failed_models()):
                raise ServerFailed("tritonserver could not load " + "; ".join(failed))
            time.sleep(_POLL_S)
        raise ServerFailed(f"tritonserver was not ready after {timeout_s:g} s: {self.failure()}")

    def is_ready(self) -> bool:
        """Whether the server and all its models are ready."""
        status, _ = self._http("GET", "/v2/health/ready")
        return status == 200 and self._answers()

    def has_loaded(self) -> bool:
        """Whether all models are loaded. Servers from 26.04 on are `is_ready` only once their models say so themselves,
        too: an orchestrator when the processes of its pipeline are there, those of other hosts among them."""
        if self.is_ready():
            return True
        index = self._index()
        return bool(index) and self._answers() and all(_is_loaded(model) for model in index)

    def is_live(self) -> bool:
        """Whether the process answers at all. Raises OSError where it cannot be asked, since this process has no
        descriptor left, or its host's name is not known now."""
        try:
            self._exchange("GET", "/v2/health/live", _LIVE_TIMEOUT_S)
        except socket.gaierror:
            raise
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return False
        return True

    def is_model_ready(self, model: str) -> bool:
        """Triton's word on it; up to 25.12 a model whose stub died stays ready."""
        return self._http("GET", f"/v2/models/{model}/ready")[0] == 200

    def load(self, model: str) -> None:
        """Load a model and wait for it. Raises `ServerFailed` with Triton's reason."""
        self._control("load", model)

    def unload(self, model: str) -> None:
        """Begin to unload a model; it is done once the model is not ready any more. Raises `ServerFailed`."""
        self._control("unload", model)

    def _control(self, what: str, model: str) -> None:
        timeout_s = self.stub_timeout_s + _CONTROL_MARGIN_S
        status, body = self._http("POST", f"/v2/repository/models/{model}/{what}", timeout_s)
        if status != 200:
            raise ServerFailed(f"could not {what} model {model}: {body.decode(errors='replace') or 'no answer'}")

    def failure(self) -> str:
        """The reason of a failure, from the log."""
        return failure_reason(self.log.read_text(errors="replace"))

    def has_exited(self) -> bool:
        """Whether the server's process has ended.

        Looks without reaping, so that the process id, which is also its group's, stays taken until `stop`.
        """
        if self.process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stop(self) -> None:
        """End the server and its stubs and remove what they leave behind. Does nothing the second time.

        SIGTERM lets requests in flight end within the server's exit timeout; what lives longer, or was left by a server
        that died, is killed.
        """
        if self.process.returncode is None:
            try:
                if not self.has_exited():
                    self.process.terminate()
                    self._wait_exit(self.exit_timeout_s + _KILL_MARGIN_S)
            finally:  # also for a second Ctrl-C
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for region in SHARED_MEMORY.glob(f"{self.name}_*"):
            region.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End the server and its stubs without a word; `stop` then removes what they leave behind."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> TritonServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_exit(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.has_exited() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        """Whether it is this server that has the port: another one may, and this one is about to end for that."""
        status, body = self._http("GET", "/v2")
        return status == 200 and json.loads(body).get("name") == self.name

    def _failed_models(self) -> list[str]:
        return [f"{model['name']}: {model['reason']}" for model in self._index() if _has_failed(model)]

    def _index(self) -> list[dict[str, str]]:
        """Name, state and reason of all models; those that nobody has asked to load have but a name. [] where the
        server does not tell."""
        status, body = self._http("POST", "/v2/repository/index")
        models: list[dict[str, str]] = json.loads(body) if status == 200 else []
        return models

    def _http(self, method: str, path: str, timeout_s: float = 5.0) -> tuple[int | None, bytes]:
        """Status and body; None where the server does not answer (yet)."""
        try:
            return self._exchange(method, path, timeout_s)
        except (OSError, http.client.HTTPException):
            return None, b""

    def _exchange(self, method: str, path: str, timeout_s: float) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.host, self.http_port, timeout=timeout_s)) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()


def _has_failed(model: dict[str, str]) -> bool:
    return model.get("state") == "UNAVAILABLE" and model.get("reason", "unloaded") != "unloaded"


def _is_loaded(model: dict[str, str]) -> bool:
    """Or is not to be."""
    return model.get("state", "READY") in ("READY", "UNAVAILABLE") and not _has_failed(model)
