"""Keeps a tritonserver and its orchestrators alive until told to stop, then lets requests in flight end."""

from __future__ import annotations

import enum
import errno
import math
import os
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from omni_python.control.back_off import WINDOW, BackOff
from omni_python.control.stops import PERIOD as LOOK_PERIOD
from omni_python.serve.environment import ServerSetupError
from omni_python.serve.given_up import GivenUpStubs
from omni_python.serve.health import ServerHealth, all_pipelines
from omni_python.serve.leftovers import end_leftover_stubs, remove_leftover_regions
from omni_python.serve.orchestrators import Death, Orchestrators
from omni_python.serve.server_options import ServerOptions
from omni_python.serve.triton_server import ServerFailed, TritonServer

DRAIN_PERIOD = 0.1

TELL_PERIOD = 0.5
"""Seconds until those that show no sign of draining are told of it again."""

START_FACTOR = 5.0
"""A start may take that many times as long as the first one."""


class ExitStatus(enum.IntEnum):
    """How `omni serve` ends. A second SIGTERM or SIGINT while it stops ends it at once, with 128 +
    the signal's number."""

    STOPPED = 0  # by SIGTERM, SIGINT or SIGHUP (not under `nohup`), with every request ended
    NOT_STARTED = 1  # it could not start: the installation, a port, a model that cannot be loaded
    GAVE_UP = 3  # the server, or an orchestrator, died too often
    CUT_OFF = 4  # stopped, but requests had not ended when the drain time was over


@dataclass(frozen=True)
class Policy:
    """`drain_s` seconds for requests in flight to end.

    A server, or an orchestrator, that gives no sign of life for `silence_s` seconds, or is stopped by a signal, is
    killed. An orchestrator that is not loaded again within `reload_s` seconds, or a server not started again (unless
    its first start took long, too: see `START_FACTOR`), is stuck in Triton, and the server is started once more. More
    than `max_deaths` deaths within `window_s` seconds are a crash loop; the first new start waits `first_delay_s`, one
    after a death soon after the last twice as long as that.
    """

    drain_s: float = 30.0
    max_deaths: int = 5
    window_s: float = WINDOW
    first_delay_s: float = 0.1
    silence_s: float = 15.0
    reload_s: float = 60.0

    def back_off(self) -> BackOff:
        return BackOff(self.max_deaths, self.window_s, self.first_delay_s)


class StopNow(BaseException):
    """A second SIGTERM or SIGINT; `status` is the exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Supervisor:
    """`run` blocks, in the main thread (it handles signals), and returns the exit status.

    `bases` are the folders below which the pipelines keep their sockets.
    """

    def __init__(self, options: ServerOptions, bases: Iterable[Path], policy: Policy) -> None:
        self._options = options
        self._bases = frozenset(bases)
        self._policy = policy
        self._stop_signal = 0
        self._deaths = policy.back_off()
        self._orchestrator_deaths: dict[str, BackOff] = defaultdict(policy.back_off)
        self._wake = -1
        self._reloading: dict[str, float] = {}  # pipeline -> when that began
        self._start_s = 0.0  # that the first start took
        self._replaced: dict[str, int] = {}  # pipeline -> process id of the last orchestrator that has a successor
        self._gave_up = ""

    def run(self) -> int:
        for model in end_leftover_stubs():
            _say(f"ended the process of {model}, which a killed server had left")
        for name in remove_leftover_regions():
            _say(f"removed {name}, which a killed server had left in /dev/shm")
        try:
            with self._signals():
                return self._supervise()
        except ServerSetupError as error:
            _say(str(error))
            return ExitStatus.NOT_STARTED
        except StopNow as stop:
            _say("stopped at once")
            return stop.status

    def _supervise(self) -> int:
        options = self._options.resolved()
        while True:
            server = TritonServer.launch(options, supervised=True)
            orchestrators = Orchestrators(server, self._bases, self._policy.silence_s)
            try:
                was_ready = self._watch(server, orchestrators)
                if self._stopping():
                    return self._drain(server, orchestrators)
                if self._gave_up:
                    self._let_end(server, orchestrators)
                    server.kill()  # asked to stop, it would wait in vain for the model whose process is dead
            except StopNow:
                server.kill()
                raise
            finally:
                orchestrators.close()
                server.stop()
            status = server.process.returncode
            if self._gave_up:
                _say(self._gave_up)
                return ExitStatus.GAVE_UP
            if not was_ready and status > 0:  # it ended by itself: what is wrong will be wrong again
                _say(f"tritonserver did not start (its exit status is {status}); its log above has the reason")
                return ExitStatus.NOT_STARTED
            how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
            delay = self._deaths.next_delay(time.monotonic())
            if delay is None:
                times = f"{self._deaths.count} times within {self._policy.window_s:g} s"
                _say(f"tritonserver died {times}, at last by {how}, and is not started again")
                return ExitStatus.GAVE_UP
            _say(f"tritonserver died ({how}); starting it again in {delay:g} s")
            self._wait([], delay)
            if self._stopping():
                return ExitStatus.STOPPED

    def _watch(self, server: TritonServer, orchestrators: Orchestrators) -> bool:
        """Until the server ends, a signal comes or an orchestrator is given up. Whether the server was ever ready."""
        ready = False
        start = time.monotonic()
        self._reloading = {}
        pipelines = all_pipelines(self._options.model_repository)
        health = ServerHealth(server, orchestrators, self._policy.silence_s, pipelines)
        given_up = GivenUpStubs(server.process.pid)
        server_fd = os.pidfd_open(server.process.pid)
        try:
            while not (self._stopping() or self._gave_up or server.has_exited()):
                if not ready and server.has_loaded():
                    ready = True
                    health.begin()
                    self._start_s = self._start_s or time.monotonic() - start
                    _say(f"ready: HTTP on {server.http_url}, gRPC on {server.grpc_url}")
                stubs = given_up.look(time.monotonic())
                complaint = health.complaint(time.monotonic()) or self._overdue(None if ready else start)
                if stubs and not ready:
                    complaint = complaint or f"gave up {stubs[0].name} while it started"
                if complaint:
                    _say(f"tritonserver {complaint}, and is killed")
                    server.kill()  # with its stubs; Popen.kill might reap it, and then nothing would name its group
                self._wait([server_fd, *orchestrators.pidfds()], LOOK_PERIOD if ready else DRAIN_PERIOD)
                if ready and not complaint:  # before, Triton cannot load anything
                    for stub in stubs:  # whoever wanted the model then hears that it failed, and loads it again
                        _say(f"tritonserver gave up {stub.name} while it started; ending it")
                        with suppress(ProcessLookupError):  # it has ended by itself since
                            os.kill(stub.pid, signal.SIGKILL)
                    for pipeline, death in orchestrators.take_dead().items():
                        self._bring_back(pipeline, death, orchestrators)
        finally:
            health.close()
            os.close(server_fd)
        return ready

    def _overdue(self, start: float | None) -> str:
        """What takes too long to be expected, as a complaint about the server; `start` is when one began that is not
        ready."""
        now = time.monotonic()
        limit = max(self._policy.reload_s, START_FACTOR * self._start_s)
        if start is not None and self._start_s and now - start > limit:
            return f"was not ready within {limit:.0f} s"
        late = [name for name, since in list(self._reloading.items()) if now - since > self._policy.reload_s]
        return f"has not loaded {' and '.join(late)} again within {self._policy.reload_s:g} s" if late else ""

    def _bring_back(self, pipeline: str, death: Death, orchestrators: Orchestrators) -> None:
        # What was read just before its successor was ready tells of the same death once more.
        if pipeline in self._reloading or self._replaced.get(pipeline) == death.pid:
            return
        delay = self._orchestrator_deaths[pipeline].next_delay(time.monotonic())
        if delay is None:
            count = self._orchestrator_deaths[pipeline].count
            within = f"{count} times within {self._policy.window_s:g} s"
            self._gave_up = f"the orchestrator of {pipeline} died {within} and is not loaded again"
            return
        _say(f"the orchestrator of {pipeline} {death.what}; loading it again")
        self._reloading[pipeline] = time.monotonic() + delay
        # On a thread, since a load can take long and signals must be heeded meanwhile; it dies with the server.
        arguments = (pipeline, death.pid, orchestrators, delay - self._policy.first_delay_s, self._reloading)
        threading.Thread(target=self._reload, args=arguments, name="omni-reload", daemon=True).start()

    def _reload(
        self, pipeline: str, pid: int, orchestrators: Orchestrators, delay: float, reloading: dict[str, float]
    ) -> None:
        time.sleep(delay)
        start = time.monotonic()
        try:
            orchestrators.reload(pipeline)
            self._replaced[pipeline] = pid
            _say(f"the orchestrator of {pipeline} is back after {time.monotonic() - start:.2f} s")
        except ServerFailed as error:
            _say(f"the orchestrator of {pipeline} was not loaded: {error}")
        reloading.pop(pipeline, None)

    def _drain(self, server: TritonServer, orchestrators: Orchestrators) -> int:
        """Stop admitting, let requests end, stop the server."""
        _say(f"{signal.Signals(self._stop_signal).name}: letting requests in flight end, {self._policy.drain_s:g} s")
        left = self._let_end(server, orchestrators)
        server.stop()
        if left:
            _say(f"stopped; {left} requests had not ended")
            return ExitStatus.CUT_OFF
        _say("stopped")
        return ExitStatus.STOPPED

    def _let_end(self, server: TritonServer, orchestrators: Orchestrators) -> int:
        """Admit nothing more and wait until no request is in flight, or the drain time is over. How many are failed
        then: Triton itself would wait for them once more."""
        orchestrators.drain()
        told = time.monotonic()
        end = told + self._policy.drain_s
        while (left := orchestrators.in_flight()) and time.monotonic() < end and not server.has_exited():
            time.sleep(DRAIN_PERIOD)
            if time.monotonic() - told > TELL_PERIOD:  # one that was being loaded may have come back
                orchestrators.drain()
                told = time.monotonic()
        if left:
            orchestrators.drain(end=True)
        return left

    def _stopping(self) -> bool:
        return self._stop_signal != 0

    def _wait(self, descriptors: list[int], timeout: float) -> None:
        """Until one of them, or a signal, has something to tell."""
        poll = select.poll()  # select would raise for descriptors from 1024 on
        for descriptor in (self._wake, *descriptors):
            poll.register(descriptor, select.POLLIN)
        if self._wake in (descriptor for descriptor, _ in poll.poll(math.ceil(timeout * 1000))):
            os.read(self._wake, 512)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        self._wake, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` has it, which shall outlive its terminal
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        wakeup_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake)
            os.close(write)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._stop_signal:
            self._stop_signal = number
        elif number != signal.SIGHUP:  # a closed terminal's kernel and shell send one each
            raise StopNow(128 + number)


def _say(text: str) -> None:
    """Whether or not anybody listens: requests in flight shall end all the same."""
    try:
        # Without Python's buffer, which would keep what cannot be written and make the exit status 120 for it.
        os.write(sys.stderr.fileno(), f"omni serve: {text}\n".encode(errors="replace"))
    except OSError as error:
        if error.errno in (errno.EIO, errno.EPIPE):  # the terminal is closed, or who read the log has ended
            with suppress(OSError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stderr.fileno())  # for others that write there
