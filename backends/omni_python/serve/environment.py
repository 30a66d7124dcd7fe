"""Find a tritonserver on this machine, and lay out what it needs: a backend directory, libraries and this Python.

A server is taken from PATH (the official images, a package of the system), else from the nvidia-pytriton wheel. The
wheel has the server's binaries alone, so for it a backend directory is put together in the user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from omni_python.config.numpy_support import numpy_refusal

PACKAGE = Path(__file__).resolve().parent.parent
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


class ServerSetupError(RuntimeError):
    """No server can be started like this; the message says what to install or change."""


@dataclass(frozen=True)
class Installation:
    """A tritonserver that can run the omni_python backend.

    `path` and `library_path` go in front of PATH and LD_LIBRARY_PATH. The server must run in `working_directory`, an
    empty folder: a stub has its working directory first on its module path, where any `model.py` would replace the
    backend's.
    """

    executable: Path
    backend_directory: Path
    working_directory: Path
    path: tuple[Path, ...]
    library_path: tuple[Path, ...]

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """`base` (by default this process's environment) with what the server needs."""
        result = dict(os.environ if base is None else base)
        result.pop("PYTHONHOME", None)
        for name, folders in (("PATH", self.path), ("LD_LIBRARY_PATH", self.library_path)):
            entries = [*map(str, folders), *filter(None, [result.get(name)])]
            if entries:
                result[name] = os.pathsep.join(entries)
        return result


def find_installation() -> Installation:
    """The server that this machine has, ready to start. Raises ServerSetupError where something is missing."""
    on_path = shutil.which("tritonserver")
    if on_path:
        return _system_installation(Path(on_path).resolve())
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerSetupError(
            "there is no tritonserver: put one on PATH (the official Triton images have it), "
            "or install the one of the wheel with: pip install --no-deps nvidia-pytriton==0.7.0"
        )
    return _wheel_installation(Path(spec.submodule_search_locations[0]) / "tritonserver")


def check_numpy(numpy_version: str, release: str | None) -> None:
    """Raise ServerSetupError for a numpy whose arrays the server's Python stub would pass on empty; see
    `numpy_refusal`."""
    if refusal := numpy_refusal(numpy_version, release):
        raise ServerSetupError(refusal)


def libpython_folder() -> Path:
    """The folder with this Python's shared library, which the Python stub is linked to."""
    library = f"libpython{PYTHON_VERSION}.so.1.0"
    libdir = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    for folder in (libdir, libdir / (sysconfig.get_config_var("MULTIARCH") or "")):
        if (folder / library).exists():
            return folder
    raise ServerSetupError(
        f"{sys.executable} has no {library} (looked in {libdir}), which Triton's Python stub needs: "
        f"on Debian and Ubuntu install the package libpython{PYTHON_VERSION}"
    )


def _system_installation(executable: Path) -> Installation:
    check_numpy(metadata.version("numpy"), os.environ.get("NVIDIA_TRITON_SERVER_VERSION"))
    backends = executable.parent.parent / "backends"
    if not (backends / "python").is_dir():
        raise ServerSetupError(f"{executable} has no Python backend: there is no folder {backends / 'python'}")

    def lay_out(folder: Path) -> None:
        (folder / "python").symlink_to(backends / "python")
        (folder / "omni_python").symlink_to(PACKAGE)

    base = _cached_folder(f"system-py{PYTHON_VERSION}", backends, lay_out)
    own = backends if (backends / "omni_python").is_dir() else base / "backends"
    return Installation(executable, own, base / "cwd", (_python_folder(),), ())


def _wheel_installation(root: Path) -> Installation:
    version = metadata.version("nvidia-pytriton")
    check_numpy(metadata.version("numpy"), "24.10")
    stub = root / "python_backend_stubs" / PYTHON_VERSION / "triton_python_backend_stub"
    if not stub.exists():
        raise ServerSetupError(f"nvidia-pytriton {version} has no Python stub for Python {PYTHON_VERSION}")
    libpython = libpython_folder()

    def lay_out(folder: Path) -> None:
        # Copies: Triton refuses a backend library whose real path is outside of the backend's folder.
        (folder / "python").mkdir()
        for source in (*(root / "backends" / "python").glob("*.*"), stub):
            shutil.copy2(source, folder / "python")
        (folder / "omni_python").symlink_to(PACKAGE)

    base = _cached_folder(f"wheel-{version}-py{PYTHON_VERSION}", root, lay_out)
    return Installation(
        root / "bin" / "tritonserver",
        base / "backends",
        base / "cwd",
        (_python_folder(),),
        (root.parent.parent / "nvidia_pytriton.libs", libpython),
    )


def _python_folder() -> Path:
    """The folder of this `python3`: a stub takes its packages from the first `python3` on PATH."""
    folder = Path(sys.executable).parent
    if not (folder / "python3").exists():
        raise ServerSetupError(f"there is no python3 beside {sys.executable}: Triton's stub looks for that name")
    return folder


def _cached_folder(name: str, source: Path, lay_out: Callable[[Path], None]) -> Path:
    """`<cache>/omni_python/<name>-<key>` with `backends/`, filled by `lay_out`, and an empty `cwd/`.

    The key is made of the places that its content comes from, so that a complete folder never has to change.
    """
    key = hashlib.sha256(f"{source}\0{PACKAGE}".encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omni_python"
    folder = cache / f"{name}-{key}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=cache))
        (draft / "backends").mkdir()
        (draft / "cwd").mkdir()
        lay_out(draft / "backends")
        try:
            draft.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(draft)
            if not folder.exists():
                raise
    return folder
