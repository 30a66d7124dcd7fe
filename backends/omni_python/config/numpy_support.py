"""Which releases of Triton take numpy 2: said here alone, for what starts a server and for what runs in one."""

from __future__ import annotations

FIRST_RELEASE_WITH_NUMPY_2 = (24, 11)
"""The first whose Python stub is built with pybind11 2.12, which knows numpy 2's arrays (python_backend's
CMakeLists.txt on its branch r24.11; r24.10 has 2.10). Older ones send such arrays without their bytes and say nothing
(seen with 24.10)."""


def numpy_refusal(numpy_version: str, release: str | None) -> str:
    """Why this numpy does not work with the server, and what would; "" where it does.

    `release` is an image's, such as "24.10" (its NVIDIA_TRITON_SERVER_VERSION); None, or something that is no release,
    is let pass, since nothing is known of that server.
    """
    if int(numpy_version.split(".")[0]) < 2 or release is None:
        return ""
    try:
        year, month = (int(part) for part in release.split(".")[:2])
    except ValueError:
        return ""
    if (year, month) >= FIRST_RELEASE_WITH_NUMPY_2:
        return ""
    return (
        f"numpy {numpy_version} does not work with Triton {release}: its Python stub would send every array without "
        f'its bytes. Install one below 2: pip install "numpy<2"'
    )
