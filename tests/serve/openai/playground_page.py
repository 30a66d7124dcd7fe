"""The playground, opened in a real Chromium whose microphone hears a WAV file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect, sync_playwright

from omni_python.serve.openai.encoding import encoded
from omni_python.serve.openai.server import HttpServer
from tests.serve.openai.test_encoding import tone

# Most pages are waited for as long as this at most; 5 s, the default, is little on a busy machine.
expect.set_options(timeout=20_000)

HEARD_HZ = 440.0
"""The pitch that the microphone hears."""

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        message = "the playground's tests need Debian's chromium: apt-get install chromium"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    heard = tmp_path_factory.mktemp("microphone") / "heard.wav"
    heard.write_bytes(encoded("wav", tone(4.0, 48000, HEARD_HZ), 48000))
    devices = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=[*devices, f"--use-file-for-fake-audio-capture={heard}"]
        )
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """Errors on the console of the pages of a test, which fails if it leaves any in here."""
    return []


@pytest.fixture
def open_page(browser: Browser, api: HttpServer, complaints: list[str]) -> Iterator[OpenPage]:
    """Opens the playground on a screen of this width, in a theme."""
    contexts = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def open_page(width: int = 1280, theme: Any = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", listen)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{api.url}/?record")
        expect(page.locator("#model")).to_have_value("qwen3_omni", timeout=30_000)
        # A server that has just started answers its first questions slowly.
        expect(page.locator("select#voice")).to_have_count(1, timeout=30_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    return open_page()


def message_box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message", exact=True)


def ask(page: Page, text: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a message by keyboard; the body of the request that the page makes."""
    if fields is not None:
        page.get_by_label("More fields").fill(json.dumps(fields))
    message_box(page).fill(text)
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Control+Enter")
    return body_of(sent.value)


def body_of(request: Request) -> dict[str, Any]:
    assert request.post_data is not None
    body: dict[str, Any] = json.loads(request.post_data)
    return body


def finished(page: Page) -> Locator:
    """The newest answer, once all of it has come."""
    answer = page.locator(".answer").last
    expect(answer.locator(".text")).to_have_attribute("aria-busy", "false", timeout=30_000)
    return answer
