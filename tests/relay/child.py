"""The other process of the conformance tests: it reads what it is sent as told by the message's target, and sends when
told to through a pipe."""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from omni_python.pipeline.endpoint import Endpoint
from omni_python.proto.errors import OmniError
from omni_python.proto.messages import ControlMessage, DataReadyMessage, Peer, StreamMessage
from omni_python.proto.payload import Payload, TextOutput
from omni_python.relay.base import RelaySettings
from tests.relay.blocks import Tensors, digest, is_chunk


@dataclass(frozen=True)
class Command:
    """`count` payloads of `nbytes` each to the parent, on a GPU after `delay` of its cycles."""

    count: int
    nbytes: int
    delay: int = 0


class Child:
    def __init__(self, directory: Path, backend: str, host: str | None, parent: Peer, gpu: int | None) -> None:
        settings = RelaySettings(backend, (32 if gpu is None else 256) << 20, gpu)
        self.endpoint = Endpoint(directory, self.on_message, settings, host=host)
        self.endpoint.connect(parent.epoch, parent.address, parent.site)
        self.parent = parent.epoch
        self.device = "cpu" if gpu is None else f"cuda:{gpu}"
        self.held: list[Payload] = []
        self.wrong = 0
        self.next_chunk: dict[str, int] = defaultdict(int)
        self.rng = random.Random(5)
        self.torn = torch.zeros((), dtype=torch.int64, device=self.device)

    def on_message(self, message: ControlMessage) -> None:
        assert isinstance(message, DataReadyMessage)
        carrier = self.endpoint.carrier
        if message.is_done:
            self.held.clear()
            self.wrong += int(self.torn)
            self.torn.zero_()
            self.reply(message.request_id, f"{self.wrong} wrong of {sum(self.next_chunk.values())}")
            self.wrong = 0
            self.next_chunk.clear()
            return
        assert message.payload is not None
        if message.target == "decline" or (message.target == "random" and self.rng.random() < 0.3):
            carrier.decline(message.epoch, message.payload)
            return
        payload = carrier.unpack(message.epoch, message.payload)
        match message.target:
            case "digest":
                self.reply(message.request_id, digest(payload))
            case "hold":
                self.held.append(payload)
                self.reply(message.request_id, digest(payload))
            case "random":
                if self.rng.random() < 0.5:
                    self.held.append(payload)
                del self.held[: self.rng.randrange(3)]
            case "stream":
                due = self.next_chunk[message.request_id]
                self.next_chunk[message.request_id] = due + 1
                fits = message.chunk_id == due and is_chunk(payload, message.request_id, due)
                self.wrong += not fits
            case "slowly":
                self.next_chunk[message.request_id] += 1
                self.check_slowly(payload, message.chunk_id)

    def check_slowly(self, payload: Payload, number: int) -> None:
        """Look at every byte, now and then late. On a GPU nothing is waited for: the look is queued there, and the view
        dropped at once."""
        assert isinstance(payload, Tensors)
        if number % 64 == 0:
            if self.device == "cpu":
                time.sleep(1e-3)
            else:
                torch.cuda._sleep(300_000)
        self.torn += (payload.tensors["marks"] != number).any()

    def reply(self, request_id: str, text: str) -> None:
        envelope = self.endpoint.carrier.pack(TextOutput(text), [self.parent])
        self.endpoint.send(self.parent, StreamMessage(self.endpoint.epoch, request_id, "child", envelope))

    def send(self, command: Command) -> None:
        for number in range(command.count):
            payload = Tensors.of_bytes(command.nbytes, number, self.device)
            if command.delay:
                torch.cuda._sleep(command.delay)
            try:
                envelope = self.endpoint.carrier.pack(payload, [self.parent])
            except OmniError as error:
                print(error, file=sys.stderr)
                return
            message = DataReadyMessage(self.endpoint.epoch, str(number), "child", "parent", envelope)
            self.endpoint.send(self.parent, message)


def run(directory: Path, backend: str, host: str | None, parent: Peer, gpu: int | None, pipe: Connection) -> None:
    """Tells through the pipe who this is, then does what commands come through it until it is closed."""
    child = Child(directory, backend, host, parent, gpu)
    child.endpoint.start()
    endpoint = child.endpoint
    pipe.send(Peer("child", [], endpoint.epoch, endpoint.pid, endpoint.address, endpoint.carrier.site))
    with suppress(EOFError):
        while True:
            child.send(pipe.recv())
    endpoint.stop()
