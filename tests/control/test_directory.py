"""The private directory of one server."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from omni_python.control.directory import leave_directory, remove_leftovers, server_directory, socket_address
from omni_python.proto.errors import OmniError


def test_every_process_of_a_server_finds_the_same_private_directory(tmp_path: Path) -> None:
    first = server_directory(tmp_path, os.getpid())
    assert server_directory(tmp_path, os.getpid()) == first
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert server_directory(tmp_path, os.getppid()) != first


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    server_directory(tmp_path, os.getpid()).chmod(mode)
    with pytest.raises(OmniError, match="is not a private directory of this user"):
        server_directory(tmp_path, os.getpid())


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    path = server_directory(tmp_path, os.getpid())
    path.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)
    with pytest.raises(OmniError, match="is not a private directory"):
        server_directory(tmp_path, os.getpid())


def test_leftovers_of_dead_servers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        theirs = server_directory(tmp_path, other.pid)
        (theirs / "socket").touch()
        mine = server_directory(tmp_path, os.getpid())
        assert remove_leftovers(mine) == []
        other.communicate(b"\n")
    assert remove_leftovers(mine) == [theirs]
    assert not theirs.exists() and mine.exists()


def test_leaving_removes_only_an_empty_directory(tmp_path: Path) -> None:
    path = server_directory(tmp_path, os.getpid())
    (path / "socket").touch()
    leave_directory(path)
    assert path.exists()
    (path / "socket").unlink()
    leave_directory(path)
    assert not path.exists()


def test_a_path_that_is_too_long_for_a_socket_is_named() -> None:
    with pytest.raises(OmniError, match="longer than 107 bytes; set endpoints.base_path to a shorter folder"):
        socket_address(Path("/tmp") / ("x" * 100), "socket")
