"""Laying out a server's surroundings, and the refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from omni_python.commands.serve import shell_command
from omni_python.serve.environment import Installation, ServerSetupError, check_numpy, find_installation
from omni_python.serve.server_log import failure_reason
from omni_python.serve.server_options import ServerOptions, free_ports


@pytest.mark.parametrize(
    ("numpy", "image", "refused"),
    [
        ("1.26.4", "24.10", False),
        ("2.0.0", "24.10", True),
        ("2.4.6", "23.12", True),
        ("2.4.6", "24.11", False),
        ("2.4.6", "26.11", False),
        ("2.4.6", None, False),
        ("2.4.6", "unknown", False),
    ],
)
def test_numpy_2_is_refused_for_old_servers(numpy: str, image: str | None, refused: bool) -> None:
    if not refused:
        check_numpy(numpy, image)
        return
    with pytest.raises(ServerSetupError, match=rf"numpy {numpy}.*Triton {image}.*numpy<2"):
        check_numpy(numpy, image)


def test_backend_directory_is_complete_and_made_once() -> None:
    installation = find_installation()
    assert (installation.backend_directory / "python" / "triton_python_backend_utils.py").is_file()
    assert (installation.backend_directory / "omni_python" / "__init__.py").is_file()
    assert list(installation.working_directory.iterdir()) == []
    assert find_installation() == installation


def test_server_on_path_wins_and_keeps_its_own_python_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "triton" / "bin").mkdir(parents=True)
    executable = tmp_path / "triton" / "bin" / "tritonserver"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    monkeypatch.setenv("PATH", str(executable.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ServerSetupError, match="has no Python backend"):
        find_installation()

    python = tmp_path / "triton" / "backends" / "python"
    python.mkdir(parents=True)
    installation = find_installation()
    assert installation.executable == executable
    assert (installation.backend_directory / "python").resolve() == python
    assert installation.backend_directory.is_relative_to(tmp_path / "cache")

    (tmp_path / "triton" / "backends" / "omni_python").mkdir()
    assert find_installation().backend_directory == tmp_path / "triton" / "backends"


def test_environment_puts_its_folders_first() -> None:
    installation = Installation(Path("/s"), Path("/b"), Path("/w"), (Path("/venv/bin"),), (Path("/l1"), Path("/l2")))
    assert installation.environment({"PATH": "/usr/bin", "PYTHONHOME": "/x", "A": "1"}) == {
        "PATH": "/venv/bin:/usr/bin",
        "LD_LIBRARY_PATH": "/l1:/l2",
        "A": "1",
    }


def test_printed_command_gives_a_shell_the_same_environment(tmp_path: Path) -> None:
    show = tmp_path / "with space" / "show"
    show.parent.mkdir()
    show.write_text('#!/bin/sh\necho "$PATH|$LD_LIBRARY_PATH|$PYTHONHOME|$PWD|$*"\n')
    show.chmod(0o755)
    installation = Installation(show, tmp_path, tmp_path, (Path("/venv/bin"),), (Path("/l1"),))
    outer = {"PATH": "/usr/bin:/bin", "PYTHONHOME": "/x"}
    line = shell_command(installation, [str(show), "--load-model=*", "--model-repository=/a b"])
    said = subprocess.run(["/bin/sh", "-c", line], env=outer, capture_output=True, text=True, check=True).stdout
    wanted = installation.environment(outer)
    assert said == f"{wanted['PATH']}|{wanted['LD_LIBRARY_PATH']}||{tmp_path}|--load-model=* --model-repository=/a b\n"


def test_free_ports_are_different_and_leave_given_ones() -> None:
    ports = free_ports("127.0.0.1", [0, 4321, 0, 0])
    assert ports[1] == 4321 and len(set(ports)) == 4 and all(ports)


def test_every_server_has_its_own_name(tmp_path: Path) -> None:
    options = ServerOptions(model_repository=tmp_path)
    assert options.resolved().name != options.resolved().name


def test_reason_prefers_failed_models_then_errors_then_the_end() -> None:
    error = 'E1128 00:15:25.1 52 server.cc:241] "{}"'
    harmless, other = error.format("CudaDriverHelper has not been initialized."), error.format("no room")
    model = error.format(r"failed to load 'm' version 1: Internal: ValueError: bad\n\nAt:\n  model.py(5)")
    assert failure_reason("\n".join([harmless, other, model])) == (
        "failed to load 'm' version 1: Internal: ValueError: bad\n\nAt:\n  model.py(5)"
    )
    assert failure_reason("\n".join([harmless, other, "error: creating server"])) == "no room\nerror: creating server"
    assert failure_reason("+--+\n| table |\nkilled\n+--+") == "killed"
    assert failure_reason("\n".join(f"line {n}" for n in range(50))).splitlines()[0] == "line 30"
    assert failure_reason("") == "its log is empty"
    told = error.format(r"failed to load 'm' version 1: Internal: ConfigError: no\nGPU 3\n\nAt:\n  model.py(5)")
    assert failure_reason(told) == "failed to load 'm' version 1: Internal: ConfigError: no\nGPU 3"


def test_serve_says_what_is_missing(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "omni_python.cli", "serve", "--model-repository", str(tmp_path / "none")],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and "no model repository at" in result.stderr
