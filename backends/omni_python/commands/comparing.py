"""What differs between the outputs that were recorded and those of a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from omni_python.proto.recording import Output


@dataclass(frozen=True)
class Tolerance:
    """As in `numpy.isclose`; for floating-point numbers alone."""

    relative: float = 1e-3
    absolute: float = 1e-4


def differences(recorded: Sequence[Output], replayed: Sequence[Output], tolerance: Tolerance) -> Iterator[str]:
    """A line for each difference; none where the outputs are equal: integers and text as they are, floating-point
    numbers within the tolerance. A stream that is cut into other chunks is compared as a whole."""
    for target in dict.fromkeys(output.target for output in (*recorded, *replayed)):
        before, after = ([output for output in side if output.target == target] for side in (recorded, replayed))
        where = f"to {target}" if target else "output"
        if len(before) != len(after) and (joined := _joined(before)) and (joined_after := _joined(after)):
            yield from _unequal(f"{where}, joined", joined, joined_after, tolerance)
            continue
        for index, (one, other) in enumerate(zip_longest(before, after)):
            yield from _output_differences(f"{where} {index + 1}", one, other, tolerance)


def _output_differences(where: str, one: Output | None, other: Output | None, tolerance: Tolerance) -> Iterator[str]:
    if one is None or other is None or (one.kind, _type(one)) != (other.kind, _type(other)) or one.error != other.error:
        yield f"{where}: {_named(one)} was recorded, {_named(other)} was replayed"
    elif one.payload is not None and other.payload is not None:
        yield from _unequal(where, one.payload.plain(), other.payload.plain(), tolerance)


def _type(output: Output) -> str:
    return output.payload.type if output.payload is not None else ""


def _named(output: Output | None) -> str:
    if output is None:
        return "nothing"
    if output.error is not None:
        return f"the error {output.error.message!r}"
    return f"{output.kind} {_type(output)}"


def _joined(outputs: Sequence[Output]) -> dict[str, Any]:
    """Of payloads that are all of one type: text and arrays one after the other; of other values the last. Empty where
    they cannot be joined."""
    parts = [output.payload.plain() for output in outputs if output.payload is not None]
    if len(parts) < len(outputs) or len({_type(output) for output in outputs}) != 1:
        return {}
    whole = dict(parts[-1])
    for name, last in whole.items():
        values = [part.get(name) for part in parts]
        if isinstance(last, np.ndarray) and last.ndim:
            like = [value for value in values if isinstance(value, np.ndarray) and value.shape[1:] == last.shape[1:]]
            if len(like) < len(values):
                return {}
            whole[name] = np.concatenate(like)
        elif name == "text" and all(isinstance(value, str) for value in values):
            whole[name] = "".join(map(str, values))
    return whole


def _unequal(where: str, one: Any, other: Any, tolerance: Tolerance) -> Iterator[str]:
    match one, other:
        case dict(), dict():
            for name in dict.fromkeys((*one, *other)):
                yield from _unequal(f"{where}.{name}", one.get(name), other.get(name), tolerance)
        case list(), list() if len(one) == len(other):
            for index, (a, b) in enumerate(zip(one, other, strict=True)):
                yield from _unequal(f"{where}[{index}]", a, b, tolerance)
        case np.ndarray(), np.ndarray():
            yield from _unequal_arrays(where, one, other, tolerance)
        case float(), float():
            if not np.isclose(one, other, tolerance.relative, tolerance.absolute, equal_nan=True):
                yield f"{where}: {one!r} was recorded, {other!r} was replayed"
        case _:
            if type(one) is not type(other) or one != other:
                yield f"{where}: {one!r:.200} was recorded, {other!r:.200} was replayed"


def _unequal_arrays(where: str, one: np.ndarray, other: np.ndarray, tolerance: Tolerance) -> Iterator[str]:
    if one.shape != other.shape:
        yield f"{where}: shape {list(one.shape)} was recorded, {list(other.shape)} was replayed"
        return
    if one.dtype.kind in "fc" and other.dtype.kind in "fc":
        equal = np.isclose(one, other, tolerance.relative, tolerance.absolute, equal_nan=True)
    else:
        equal = one == other
    if np.all(equal):
        return
    first = tuple(int(i) for i in np.argwhere(~equal)[0])
    apart = ""
    if one.dtype.kind == "f" and np.isfinite(one).all() and np.isfinite(other).all():
        apart = f", at most {np.abs(one.astype(np.float64) - other).max():.3g} apart"
    yield (
        f"{where}: {np.count_nonzero(~equal)} of {one.size} values differ{apart}; the first, at {list(first)}, was "
        f"recorded as {one[first]} and replayed as {other[first]}"
    )
