"""Modules without data, and checkpoints' tensors as their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from omni_python.models.loading.checkpoint import CheckpointError

M = TypeVar("M", bound=nn.Module)


@contextmanager
def on_meta() -> Iterator[None]:
    """Modules made here have weights without data, and no values are drawn for them: on the meta device torch brings in
    its compiler for that, which takes a second to import."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


def assign(module: M, tensors: dict[str, torch.Tensor], what: str) -> M:
    """`module`, built on the meta device, with `tensors` as its weights; raises `CheckpointError` where they differ.

    A checkpoint may hold buffers that the module computes itself and would not save: those are left out.
    """
    own = dict(module.named_buffers()).keys() - module.state_dict().keys()
    tensors = {name: tensor for name, tensor in tensors.items() if name not in own}
    try:
        module.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"the weights of the {what} do not fit its config: {error}") from error
    return module.eval().requires_grad_(False)
