"""For threads that others depend on: they go on with the next thing where one fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

PAUSE = 0.25
"""Seconds of rest after a failure: what fails each time must fill neither the log nor the CPU."""

log = logging.getLogger(__name__)


def safely(what: str, call: Callable[..., object], *arguments: object) -> None:
    """Make a call; where it fails, log that, with `what` it was, and rest for a moment."""
    try:
        call(*arguments)
    except Exception:
        log.exception("%s failed", what)
        time.sleep(PAUSE)
