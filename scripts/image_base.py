"""What the image is made from, for want of Triton's own: Debian, and the server of a wheel laid out as there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from scripts.image_packages import pinned_versions

SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = ("python3", f"libpython{PYTHON}", "virtualenv", "ca-certificates", "curl")
SERVER = "/opt/tritonserver"
BASE_ENVIRONMENT = {
    "PATH": f"{SERVER}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "NVIDIA_TRITON_SERVER_VERSION": "24.10",
}


def make_base(root: Path, work: Path, mirror: str | None) -> None:
    """Debian with what the official image has of what the Dockerfile uses."""
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    log = subprocess.run([*command, *filter(None, [mirror])], capture_output=True, text=True)
    if log.returncode:
        sys.exit(f"debootstrap failed:\n{log.stdout[-2000:]}{log.stderr}")
    lay_out_server(root, work)
    for line in (["useradd", "--uid", "1000", "--create-home", "triton-server"], ["ldconfig"]):
        subprocess.run(["chroot", root, *line], check=True, env=BASE_ENVIRONMENT)


def lay_out_server(root: Path, work: Path) -> None:
    requirement = f"nvidia-pytriton=={pinned_versions()['nvidia-pytriton']}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, f"--python-version={PYTHON}", f"--dest={work}", requirement], check=True)
    (wheel,) = work.glob("nvidia_pytriton-*.whl")
    zipfile.ZipFile(wheel).extractall(work / "wheel")
    server = root / SERVER.lstrip("/")
    shutil.move(work / "wheel" / "pytriton" / "tritonserver", server)
    shutil.move(work / "wheel" / "nvidia_pytriton.libs", server / "lib")
    name = "triton_python_backend_stub"
    shutil.move(server / "python_backend_stubs" / PYTHON / name, server / "backends" / "python" / name)
    shutil.rmtree(server / "python_backend_stubs")
    for program in (server / "bin" / "tritonserver", server / "backends" / "python" / name):
        program.chmod(0o755)
    (root / "etc" / "ld.so.conf.d" / "tritonserver.conf").write_text(f"{SERVER}/lib\n")
