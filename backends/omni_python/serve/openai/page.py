"""The playground, a page at `/` that talks to this server's own API."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from omni_python.serve.openai.errors import ApiError

_FOLDER = Path(__file__).resolve().parent / "playground"
_MEDIA_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {path.name: path for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}

_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing but this server's own files; blob: are the files that the user attached or recorded."""

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def playground() -> FileResponse:
    return _file(_FILES["index.html"])


@router.get("/playground/{name}")
async def playground_file(name: str) -> FileResponse:
    path = _FILES.get(name)
    if path is None:
        raise ApiError(404, f"The playground has no file {name!r}.", "not_found")
    return _file(path)


def _file(path: Path) -> FileResponse:
    return FileResponse(path, media_type=_MEDIA_TYPES[path.suffix], headers=_HEADERS)
