"""What Schemathesis has to know to get past the first checks. Its command line imports this by SCHEMATHESIS_HOOKS."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import HookContext

MODEL = "qwen3_omni"


@schemathesis.hook
def map_body(context: HookContext, body: Any) -> Any:
    """A model that is there, and short answers; whatever else is wrong with the body stays."""
    if isinstance(body, dict) and isinstance(body.get("model"), str) and 0 < len(body["model"]) <= 256:
        body = {**body, "model": MODEL}
        if "messages" in body and not {"max_tokens", "max_completion_tokens"} & body.keys():
            body["max_completion_tokens"] = 4
    return body


@schemathesis.hook
def map_path_parameters(context: HookContext, path_parameters: Any) -> Any:
    """Every other name of a model is one that is there."""
    if isinstance(path_parameters, dict) and len(str(path_parameters.get("name", ""))) % 2:
        return {**path_parameters, "name": MODEL}
    return path_parameters
