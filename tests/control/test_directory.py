"""The private directory of one server."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from omni_python.control.directory import (
    find_server_directory,
    leave_directory,
    remove_leftovers,
    running_servers,
    server_directory,
    socket_address,
)
from omni_python.proto.errors import OmniError

NOBODY = 65534


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


@pytest.mark.parametrize("length", [4, 60, 200])
def test_a_path_that_is_too_long_for_a_socket_is_told_how_long_it_may_be(length: int) -> None:
    """What is advised fits exactly."""
    base, name = "/" + "b" * (length - 1), "n" * (100 if length == 4 else 30) + ".coordinator"
    with pytest.raises(OmniError, match=f"{name} is longer than 107 bytes; ") as error:
        socket_address(Path(base) / "omni-0-1-2", name)
    advice, number = str(error.value).split("; ")[1], int(re.findall("[0-9]+", str(error.value))[-1])
    if length == 4:
        assert advice == f"give the pipeline a name that is shorter by at least {number}"
        fits = socket_address(Path(base) / "omni-0-1-2", name[number:])
    else:
        assert advice == f"set endpoints.base_path to a folder whose path has at most {number} bytes"
        fits = socket_address(Path(base[:number]) / "omni-0-1-2", name)
    assert len(fits) == 107


def test_what_others_have_planted_beforehand_is_neither_used_nor_removed(tmp_path: Path) -> None:
    """In a folder where anybody may make anything. The names are of servers that are gone, or of nothing."""
    mine = server_directory(tmp_path, os.getpid())
    precious = tmp_path / "precious"
    (precious / "content").mkdir(parents=True, mode=0o700)
    user = os.getuid()
    names = [f"omni-{user}-{number}-1" for number in ("\u00b2", "\u0663", "9" * 200, "-1", "", "x", "1-1")]
    for name in names:
        (tmp_path / name).mkdir()
    link, file, open_to_all = (tmp_path / f"omni-{user}-{2**22 + n}-1" for n in range(3))
    link.symlink_to(precious)
    file.touch()
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    assert remove_leftovers(mine) == [] and running_servers(tmp_path) == {os.getpid(): mine}
    assert (precious / "content").exists() and link.is_symlink() and file.exists() and open_to_all.exists()


@pytest.mark.parametrize("plant", ["link", "file", "open"])
def test_a_supervisor_reads_nothing_in_a_directory_that_somebody_else_may_have_made(tmp_path: Path, plant: str) -> None:
    path = server_directory(tmp_path, os.getpid())
    assert find_server_directory(tmp_path, os.getpid()) == path
    path.rmdir()
    if plant == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    elif plant == "file":
        path.touch()
    else:
        path.mkdir()
        path.chmod(0o777)
    assert find_server_directory(tmp_path, os.getpid()) is None and running_servers(tmp_path) == {}
    with pytest.raises(OmniError, match="is not a private directory"):
        server_directory(tmp_path, os.getpid())


UNUSUAL_UMASK = """
import json, os, queue, stat, sys
from pathlib import Path
base, umask, user = json.loads(sys.argv[1])
from omni_python.control.directory import find_server_directory, server_directory, socket_address
from omni_python.control.inbox import Inbox
from omni_python.control.liveness import LifeSign, read_life_signs, write_life_sign
from omni_python.control.outlet import LocalOutlet
from omni_python.control.restart_wishes import restart_wishes, wish_restart
from omni_python.proto.messages import AbortMessage
if os.getuid() != user:
    os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
os.umask(umask)
made = Path(base) / "not there" / "yet"
for _ in range(2):
    folder = server_directory(made, os.getpid())
assert find_server_directory(made, os.getpid()) == folder
received = queue.SimpleQueue()
inbox = Inbox(socket_address(folder, "socket"), received.put)
inbox.start()
outlet = LocalOutlet(inbox.address)
outlet.send(AbortMessage(1, "heard"))
assert received.get(timeout=10) == AbortMessage(1, "heard")
for _ in range(2):
    write_life_sign(folder, "line", LifeSign(7, 3))
    wish_restart(folder, "line", "is tired")
assert read_life_signs(folder)["line"].sign == LifeSign(7, 3) and restart_wishes(folder) == {"line": "is tired"}
paths = [made, made.parent, folder, *folder.iterdir()]
print(json.dumps({str(path): stat.S_IMODE(path.stat().st_mode) for path in paths}))
outlet.close()
inbox.stop()
"""


@pytest.mark.parametrize("umask", [0o000, 0o777, 0o022])
def test_modes_do_not_depend_on_the_umask(umask: int) -> None:
    """In a process without root's rights, which would hide a mode that is too strict."""
    with tempfile.TemporaryDirectory(prefix="omni-test-") as base:
        os.chmod(base, 0o777)
        command = [sys.executable, "-c", UNUSUAL_UMASK, json.dumps([base, umask, os.getuid() or NOBODY])]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    modes = {Path(path).name: mode for path, mode in json.loads(run.stdout).items()}
    assert modes.pop("yet") == modes.pop("not there") == 0o755
    assert {name: mode for name, mode in modes.items() if name.startswith("omni-")}.popitem()[1] == 0o700
    assert sorted(modes.values()) == [0o600, 0o600, 0o600, 0o700]


def test_where_no_directory_can_be_made_the_user_is_told_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for base in (tmp_path / "file", Path("/proc/omni"), tmp_path / ("x" * 300)):
        with pytest.raises(
            OmniError, match=f"cannot make {base}/omni-.*; set endpoints.base_path to a folder in which"
        ):
            server_directory(base, os.getpid())
    command = [sys.executable, "-c", FORBIDDEN, str(tmp_path / "forbidden"), str(os.getuid() or NOBODY)]
    assert (
        "Permission denied; set endpoints" in subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    )


FORBIDDEN = """
import os, sys
from pathlib import Path
from omni_python.control.directory import server_directory
base, user = Path(sys.argv[1]), int(sys.argv[2])
base.mkdir(mode=0o555)
if os.getuid() != user:
    os.setresuid(user, user, user)
try:
    server_directory(base, os.getpid())
except Exception as error:
    print(error)
"""
