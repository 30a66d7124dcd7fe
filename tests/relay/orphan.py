"""A reader whose sender is killed while its GPU still has to write what was announced; a process of the tests."""

from __future__ import annotations

import os
import time

import torch

from omni_python.proto.errors import OmniError
from tests.relay.processes import open_parent

SECONDS = 2_000_000_000
"""Cycles of the GPU: about a second."""


def main() -> None:
    with open_parent("cuda_shm") as parent:
        victim = parent.start_child()
        victim.let_send(1, 1 << 20)
        parent.received.get(timeout=30)
        victim.let_send(1, 1 << 20, 2 * SECONDS)
        late = parent.received.get(timeout=30)
        ready = isinstance(late, OmniError)
        if not ready:
            past = torch.cuda.Event()
            past.record()
            print("the payload came", "late" if past.query() else "before its bytes", flush=True)
            victim.kill()
            parent.endpoint.forget(victim.epoch)
            end = time.monotonic() + 30
            while not past.query() and time.monotonic() < end:
                time.sleep(0.05)
            ready = past.query()
        print("went on" if ready else "hangs", flush=True)
        os._exit(0)  # a hung GPU would keep the interpreter from ending


if __name__ == "__main__":
    main()
