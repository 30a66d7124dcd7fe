"""Stand-ins for compiled packages that SGLang imports, for machines without a GPU, where they have no build.

Its CPU path calls a single function of `sgl_kernel`, and nothing of torchvision, which it wants for models that prepare
pictures themselves; all other names only have to exist. Packages that are installed are never replaced.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any, NoReturn

import torch

_TORCHVISION = ("torchvision", "torchvision.io", "torchvision.transforms", "torchvision.transforms.functional")


def prepare(gpu: bool) -> None:
    """Make `import sglang` possible and choose its device; to be called before the first import."""
    if not gpu:
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        if importlib.util.find_spec("sgl_kernel") is None:
            _add("sgl_kernel")
            sys.modules["sgl_kernel"].__dict__["assign_req_to_token_pool_cpu"] = assign_slots
    if importlib.util.find_spec("torchvision") is None:
        import transformers.image_utils  # it has then noticed that there is no torchvision, and remembers it

        assert not transformers.utils.is_torchvision_available()
        for name in _TORCHVISION:
            _add(name)
        _replace_auto_image_processor()


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


class _StandIn(types.ModuleType):
    __version__ = "0.0"
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(f"{self.__name__}.{name} is not there without a GPU")

        return missing


def _add(name: str) -> None:
    module = _StandIn(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
