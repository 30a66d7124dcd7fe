"""How the playground's files are served."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from omni_python.serve.openai.app import create_app
from omni_python.serve.openai.server import HttpServer


@pytest.fixture(scope="module")
def site() -> Iterator[httpx.Client]:
    """The application with no Triton behind it."""
    with HttpServer(create_app("127.0.0.1:1")) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        yield client


def test_every_file_that_is_referred_to_is_there(site: httpx.Client) -> None:
    types = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    seen, ahead = set(), ["/"]
    while ahead:
        path = ahead.pop()
        reply = site.get(path)
        kind = path.rpartition(".")[2] if "." in path else "html"
        assert reply.status_code == 200 and reply.headers["content-type"].split(";")[0] == types[kind], path
        assert "http://" not in reply.text.replace("http://www.w3.org/2000/svg", "") and "https://" not in reply.text
        _check_policy(reply)
        seen.add(path)
        found = set(re.findall(r'"(/playground/[\w.-]+)"', reply.text))
        found |= {f"/playground/{name}" for name in re.findall(r'from "\./([\w.-]+)"', reply.text)}
        ahead += found - seen - set(ahead)
    assert {"/playground/style.css", "/playground/player-worklet.js", "/playground/wav.js"} < seen


def _check_policy(reply: httpx.Response) -> None:
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["nothing.js", "..%2fapp.py", "%2e%2e/app.py", "page.py"])
def test_nothing_else_is_served(site: httpx.Client, name: str) -> None:
    reply = site.get(f"/playground/{name}")
    assert reply.status_code == 404 and "import" not in reply.text


def test_the_page_is_no_part_of_the_api(site: httpx.Client) -> None:
    assert not [path for path in site.get("/openapi.json").json()["paths"] if path == "/" or "playground" in path]
