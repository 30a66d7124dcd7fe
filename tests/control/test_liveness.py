"""Signs of life, where they can be written and where they cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omni_python.control.liveness import LifeSign, read_life_signs, remove_life_sign, write_life_sign


def test_the_newest_sign_of_each_pipeline_is_read(tmp_path: Path) -> None:
    for requests in range(3):
        write_life_sign(tmp_path, "line", LifeSign(7, requests))
    write_life_sign(tmp_path, "other", LifeSign(8, 0, draining=True, complete=True))
    (tmp_path / "garbage.alive").write_bytes(b"{")
    (tmp_path / "folder.alive").mkdir()
    found = {name: life.sign for name, life in read_life_signs(tmp_path).items()}
    assert found == {"line": LifeSign(7, 2), "other": LifeSign(8, 0, draining=True, complete=True)}
    remove_life_sign(tmp_path, "line")
    assert set(read_life_signs(tmp_path)) == {"other"}


def test_where_nothing_can_be_written_the_sign_before_shows_life(tmp_path: Path) -> None:
    """Else whoever fills the disk would let supervisors kill orchestrators that are well."""
    write_life_sign(tmp_path, "line", LifeSign(7, 2))
    os.utime(tmp_path / "line.alive", (0, 0))
    [before] = read_life_signs(tmp_path).values()
    for name in ("line", "new"):
        (tmp_path / f"{name}.alive.draft").mkdir()  # in the way
        with pytest.raises(OSError, match="draft"):
            write_life_sign(tmp_path, name, LifeSign(7, 3))
    found = read_life_signs(tmp_path)
    assert set(found) == {"line"} and found["line"].sign == LifeSign(7, 2) and found["line"].written > before.written
