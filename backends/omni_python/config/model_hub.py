"""Models by their names on Hugging Face's hub."""

from __future__ import annotations

import re


def is_hub_id(model_path: str) -> bool:
    """Whether it has the form of a model's name on the hub: an owner, a slash and a name."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", model_path) is not None


def cached_model(hub_id: str) -> str | None:
    """The folder of the last snapshot that was downloaded into Hugging Face's cache (`HF_HOME`), complete or not.

    Nothing is downloaded: a server that starts would take an hour, once for each process, and some have no network.
    """
    from huggingface_hub import snapshot_download  # half a second, for those who have an id
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(hub_id, local_files_only=True)
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def how_to_get(model_path: str) -> str:
    """For messages about a checkpoint that is not there."""
    tiny = "`omni checkpoint` makes a tiny one"
    if is_hub_id(model_path):
        return f"`hf download {model_path}` puts it into Hugging Face's cache, where it is looked for, and {tiny}"
    return tiny
