"""Which of the two kinds of model this process is."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from omni_python.config.numpy_support import numpy_refusal
from omni_python.control.inherited import close_inherited_sockets
from omni_python.control.parent import end_with_server
from omni_python.control.privacy import hide_mapped_regions
from omni_python.glue.context import read_context
from omni_python.glue.keeper import KeeperModel
from omni_python.glue.orchestrator import Orchestrator
from omni_python.glue.server_features import FIRST_RELEASE_WITH_RESPONSE_PARAMETERS, TAKES_RESPONSE_PARAMETERS
from omni_python.glue.stage import StageModel
from omni_python.proto.errors import OmniError

_OLDEST = "24.10"
"""The release that a server of unknown age is taken for."""


class Model(Protocol):
    """What Triton asks of a model after `initialize`."""

    def execute(self, requests: Sequence[Any]) -> None: ...
    def is_ready(self) -> bool:
        """Called by 26.03 and later on a thread that also brings this process its messages, at any time between
        `initialize` and the end of `finalize`: must return a bool at once, and wait for nothing."""
        ...

    def finalize(self) -> None: ...


def create_model(args: dict[str, str]) -> Model:
    """The model that `args`, those of Triton's `initialize`, describe. Raises `OmniError` with what to mend."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    if refusal := numpy_refusal(np.__version__, _release()):
        raise OmniError(refusal)
    hide_mapped_regions()
    end_with_server()
    close_inherited_sockets()
    context = read_context(args)
    if context.is_keeper:
        return KeeperModel(context)
    if context.process is None:
        return Orchestrator(context)
    return StageModel(context)


def _release() -> str:
    """Of this server, or one that is no newer."""
    by_features = FIRST_RELEASE_WITH_RESPONSE_PARAMETERS if TAKES_RESPONSE_PARAMETERS else _OLDEST
    return os.environ.get("NVIDIA_TRITON_SERVER_VERSION", by_features)
