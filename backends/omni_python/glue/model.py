"""Which of the two kinds of model this process is."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from omni_python.control.parent import end_with_parent
from omni_python.control.privacy import hide_mapped_regions
from omni_python.glue.context import read_context
from omni_python.glue.keeper import KeeperModel
from omni_python.glue.orchestrator import Orchestrator
from omni_python.glue.stage import StageModel
from omni_python.proto.errors import OmniError

_OLDEST_SERVER_FOR_NUMPY_2 = "25.01"
"""Up to 24.10 (seen) the stub silently turns every array of numpy 2 into an empty tensor."""


class Model(Protocol):
    """What Triton asks of a model after `initialize`."""

    def execute(self, requests: Sequence[Any]) -> None: ...
    def finalize(self) -> None: ...


def create_model(args: dict[str, str]) -> Model:
    """The model that `args`, those of Triton's `initialize`, describe. Raises `OmniError` with what to mend."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    _check_numpy(os.environ.get("NVIDIA_TRITON_SERVER_VERSION", "24.10"))
    hide_mapped_regions()
    end_with_parent()
    context = read_context(args)
    if context.is_keeper:
        return KeeperModel(context)
    if context.process is None:
        return Orchestrator(context)
    return StageModel(context)


def _check_numpy(server_version: str) -> None:
    if int(np.__version__.split(".")[0]) >= 2 and server_version < _OLDEST_SERVER_FOR_NUMPY_2:
        raise OmniError(
            f"Triton {server_version} loses the contents of numpy {np.__version__}'s arrays; install numpy<2 in the "
            f"environment of this server's `python3`"
        )
