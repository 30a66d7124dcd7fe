"""Where the image's packages come from: which versions its Python would get, and this machine's indexes of them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlparse

from scripts.image_steps import REPOSITORY

IMAGES_PYTHON, IMAGES_PLATFORM = "3.12", "x86_64-manylinux_2_28"
CONSTRAINTS = REPOSITORY / "scripts" / "constraints.txt"


def pinned_versions() -> dict[str, str]:
    """The exact versions of scripts/constraints.txt, by plain name."""
    lines = CONSTRAINTS.read_text("utf-8").splitlines()
    return {plain(name): version for name, equals, version in (line.partition("==") for line in lines) if equals}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(extras: Sequence[str]) -> None:
    """That there are wheels of all that these extras need for the image's Python, in pinned versions, as uv finds."""
    wanted = ["--constraint", str(CONSTRAINTS), *(f"--extra={extra}" for extra in extras)]
    target = [f"--python-version={IMAGES_PYTHON}", f"--python-platform={IMAGES_PLATFORM}", "--only-binary=:all:"]
    result = subprocess.run(
        ["uv", "pip", "compile", "--quiet", "--no-header", *wanted, *target, str(REPOSITORY / "pyproject.toml")],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        sys.exit(result.stderr)
    pinned = pinned_versions()
    parts = re.split(r"\n(?=\S)", result.stdout.strip())
    free = [part.split()[0] for part in parts if plain(part.split("==")[0]) not in pinned and not by_torch(part)]
    if free:
        sys.exit(f"scripts/constraints.txt does not pin {', '.join(free)}")
    print(f"    {len(parts)} packages")


def by_torch(part: str) -> bool:
    """Of CUDA, in the versions that torch's own requirements say."""
    return part.startswith(("nvidia-", "cuda-", "triton=="))


def pip_settings() -> tuple[dict[str, str], list[Path]]:
    """This machine's settings of pip as variables, and what they name of its files: none of it stays in an image."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, value = line.split("=", 1)
        found["PIP_" + name.rpartition(".")[2].upper().replace("-", "_")] = " ".join(shlex.split(value))
    places = {Path("/etc/resolv.conf")}
    for word in " ".join(found.values()).split():
        if word.startswith("file:"):
            places.add(Path(urlparse(word).path).parent)  # an index may link to files beside it
        elif word.startswith("/"):
            places.add(Path(word))
    return found, [place for place in places if place.exists()]


def make_index(folder: Path, wheel: Path) -> None:
    """Such an index as pip wants, of one wheel."""
    place = folder / wheel.name.split("-")[0]
    place.mkdir(parents=True)
    shutil.copy2(wheel, place)
    (place / "index.html").write_text(f'<a href="{quote(wheel.name)}">{wheel.name}</a>\n')
