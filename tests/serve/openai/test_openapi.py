"""Schemathesis sends what the server's own OpenAPI description says is valid, and what it says is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from omni_python.serve.openai.server import HttpServer

SECONDS = int(os.environ.get("OMNI_SCHEMATHESIS_SECONDS", "0"))
"""For a longer search than in CI, which has a number of examples, however busy the machine is."""

EXAMPLES = 10
"""For each operation, beside the cases that its schema's own values give."""

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)


@pytest.mark.timeout(SECONDS + 300)
def test_nothing_ends_in_a_server_error(api: HttpServer, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{api.url}/openapi.json"),
        *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--continue-on-failure"),
        *((f"--max-time={SECONDS}",) if SECONDS else (f"--max-examples={EXAMPLES}",)),
        *("--seed=6", "--generation-database=none", "--no-color"),
        *("--suppress-health-check=all", "--warnings=off"),
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.serve.openai.schemathesis_hooks", "NO_PROXY": "*"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    environment["PYTHONWARNINGS"] = "ignore"
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS + 200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Tested: 7" in done.stdout  # every operation


def test_every_path_is_described(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/v1/chat/completions",
        "/v1/audio/speech",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/audio/voices",
        "/health",
        "/metrics",
    }
    schemas = described["components"]["schemas"]
    assert set(schemas["StageTime"]["properties"]) == {"stage", "start", "first", "end"}
    chat = described["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatRequest")
    assert schemas["ChatRequest"]["additionalProperties"] is False
