"""Recordings of one stage's inputs (`omni record`) as the input data of perf_analyzer, for that stage's model alone.

    omni record talker_ar "Read this to me."
    python3 scripts/perf_analyzer_input.py talker_ar.omnirec > stage.json
    perf_analyzer -m qwen3_omni_speech -i grpc --streaming --async --input-data stage.json --concurrency-range 1:8

The server must have been started with `omni serve --record-dir DIR --allow-replay`.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path


def step(recording: bytes) -> dict[str, object]:
    """The inputs of one request."""
    return {"recording": {"b64": base64.b64encode(recording).decode(), "shape": [len(recording)]}}


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    json.dump({"data": [step(Path(name).read_bytes()) for name in sys.argv[1:]]}, sys.stdout)


if __name__ == "__main__":
    main()
