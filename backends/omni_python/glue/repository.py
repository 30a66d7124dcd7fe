"""Loads and unloads models of the server that this stub belongs to, while other threads go on.

Triton's own call for Python models (`pb_utils.load_model`, 24.10 seen) holds the interpreter's lock until the model is
loaded: for minutes, the orchestrator would hear and answer nobody. So the server is asked over its HTTP port where it
has one, and by that call where not.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
from pathlib import Path

import triton_python_backend_utils as pb_utils

from omni_python.control.parent import server_pid

TIMEOUT = 3600.0
"""Seconds for a model to load."""

_own_call = threading.Lock()
"""Triton's call is not safe on several threads; the HTTP port is."""

log = logging.getLogger(__name__)


def load_model(model: str, config: str = "") -> None:
    """Load a model, or change one to the configuration `config` (JSON). Raises what tells why it cannot be loaded."""
    if not _ask(model, "load", {"parameters": {"config": config}} if config else {}):
        with _own_call:
            pb_utils.load_model(model, config=config)


def unload_model(model: str) -> None:
    """Begin to unload a model."""
    if not _ask(model, "unload", {}):
        with _own_call:
            pb_utils.unload_model(model)


def is_loaded(model: str) -> bool:
    """Whether Triton still, or again, has the model. To be asked of one that is being loaded or unloaded: one whose
    process died stays loaded, but is not ready for servers from 26.01 on."""
    try:
        with _own_call:
            return bool(pb_utils.is_model_ready(model))
    except pb_utils.TritonModelException:
        # Since core's change #502 of June 2026 it is an error to ask for a model that is not loaded; it was False.
        return False


def _ask(model: str, what: str, body: dict[str, object]) -> bool:
    """Whether the server did it; False where its HTTP port is not to be had. Raises RuntimeError where it refused."""
    address = _http_address()
    if address is None:
        return False
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT)
    try:
        connection.request("POST", f"/v2/repository/models/{model}/{what}", json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except TimeoutError:
        raise RuntimeError(f"the server did not {what} it within {TIMEOUT:.0f} s") from None
    except OSError as error:
        log.warning(
            "no answer from the server's HTTP port (%s): the orchestrator stops while it loads %s", error, model
        )
        return False
    finally:
        connection.close()
    if response.status in (403, 404):  # somebody restricted this part of the API
        return False
    if response.status != 200:
        raise RuntimeError(text)
    return True


def _http_address() -> tuple[str, int] | None:
    """Host and port of the server's HTTP service, by its command line; None where it has none."""
    command = Path(f"/proc/{server_pid()}/cmdline").read_text(errors="replace").split("\0")
    options: dict[str, str] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            options[name] = value if equals else following
    if options.get("--allow-http", "true").lower() in ("false", "0"):
        return None
    host = options.get("--http-address", "127.0.0.1")
    return ("127.0.0.1" if host == "0.0.0.0" else host), int(options.get("--http-port", "8000"))
