"""A request's sampling parameters, and what a client may say among them of the request itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from omni_python.glue.inputs import Inputs
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.trace_context import TraceContext, TraceWish

MAX_SAMPLING_BYTES = 24 << 20
"""Of text in sampling parameters, which go to the first stage inside a message, as the prompt's text does."""

MAX_DEPTH = 16
"""Of objects and lists in sampling parameters, which need two."""

MAX_RECORDED = 64
"""Stages of a request that are recorded."""

SHORTEST_KEY, LONGEST_KEY = 16, 128
"""Characters of a request's `cancel_key`."""

_LEAST, _LARGEST = -(2**63), 2**63 - 1
"""Of integers."""
_OWN_PARAMETERS = ("stream", "exclude_input_in_output", "voice", "cancel_key")
"""Those of Triton's that are no sampling parameters. HTTP clients may send inputs so; a request's key comes in no other
way, since a client that leaves has to know it."""
_object = msgspec.json.Decoder(dict[str, Any])


def sampling_parameters(inputs: Inputs, parameters: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sampling parameters, and the Triton `parameters` that are none. Raises `InvalidArgument`."""
    sampling = inputs.json("sampling_parameters", _object, "a JSON object") or {}
    own: dict[str, Any] = {}
    if parameters:
        loose = {k: v for k, v in parameters.items() if not k.startswith(("triton_", "sequence_"))}
        own = {name: loose.pop(name) for name in _OWN_PARAMETERS if name in loose}
        sampling = {**loose, **sampling}
    size = _text_size(sampling, ("sampling_parameters",))
    if size > MAX_SAMPLING_BYTES:
        raise InvalidArgument(f"sampling_parameters: {size} bytes of text; at most {MAX_SAMPLING_BYTES} are accepted")
    return sampling, own


def _text_size(value: Any, path: tuple[str, ...]) -> int:
    """Bytes of text in a JSON value. Raises `InvalidArgument` for what no message to a stage can hold."""
    if len(path) > MAX_DEPTH:
        raise InvalidArgument(f"{path[0]}: nested too deep; at most {MAX_DEPTH} levels are accepted")
    match value:
        case str():
            return len(value.encode())
        case int() if not _LEAST <= value <= _LARGEST:
            where = ".".join(f"{name:.80}" for name in path)
            raise InvalidArgument(f"{where}: integers have 64 bits, from {_LEAST} to {_LARGEST}")
        case dict():
            return sum(len(name.encode()) + _text_size(item, (*path, name)) for name, item in value.items())
        case list():
            return sum(_text_size(item, (*path, str(index))) for index, item in enumerate(value))
    return 0


def parameter(parameters: Mapping[str, Any], name: str, kind: type) -> Any:
    value = parameters.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidArgument(f"{name}: must be a {kind.__name__}, not {value!r}")
    return value


def timeout(milliseconds: Any) -> float | None:
    """Seconds. Triton's own `timeout` of a request never reaches a Python model, hence a parameter of this backend."""
    if milliseconds is None:
        return None
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not milliseconds > 0:
        raise InvalidArgument(f"timeout_ms: must be a number of milliseconds above 0, not {milliseconds!r}")
    return float(milliseconds) / 1000


def cancel_key(key: Any) -> str:
    """ "" for a request that has none. Who knows it may end the request; the bounds keep it from being a guess."""
    if key is None:
        return ""
    if not isinstance(key, str) or not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise InvalidArgument(
            f"cancel_key: must be a string of {SHORTEST_KEY} to {LONGEST_KEY} characters that nobody guesses, such as "
            f"a random UUID, not {key!r:.80}"
        )
    return key


def stages(record: Any) -> tuple[str, ...]:
    """Those that `record` names."""
    names = [record] if isinstance(record, str) else record or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) > MAX_RECORDED:
        raise InvalidArgument(f"record: must be a stage's name or a list of at most {MAX_RECORDED}, not {record!r:.80}")
    return tuple(dict.fromkeys(names))


def trace_wish(sampling: dict[str, Any]) -> TraceWish | None:
    """Takes `trace` and `traceparent` out. The latter may be a header that Triton forwards, whatever its case; one that
    is invalid is passed over, as the standard wants."""
    asked = sampling.pop("trace", None)
    if asked is not None and not isinstance(asked, bool):
        raise InvalidArgument(f"trace: must be true or false, not {asked!r:.80}")
    names = [name for name in sampling if name.lower() == "traceparent"]
    headers = [sampling.pop(name) for name in names]
    context = TraceContext.parse(headers[0]) if headers and isinstance(headers[0], str) else None
    return None if asked is None and context is None else TraceWish(asked, context)
