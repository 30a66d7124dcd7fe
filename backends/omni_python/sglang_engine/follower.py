"""The program of a follower: `python3 -m omni_python.sglang_engine.follower NAME RANK DESCRIPTOR PARENT`.

It does what rank 0 (process PARENT) says over the socket DESCRIPTOR, and ends with it, however that one ends.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import setproctitle
import torch

from omni_python.control.torch_profile import SUFFIX, write_profile
from omni_python.proto.errors import OmniError
from omni_python.sglang_engine.parallel import FollowingEngine, import_sglang
from omni_python.sglang_engine.rank_messages import SIGN_PERIOD, Alive, Broken, Joined, Launch, Link, Profile

_PR_SET_PDEATHSIG = 1  # prctl(2)

log = logging.getLogger(__name__)


def main() -> None:
    name, rank, descriptor, parent = sys.argv[1], *(int(argument) for argument in sys.argv[2:5])
    setproctitle.setproctitle(name)
    logging.basicConfig(format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    for stop in (signal.SIGINT, signal.SIGTERM):  # sent to a whole group; rank 0 knows what is to be ended before
        signal.signal(stop, signal.SIG_IGN)
    _die_with(parent)
    link = Link(Connection(descriptor))
    try:
        _follow(link, name)
        status = 0
    except EOFError:
        status = 1  # rank 0 is gone
    except Exception as error:
        log.exception("rank %d ends", rank)
        with suppress(OSError):
            link.send(Broken(f"{type(error).__name__}: {error}" if not isinstance(error, OmniError) else str(error)))
        status = 1
    logging.shutdown()
    os._exit(status)  # communicators may wait for other ranks in their destructors


def _follow(link: Link, name: str) -> None:
    link.on_profile = partial(_profile, name)
    launch = link.expect(Launch)
    config = launch.engine_config()
    if config.gpu_id is not None:
        torch.cuda.set_device(config.gpu_id)
    import_sglang(config.gpu_id)
    link.send(Joined())
    engine = FollowingEngine(config, link)
    threading.Thread(target=_show_life, args=(link, engine), name="omni-alive", daemon=True).start()
    with torch.inference_mode():
        engine.run()


def _profile(name: str, message: Profile) -> None:
    threading.Thread(target=_write_profile, args=(name, message), name="omni-profile", daemon=True).start()


def _write_profile(name: str, message: Profile) -> None:
    path = Path(f"{message.path.removesuffix(SUFFIX)}.{name}{SUFFIX}")
    try:
        write_profile(path, lambda: time.sleep(message.seconds))
    except Exception:  # the trace alone is lost
        log.exception("%s has no profile", name)


def _show_life(link: Link, engine: FollowingEngine) -> None:
    """A process that is stopped, or that nothing can be run in, is silent."""
    with suppress(OSError):
        while True:
            link.send(Alive(engine.steps))
            time.sleep(SIGN_PERIOD)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when `parent`'s thread that started it ends, which is the main one; also while
    this process waits in a collective, or is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


if __name__ == "__main__":
    main()
