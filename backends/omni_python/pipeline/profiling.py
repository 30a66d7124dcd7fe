"""Torch's profiler in the processes of a running server, as `omni profile` asks for it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_python.control.outlet import LocalOutlet
from omni_python.control.torch_profile import SUFFIX, write_profile
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.registry import Registry
from omni_python.pipeline.spec import PipelineSpec
from omni_python.proto.errors import InvalidArgument, OmniError, Unavailable, Unsupported
from omni_python.proto.messages import Peer, ProfileMessage, ProfileReply, StopProfileMessage, WireError

MAX_SECONDS = 60.0
"""Of one profile: all of it is held in memory."""

LINGER = 1.0
"""Seconds that a reply may take to be delivered."""

log = logging.getLogger(__name__)


def send_reply(address: str, reply: ProfileReply) -> None:
    """To whoever asked, if it is still there."""
    outlet = LocalOutlet(address)
    with contextlib.suppress(OmniError):
        outlet.send(reply)
    outlet.close(linger=LINGER)


def checked(message: ProfileMessage, stages: tuple[str, ...]) -> tuple[str, ...]:
    """The stages that a message asks for, all where it names none. Raises `InvalidArgument`, with what is valid."""
    for stage in message.stages:
        if stage not in stages:
            raise InvalidArgument(f"there is no stage {stage!r}; the stages are {', '.join(stages)}")
    if not 0 < message.seconds <= MAX_SECONDS:
        raise InvalidArgument(f"a profile takes more than 0 and at most {MAX_SECONDS:g} seconds")
    return message.stages or stages


class ProfileControl:
    """The coordinator's part: it finds the processes that are to be profiled, and passes on what they are told."""

    def __init__(self, spec: PipelineSpec, registry: Registry, endpoint: Endpoint) -> None:
        self._spec = spec
        self._registry = registry
        self._endpoint = endpoint

    def handle(self, message: ProfileMessage | StopProfileMessage) -> None:
        """On a thread of its own, for the one who asks may be gone."""
        threading.Thread(target=self._handle, args=(message,), name="omni-profile", daemon=True).start()

    def _handle(self, message: ProfileMessage | StopProfileMessage) -> None:
        if isinstance(message, StopProfileMessage):
            self._pass_on(self._registry.peers(), message)
            return
        try:
            peers = self._peers(message)
        except OmniError as error:
            reply = ProfileReply(self._endpoint.epoch, message.id, "", error=WireError.of(error))
        else:
            names = tuple(profile_name(self._spec.name, peer.process, peer.replica) for peer in peers)
            reply = ProfileReply(self._endpoint.epoch, message.id, "", names)
            self._pass_on(peers, message)
        send_reply(message.reply_to, reply)

    def _peers(self, message: ProfileMessage) -> list[Peer]:
        stages = checked(message, tuple(stage for stages in self._spec.stages.values() for stage in stages))
        peers = [peer for peer in self._registry.peers() if not set(stages).isdisjoint(peer.stages)]
        gone = set(stages).difference(*(peer.stages for peer in peers))
        if gone:
            raise Unavailable(f"the processes of stages {', '.join(sorted(gone))} are not running")
        for peer in peers:
            if self._endpoint.is_remote(peer.site):  # which could neither answer the one who asks nor write its files
                raise Unsupported(f"process {peer.process} is on host {peer.site.name}; name stages of this host")
        return peers

    def _pass_on(self, peers: list[Peer], message: ProfileMessage | StopProfileMessage) -> None:
        for peer in peers:
            try:
                self._endpoint.send(peer.epoch, message)
            except OmniError as error:
                log.warning("process %s was not told of a profile: %s", peer.process, error)


def profile_name(pipeline: str, process: str, replica: int) -> str:
    """Begins the name of a process's trace."""
    return f"{pipeline}.{process}.r{replica}"


class ProcessProfiler:
    """Profiles this process, once at a time. `name` begins the names of its files; `epoch` is the process's.
    `beside(path, seconds)` is called when a profile begins, for other processes to do the same."""

    def __init__(self, name: str, epoch: int, beside: Callable[[Path, float], None]) -> None:
        self._name = name
        self._epoch = epoch
        self._beside = beside
        self._lock = threading.Lock()
        self._running = ""  # the id of the profile
        self._stop = threading.Event()

    def start(self, message: ProfileMessage) -> None:
        """Begin; a thread does the rest, and tells how it goes."""
        threading.Thread(target=self._run, args=(message,), name="omni-profile", daemon=True).start()

    def stop(self, message: StopProfileMessage | None = None) -> None:
        """End a profile before its time; None for whatever runs."""
        with self._lock:
            if message is None or message.id == self._running:
                self._stop.set()

    def _run(self, message: ProfileMessage) -> None:
        try:
            path = self._profile(message)
        except Exception as error:
            if not isinstance(error, OmniError):
                log.exception("the profile failed")
            send_reply(message.reply_to, self._reply(message, error=WireError.of(error)))
        else:
            send_reply(message.reply_to, self._reply(message, path=str(path)))

    def _reply(self, message: ProfileMessage, **result: Any) -> ProfileReply:
        return ProfileReply(self._epoch, message.id, self._name, **result)

    def _profile(self, message: ProfileMessage) -> Path:
        with self._lock:
            if self._running:
                raise Unavailable("a profile is running already; wait for its end")
            self._running = message.id
            self._stop.clear()
        try:
            path = _new_file(Path(message.directory) / f"{self._name}.{message.id}{SUFFIX}")
            try:
                write_profile(path, lambda: self._wait(message, path))
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            return path
        finally:
            with self._lock:
                self._running = ""

    def _wait(self, message: ProfileMessage, path: Path) -> None:
        self._beside(path, message.seconds)
        send_reply(message.reply_to, self._reply(message))
        self._stop.wait(message.seconds)


def _new_file(path: Path) -> Path:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except OSError as error:
        raise InvalidArgument(f"cannot write to {path.parent}: {error.strerror}") from None
    return path
