"""The entry point that Triton's python backend loads for every model of this backend.

A model's parameters say what it is: the orchestrator of a pipeline, or one process of it (`glue/model.py`).
Imports happen in `initialize`, so that Triton's auto-completion of configurations stays cheap.
"""

import faulthandler
import gc
import os
import signal
import sys

EXIT_TIMEOUT = 5
"""Seconds for this process to finalize its model and to end."""


class TritonPythonModel:
    """Triton's interface to `omni_python.glue`."""

    def initialize(self, args):  # type: ignore[no-untyped-def]
        backends = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        if backends not in sys.path:  # so that `import omni_python` works where the package is not installed
            sys.path.append(backends)
        # What is imported and built here stays: looking through it for garbage takes a tenth of the start, and again
        # 100 ms of some later request's time.
        gc.disable()
        try:
            from omni_python.glue.model import create_model

            self._model = create_model(args)
        finally:
            gc.freeze()
            gc.enable()

    def execute(self, requests):  # type: ignore[no-untyped-def]
        return self._model.execute(requests)

    def is_ready(self):  # type: ignore[no-untyped-def]
        return self._model.is_ready()

    def finalize(self):  # type: ignore[no-untyped-def]
        # Triton waits for the process without a limit, and what libraries do at its end can hang: then SIGALRM ends it,
        # after the server's log was told where each thread is.
        signal.alarm(EXIT_TIMEOUT)
        faulthandler.dump_traceback_later(EXIT_TIMEOUT - 1)
        self._model.finalize()
