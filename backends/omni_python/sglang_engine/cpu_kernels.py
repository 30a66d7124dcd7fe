"""Stand-ins for compiled packages that SGLang imports, for machines without a GPU, where they have no build.

Its CPU path calls a single function of `sgl_kernel`, and nothing of torchvision (for models that prepare pictures
themselves), xgrammar (constrained answers) and triton; all other names only have to exist. Packages that are installed
are never replaced.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import locale
import os
import sys
import types
from pathlib import Path
from typing import Any, NoReturn

import torch
from pydantic_core import core_schema

_UNUSED = {
    "torchvision": ("io", "transforms", "transforms.functional"),
    "xgrammar": ("structural_tag",),
}
"""Packages of which SGLang imports names that it never uses here, and their modules."""


def prepare(gpu: bool) -> None:
    """Make `import sglang` possible and choose its device; to be called before the first import."""
    if locale.getpreferredencoding(False).lower() != "utf-8":
        # As in a server's Python stub; torch and SGLang read source files of theirs in the locale's encoding.
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    if not gpu:
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # a few small functions of SGLang's would want a C++ compiler
        if _is_missing("sgl_kernel"):
            _add("sgl_kernel")
            sys.modules["sgl_kernel"].__dict__["assign_req_to_token_pool_cpu"] = assign_slots
        if _is_missing("triton"):
            _install_triton_stub()
    without_torchvision = _is_missing("torchvision")
    if without_torchvision:
        import transformers.image_utils  # it has then noticed that there is no torchvision, and remembers it

        assert not transformers.utils.is_torchvision_available()
    for package, modules in _UNUSED.items():
        if _is_missing(package):
            for name in (package, *(f"{package}.{module}" for module in modules)):
                _add(name)
    if without_torchvision:
        _replace_auto_image_processor()


def _is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def _install_triton_stub() -> None:
    """SGLang's own stand-in for triton, from its file: importing the package would import triton first."""
    import torch._inductor.select_algorithm  # noqa: F401, it has then noticed that there is no triton, and remembers it

    package = importlib.util.find_spec("sglang")
    assert package is not None and package.origin is not None
    spec = importlib.util.spec_from_file_location("_triton_stub", Path(package.origin).with_name("_triton_stub.py"))
    assert spec is not None and spec.loader is not None
    stub = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stub)
    stub.install()


def assign_slots(
    rows: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    table_width: int,
) -> None:
    """`table`[rows[i], starts[i]:ends[i]] = the next ends[i] - starts[i] of `slots`."""
    parts = slots.split((ends - starts).tolist())
    for row, start, own in zip(rows.tolist(), starts.tolist(), parts, strict=True):
        table[row, start : start + len(own)] = own.to(table.dtype)


def _replace_auto_image_processor() -> None:
    """Without torchvision transformers has a class here that fails when SGLang registers its own processors with it."""
    import sglang  # noqa: F401, it puts another module in place of transformers

    class AutoImageProcessor:
        @staticmethod
        def register(*args: Any, **kwargs: Any) -> None:
            pass

    sys.modules["transformers"].__dict__["AutoImageProcessor"] = AutoImageProcessor


class _Unusable:
    """May be subclassed and stand in annotations, pydantic's too; every use is an error."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{cls.__module__}.{cls.__name__} is not installed")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.any_schema()


class _StandIn(types.ModuleType):
    __version__ = "0.0"
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        return type(name, (_Unusable,), {"__module__": self.__name__})


def _add(name: str) -> None:
    module = _StandIn(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
