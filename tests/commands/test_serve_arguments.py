"""What `omni serve` and `omni quickstart` say of ports and numbers that cannot be, before they start anything."""

from __future__ import annotations

import pytest

from omni_python.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--http-port", "65536"], "--http-port: must be at most 65535, or 0 for a free one, not 65536"),
        (["serve", "--metrics-port=-1"], "--metrics-port: must be at most 65535"),
        (["serve", "--openai-port", "8001"], "--openai-port: 8001 is that of --grpc-port; give each its own"),
        (["quickstart", "--grpc-port", "8000"], "--grpc-port: 8000 is that of --http-port"),
        (["serve", "--drain-seconds", "nan"], "--drain-seconds: must be 0 or more, not nan"),
        (["serve", "--max-deaths=-1"], "--max-deaths: must be 0 or more, not -1"),
        (["serve", "--http-port=0", "--grpc-port=0", "--model-repository=none"], "there is no model repository at "),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) in (1, 2)
    printed = capfd.readouterr()
    assert printed.out == "" and message in printed.err and printed.err.count("\n") == 1
