"""What newer Python backends have that 24.10's lacks: looked up once, when the model starts.

There is nothing here for `is_ready()`, which those from 26.03 on call on a model that has it, and others do not; nor
for `cancel()` of a call to another model (25.04): this backend calls no models through Triton, so none of its calls can
be left running (see `glue/stage.py`).
"""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

TAKES_RESPONSE_PARAMETERS = hasattr(pb_utils.InferenceResponse, "parameters")
"""Whether `InferenceResponse(parameters=...)` is there, which came with a method of that name (python_backend's
`src/pb_stub.cc`, 25.02). Keys are str; values bool, int or str."""

FIRST_RELEASE_WITH_RESPONSE_PARAMETERS = "25.02"
