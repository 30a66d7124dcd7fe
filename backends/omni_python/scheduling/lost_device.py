"""Whether a GPU's context is broken: then whatever this process computes on it fails from then on."""

from __future__ import annotations

import sys


def lost_device() -> str | None:
    """The GPU that this process has tensors on and that answers everything with an error, and that error; None where
    there is no such GPU. To be asked after a failure.

    Waits for nothing: waiting for the device would spoil the graph that another thread captures. A process that never
    imported torch has no GPU, and is spared the import.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    for number in range(torch.cuda.device_count()):
        try:
            if torch.cuda.memory_reserved(number):  # else the question would make a context there
                torch.cuda.default_stream(number).query()
        except RuntimeError as error:
            return f"GPU {number}: {str(error).splitlines()[0]}"
    return None
