"""Local files: regular ones below the root alone, whatever links and names say."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from omni_python.preprocessing.media import files
from omni_python.preprocessing.media.budget import Budget
from omni_python.preprocessing.media.files import read_file_url
from omni_python.proto.errors import Cancelled, InvalidArgument


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file, and beside it what must not be read."""
    folder = tmp_path / "media"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a b.bin").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    (tmp_path / "media-other").mkdir()
    (tmp_path / "media-other" / "file").write_bytes(b"outside")
    return folder


def read(url: str, root: Path, max_bytes: int = 1000) -> bytes:
    return bytes(read_file_url(url, str(root), Budget(max_bytes, 10)))


def test_files_below_the_root(root: Path) -> None:
    for url in (
        f"file://{root}/inner/a%20b.bin",
        f"file://localhost{root}/inner/a%20b.bin",
        f"file:{root}//inner/./a%20b.bin",
    ):
        assert read(url, root) == b"inside"
    (root / "empty").touch()
    assert read(f"file://{root}/empty", root) == b""


def test_names_in_any_encoding(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).write_bytes(b"latin")
    (root / "été").write_bytes(b"utf-8")
    assert read(f"file://{root}/caf%e9", root) == b"latin"
    assert read(f"file://{root}/%C3%A9t%C3%A9", root) == read(f"file://{root}/été", root) == b"utf-8"
    with pytest.raises(InvalidArgument, match="is no URL"):
        read("file:///\ud800", root)


def test_links_count_for_what_they_lead_to(root: Path, tmp_path: Path) -> None:
    (root / "link").symlink_to("inner")
    assert read(f"file://{root}/link/a%20b.bin", root) == b"inside"
    (tmp_path / "alias").symlink_to(root)
    assert read(f"file://{tmp_path}/alias/inner/a%20b.bin", tmp_path / "alias") == b"inside"
    assert read(f"file://{root}/inner/a%20b.bin", tmp_path / "alias") == b"inside"
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    for url in (f"file://{root}/out", f"file://{root}/up/secret", f"file://{root}/up/up/etc/passwd"):
        with pytest.raises(InvalidArgument, match=f"is not allowed; local files are read below {root} only"):
            read(url, root)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read(f"file://{root}/loop", root)


@pytest.mark.parametrize(
    "path",
    ["{root}/../secret", "{root}/inner/../../secret", "{root}/%2e%2e/secret", "{root}/..%2fsecret", "{root}/.."],
)
def test_dots_lead_nowhere(root: Path, path: str) -> None:
    with pytest.raises(InvalidArgument, match=f"must not contain '..'; local files are read below {root} only"):
        read("file://" + path.format(root=root), root)


def test_paths_beside_the_root(root: Path) -> None:
    for path in (
        "/etc/passwd",
        f"{root}-other/file",
        str(root),
        "/",
        f"{root.parent}/secret",
        "/proc/self/root/etc/passwd",
    ):
        with pytest.raises(InvalidArgument, match="is not allowed; local files are read below"):
            read(f"file://{path}", root)


@pytest.mark.parametrize(
    "url", ["file://host/x", "file:relative", "file://", "file:///x?y", "file:///x#y", "file:///x%00y", "file://[/x"]
)
def test_malformed_urls(root: Path, url: str) -> None:
    with pytest.raises(InvalidArgument, match="must look like file:///folder/name|is no URL"):
        read(url, root)


def test_only_regular_files_are_read(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for name in ("pipe", "inner"):
            with pytest.raises(InvalidArgument, match=f"{name!r} is no regular file"):
                read(f"file://{root}/{name}", root)
        with pytest.raises(InvalidArgument, match="cannot be read"):
            read(f"file://{root}/socket", root)
    if os.getuid() == 0:
        try:
            os.mknod(root / "zero", 0o20666, os.makedev(1, 5))
        except PermissionError:
            return
        with pytest.raises(InvalidArgument, match="'zero' is no regular file|cannot be read"):
            read(f"file://{root}/zero", root)


def test_sizes_are_checked_before_and_while_reading(root: Path) -> None:
    with (root / "large").open("wb") as file:
        file.truncate(10 << 30)  # sparse
    with pytest.raises(InvalidArgument, match="more than 1000 bytes together"):
        read(f"file://{root}/large", root)
    with pytest.raises(Cancelled):
        read_file_url(f"file://{root}/large", str(root), Budget(1 << 40, 10, lambda: True))
    with pytest.raises(InvalidArgument, match="No such file"):
        read(f"file://{root}/nothing", root)


def test_a_folder_that_becomes_a_link_while_it_is_checked_leads_nowhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race itself: the folder is swapped between the look at the links and the opening."""
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "a b.bin").write_bytes(b"outside")
    checked = files._read

    def swap_first(relative: str, folder: str, budget: Budget) -> bytearray:
        (root / "inner").rename(root / "was-inner")
        (root / "inner").symlink_to(tmp_path / "trap")
        return checked(relative, folder, budget)

    monkeypatch.setattr(files, "_read", swap_first)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read(f"file://{root}/inner/a%20b.bin", root)


def test_swapping_all_the_time_never_lets_anything_out(root: Path, tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "file").write_bytes(b"outside")
    (root / "good").mkdir()
    (root / "good" / "file").write_bytes(b"inside")
    os.symlink(root / "good", root / "a")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for target in (tmp_path / "trap", root / "good"):
                os.symlink(target, root / "b")
                os.rename(root / "b", root / "a")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        outcomes = set()
        reads, end = 0, time.monotonic() + 20
        while reads < 300 or (b"refused" not in outcomes and time.monotonic() < end):
            reads += 1
            try:
                outcomes.add(read(f"file://{root}/a/file", root))
            except InvalidArgument:
                outcomes.add(b"refused")
    finally:
        stop.set()
        thread.join()
    assert outcomes <= {b"inside", b"refused"} and b"refused" in outcomes
