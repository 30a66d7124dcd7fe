"""Reading a Hugging Face checkpoint directory: its JSON files, and the weights of one part of the model.

Needs neither transformers nor a network, and reads no tensor that was not asked for.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from omni_python.config.model_hub import how_to_get
from omni_python.proto.errors import OmniError


class CheckpointError(OmniError):
    """A checkpoint directory that cannot be used; the message says which file or tensor is missing or wrong."""


def load_config(directory: str | Path) -> dict[str, Any]:
    """The checkpoint's config.json."""
    return load_json(directory, "config.json")


def load_json(directory: str | Path, name: str) -> dict[str, Any]:
    """One JSON object of the checkpoint; raises `CheckpointError` where it is missing or no JSON object."""
    path = _directory(directory) / name
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {str(directory)!r} has no {name}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def read_tensors(
    directory: str | Path, prefix: str, dtype: torch.dtype | None = None, device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """Every tensor whose name starts with `prefix`, by its name without the prefix.

    `prefix` is as written in the checkpoint, for example "thinker.audio_tower."; "" reads all. Tensors are put on
    `device`, and cast to `dtype` where one is given; on "meta" they have shape and `dtype` alone, and no data is
    read. Raises `CheckpointError` where there is no such tensor.
    """
    found: dict[str, torch.Tensor] = {}
    for path, names in _tensor_files(_directory(directory)).items():
        wanted = None if names is None else [name for name in names if name.startswith(prefix)]
        if wanted == []:
            continue
        with _open(path, "cpu" if device == "meta" else device) as file:
            stored = set(file.keys())
            for name in sorted(n for n in stored if n.startswith(prefix)) if wanted is None else wanted:
                if name not in stored:
                    raise CheckpointError(f"{path} has no tensor {name!r}, though the index says so")
                if device == "meta":
                    tensor = torch.empty(file.get_slice(name).get_shape(), dtype=dtype, device=device)
                else:
                    tensor = file.get_tensor(name)
                found[name.removeprefix(prefix)] = tensor if dtype is None else tensor.to(dtype)
    if not found:
        raise CheckpointError(f"checkpoint {str(directory)!r} has no tensor whose name starts with {prefix!r}")
    return found


def checkpoint_hash(directory: str | Path) -> str:
    """SHA-256 (hex) over name, dtype, shape and bytes of every tensor in the order of the names.

    It does not depend on how the tensors are laid out in files. Reads one tensor at a time.
    """
    digest = hashlib.sha256()
    with ExitStack() as opened:
        files = [opened.enter_context(_open(path, "cpu")) for path in _tensor_files(_directory(directory))]
        where = {name: file for file in files for name in sorted(file.keys())}
        for name in sorted(where):
            tensor = where[name].get_tensor(name)
            digest.update(f"{name}|{str(tensor.dtype).removeprefix('torch.')}|{list(tensor.shape)}|".encode())
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _directory(directory: str | Path) -> Path:
    path = Path(directory)
    if not path.is_dir():
        raise CheckpointError(f"checkpoint {str(directory)!r} is not there; {how_to_get(str(directory))}")
    return path


def _tensor_files(directory: Path) -> dict[Path, list[str] | None]:
    """The safetensors files, each with its tensors' names where an index tells them."""
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if index.exists():
        files: dict[str, list[str]] = {}
        for name, file in sorted(load_json(directory, index.name).get("weight_map", {}).items()):
            files.setdefault(file, []).append(name)
        return {directory / file: names for file, names in files.items()}
    if single.exists():
        return {single: None}
    raise CheckpointError(f"checkpoint {str(directory)!r} has neither {single.name} nor {index.name}")


def _open(path: Path, device: str) -> Any:
    try:
        return safe_open(path, framework="pt", device=device)
    except FileNotFoundError:
        raise CheckpointError(f"the checkpoint's file {path} is missing") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
