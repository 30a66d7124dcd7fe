"""Imports the glue anew, for a server other than the one that it was imported for before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import omni_python.glue

_PREFIX = "omni_python.glue."
_UTILS = "triton_python_backend_utils"


@contextmanager
def glue_on(module: ModuleType) -> Iterator[None]:
    """Whatever of `omni_python.glue` is imported in here sees `module` as Triton's."""
    package = vars(omni_python.glue)
    attributes = dict(package)
    modules = _take_modules()
    for name in modules:
        package.pop(name.removeprefix(_PREFIX), None)
    sys.modules[_UTILS] = module
    try:
        yield
    finally:
        _take_modules()
        sys.modules.update(modules)
        package.clear()
        package.update(attributes)


def _take_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.startswith(_PREFIX) or name == _UTILS]
    return {name: sys.modules.pop(name) for name in names}
