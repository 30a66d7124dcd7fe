"""Regions of shared memory that a process has mapped, real ones in /dev/shm."""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_python.control.privacy import SHARED_MEMORY, hide_mapped_regions

NOBODY = 65534


@pytest.fixture
def region() -> Iterator[Path]:
    """Mapped by this process, and readable by all."""
    path = Path(SHARED_MEMORY) / f"omni-test-{secrets.token_hex(4)}"
    path.write_bytes(bytes(mmap.PAGESIZE))
    path.chmod(0o644)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        yield path
    path.unlink()


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_mapped_regions_are_hidden_and_others_left_alone(region: Path) -> None:
    other = region.with_name(f"{region.name}-other")
    other.touch(0o644)
    try:
        assert str(region) in hide_mapped_regions()
        assert (_mode(region), _mode(other)) == (0o600, 0o644)
    finally:
        other.unlink()


def test_a_link_that_has_taken_a_regions_place_leads_nowhere(
    region: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is put there after the process's regions were read."""
    precious = tmp_path / "precious"
    precious.touch()
    precious.chmod(0o644)
    before = Path("/proc/self/maps").read_text()
    region.unlink()
    region.symlink_to(precious)
    assert str(region) not in hide_mapped_regions()
    monkeypatch.setattr(Path, "read_text", lambda self: before)
    assert str(region) not in hide_mapped_regions()
    assert _mode(precious) == 0o644


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away, who it is in CI")
def test_another_users_region_is_left_alone(region: Path) -> None:
    os.chown(region, NOBODY, NOBODY)
    assert str(region) not in hide_mapped_regions()
    assert _mode(region) == 0o644
