"""The processes of a pipeline, as its coordinator keeps them: how they come, show that they live, leave and die."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from omni_python.control.deaths import DeathWatch
from omni_python.control.safely import safely
from omni_python.pipeline.endpoint import Endpoint
from omni_python.pipeline.registry import Registry
from omni_python.pipeline.spec import PipelineSpec
from omni_python.pipeline.start_times import StartTimes
from omni_python.proto.errors import OmniError, Unavailable
from omni_python.proto.messages import (
    AbortMessage,
    BrokenMessage,
    GoneMessage,
    GoodbyeMessage,
    Peer,
    PeersMessage,
    RegisterMessage,
    Route,
)

KEEPER_PATIENCE = 0.5
"""Seconds after a connection broke in which a keeper may tell what became of the process."""

HELD_UP = 3.0
"""Seconds without a look at heartbeats (one is due each second at least) that cannot be held against the others."""

LINGER = 1.0
"""Seconds for a goodbye to reach another host."""

STOPPED = "was stopped by a signal and killed"

log = logging.getLogger(__name__)


class Members:
    """One that gives no sign of life for `silence` seconds, or is stopped, is killed; one on another host is lost when
    it is silent, until it says that it has dropped what it had. There, a keeper tells of those that die and starts them
    again.

    `on_lost(peer, what)` is told of each process that is gone, and what became of it; `on_given_up()` that the answers
    of `refusal` have changed; `recover(process, replica, start_s)` of those that are to be started again, and the
    seconds that each took to start. Registrations and farewells come on the thread that receives messages; `wait` and
    `check_heartbeats` are called on one other thread.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        endpoint: Endpoint,
        silence: float,
        on_lost: Callable[[Peer, str], None],
        on_given_up: Callable[[], None],
        recover: Callable[[str, int, float], None],
    ) -> None:
        self.registry = Registry(endpoint.epoch, spec.stages, spec.replicas)
        self._spec = spec
        self._endpoint = endpoint
        self._silence = silence
        self._on_lost = on_lost
        self._on_given_up = on_given_up
        self._recover = recover
        self._deaths = DeathWatch()
        self._starts = StartTimes()
        self._heard: dict[int, float] = {}  # epoch -> when it last registered
        self._checked = time.monotonic()  # when heartbeats were last looked at
        self._leaving: dict[int, Peer] = {}  # epoch -> a process whose model is being unloaded
        self._broken: dict[int, str] = {}  # epoch -> what a process said that cannot go on
        self._broken_links: dict[int, float] = {}  # epoch -> when its process is lost for that
        self._cut_off: set[int] = set()  # epochs of silent processes on other hosts, which may live
        self._departed: set[int] = set()  # epochs of the dead, and of those told goodbye: no late heartbeat counts
        self._given_up: dict[tuple[str, int], str] = {}  # process and replica -> why it will not come back

    @property
    def closed(self) -> bool:
        return self._deaths.closed

    def is_complete(self) -> bool:
        """Whether all processes are there, every replica."""
        replicas = {(peer.process, peer.replica) for peer in self.registry.peers()}
        return len(replicas) == sum(self._spec.replicas.values())

    def close(self) -> None:
        """Let `wait` return for the last time."""
        self._deaths.close()

    def wake(self) -> None:
        """Let `wait` return early."""
        self._deaths.wake()

    # -- what processes say

    def register(self, message: RegisterMessage) -> None:
        """A process is there, or still there."""
        if message.epoch in self._departed or self._is_behind(message):
            return
        try:
            peer, replaced = self.registry.register(message)
        except ValueError as error:
            log.warning("refused a registration: %s", error)
            return
        self._heard[message.epoch] = time.monotonic()
        if peer is not None:
            try:
                self._welcome(peer, replaced)
            except BaseException:  # as where descriptors have run out: its next registration is the first once more
                self.registry.remove(peer.epoch)
                self._heard.pop(peer.epoch, None)
                self._deaths.forget(peer.epoch)
                self._endpoint.forget(peer.epoch)
                raise
            self._given_up.pop((peer.process, peer.replica), None)
            self._broadcast_view()
        elif self._endpoint.is_remote(message.site) or message.view != (self._endpoint.epoch, self.registry.version):
            self._tell(message.epoch, self._view())

    def _welcome(self, peer: Peer, replaced: Peer | None) -> None:
        if replaced is not None:
            self._step_back(replaced)
        self._endpoint.connect(peer.epoch, peer.address, peer.site)
        if not self._endpoint.is_remote(peer.site):
            self._deaths.watch(peer.epoch, peer.pid)
            self._starts.started(peer.process, peer.replica, peer.pid)

    def leave(self, epoch: int) -> None:
        """A process's model is being unloaded: it gets nothing new, and goes once nothing needs it."""
        peer = self.registry.peer(epoch)
        if peer is not None:
            self.registry.retire(epoch)  # first: `dismiss` on another thread must find none that can still be chosen
            self._leaving[epoch] = peer
            if self.registry.current(peer.process, peer.replica) is None:
                self.give_up(peer.process, peer.replica, "its model is being unloaded")
            self.dismiss()

    def gone(self, message: GoneMessage) -> None:
        """What a keeper says of its host's processes."""
        if message.gone:
            self.lose(message.gone, self._broken.pop(message.gone, message.reason))
        if message.for_good:
            self.give_up(message.process, message.replica, message.reason)

    def link_broken(self, epoch: int) -> None:
        """A process's connection with one of another host broke; whatever was on its way may be lost. Called on any
        thread."""
        self._broken_links.setdefault(epoch, time.monotonic() + KEEPER_PATIENCE)

    def _is_behind(self, message: RegisterMessage) -> bool:
        """Whether a process on another host still works on what was given up for lost when it was cut off. It drops
        that when it has heard nothing from here for long, and then says that it knows no coordinator."""
        if message.epoch in self._cut_off:
            if message.view[0] == self._endpoint.epoch:
                return True
            self._cut_off.discard(message.epoch)
        elif message.view[0] != self._endpoint.epoch and self.registry.is_informed(message.epoch):
            self.lose(message.epoch, "was cut off, and has dropped its requests")
        return False

    def end(self, message: BrokenMessage) -> None:
        """A process cannot go on."""
        self._broken[message.epoch] = message.reason
        self._deaths.kill(message.epoch)

    def _step_back(self, peer: Peer) -> None:
        """Another process has taken this one's place. It may live, where a model is reloaded in place: Triton may start
        the new instance before it ends the old one. It gets nothing new, ends what it has, and leaves like any other.
        Those of other hosts are dead: only one process at a time can listen at their places."""
        if self._endpoint.is_remote(peer.site):
            self._departed.add(peer.epoch)
            self.lose(peer.epoch, "was restarted")
        else:
            log.warning("process %s was started anew", self._spec.replica_name(peer.process, peer.replica))

    def _has_successor(self, peer: Peer) -> bool:
        current = self.registry.current(peer.process, peer.replica)
        return current is not None and current.joined > peer.joined

    # -- what becomes of them

    def wait(self, timeout: float) -> None:
        """Up to `timeout` seconds for deaths, and see to them."""
        for epoch in self._deaths.wait(timeout):
            # Each death is told once: the others are not to be lost with one that fails.
            safely("what the death of a process asks for", self._bury, epoch)

    def _bury(self, epoch: int) -> None:
        """A process is dead: whatever fails of what is to be done for that, it is started again."""
        unloaded = epoch in self._leaving
        self._departed.add(epoch)
        peer = self.registry.remove(epoch)
        try:
            if peer is None:  # it had left
                self._endpoint.forget(epoch)
            else:
                self._lose(peer, "was unloaded" if unloaded else self._broken.pop(epoch, "died"))
            self._endpoint.remove_socket(epoch)
        finally:
            if peer is not None and not unloaded and not self._has_successor(peer):
                self._recover(peer.process, peer.replica, self._starts.seconds(peer.process, peer.replica))

    def lose(self, epoch: int, what: str) -> None:
        """A process is gone, unless it was already."""
        peer = self.registry.remove(epoch)
        if peer is not None:
            self._lose(peer, what)

    def check_heartbeats(self) -> None:
        """A process that has not registered for long, or is stopped, is killed, and recovered like any dead one.

        Other threads change what this looks at. A dict's copy is made in one step, a list of its items is not: memory
        for them may be collected from garbage meanwhile, and that can run anything.
        """
        now = time.monotonic()
        for epoch in self._deaths.stopped(now):
            self._kill(epoch, STOPPED)
        held_up, self._checked = now - self._checked, now
        if held_up > HELD_UP:  # this process was: nobody's heartbeats could be heard meanwhile
            self._heard = {epoch: heard + held_up for epoch, heard in self._heard.copy().items()}
        for epoch, due in self._broken_links.copy().items():
            if now > due:
                del self._broken_links[epoch]
                self._cut(epoch, "was cut off: a connection with another host broke")
        for epoch, heard in self._heard.copy().items():
            if now - heard > self._silence:
                peer = self.registry.peer(epoch)
                if peer is not None and self._endpoint.is_remote(peer.site):
                    self._cut(epoch, f"has not been heard of for {now - heard:.0f} s")
                    continue
                self._heard.pop(epoch, None)
                if not self._kill(epoch, f"was silent for {now - heard:.0f} s and killed") and peer is not None:
                    self._bury(epoch)  # it is not watched: no death would be told

    def _kill(self, epoch: int, why: str) -> bool:
        self._broken.setdefault(epoch, why)
        return self._deaths.kill(epoch)

    def _cut(self, epoch: int, what: str) -> None:
        """A process of another host may live, but is lost for now."""
        if self.registry.peer(epoch) is not None:
            self._cut_off.add(epoch)
            self.lose(epoch, what)

    def dismiss(self) -> None:
        """Say goodbye to leaving processes that no running request needs. Those of this host are forgotten once they
        are dead (`wait`): until then they may read what was lent to them."""
        for epoch in list(self._leaving):
            if not self.registry.is_idle(epoch):
                continue
            if (peer := self._leaving.pop(epoch, None)) is not None:
                self._departed.add(epoch)
                self.registry.remove(epoch)
                self._heard.pop(epoch, None)
                self._tell(epoch, GoodbyeMessage(self._endpoint.epoch))
                if self._endpoint.is_remote(peer.site):
                    self._endpoint.forget(epoch, LINGER)
                self._broadcast_view()

    def give_up(self, process: str, replica: int, why: str) -> None:
        """A process will not come back."""
        log.warning("process %s: %s", self._spec.replica_name(process, replica), why)
        self._given_up[process, replica] = why
        self._on_given_up()

    def refusal(self, processes: Collection[str]) -> Unavailable | None:
        """Why nothing can be done for now that needs these: all replicas of one are given up."""
        for process in processes if self._given_up else ():
            reasons = [self._given_up.get((process, replica)) for replica in range(self._spec.replicas[process])]
            if reasons[-1] is not None and None not in reasons:
                return Unavailable(f"process {process} of {self._spec.name}: {reasons[-1]}")
        return None

    def _lose(self, peer: Peer, what: str) -> None:
        name = self._spec.replica_name(peer.process, peer.replica)
        where = f" on host {peer.site.name}" if peer.site.name else ""
        log.error("process %s (%s)%s %s", name, ", ".join(peer.stages), where, what)
        self._heard.pop(peer.epoch, None)
        self._leaving.pop(peer.epoch, None)
        self._deaths.forget(peer.epoch)
        try:
            self._endpoint.forget(peer.epoch)
        except Exception:  # its requests fail all the same: nobody else would end them
            log.exception("what was kept for process %s could not all be let go", name)
        try:
            self._on_lost(peer, what)
        finally:
            self._broadcast_view()

    # -- messages to them

    def tell_route(self, route: Route, message: AbortMessage) -> None:
        """To each of those that serve a request."""
        for peer in self.registry.peers():
            if peer.epoch in route:
                self._tell(peer.epoch, message)

    def _view(self) -> PeersMessage:
        endpoint, registry = self._endpoint, self.registry
        site = endpoint.carrier.site
        return PeersMessage(endpoint.epoch, registry.version, endpoint.pid, endpoint.address, registry.peers(), site)

    def _broadcast_view(self) -> None:
        message = self._view()
        for peer in message.peers:
            self._tell(peer.epoch, message)

    def _tell(self, epoch: int, message: AbortMessage | PeersMessage | GoodbyeMessage) -> None:
        try:
            self._endpoint.send(epoch, message)
        except OmniError as error:
            log.warning("%s was not delivered: %s", type(message).__name__, error)
