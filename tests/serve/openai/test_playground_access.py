"""The playground by keyboard, for screen readers, and on narrow screens."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.serve.openai.playground_page import (
    OpenPage,
    ask,
    browser,
    complaints,
    finished,
    message_box,
    open_page,
    page,
)

__all__ = ["browser", "complaints", "open_page", "page"]

ANSWER = {"ignore_eos": True, "max_completion_tokens": 6, "talker": {"max_tokens": 10}}

CONTRASTS = r"""
() => {
  const luminance = ([r, g, b]) => {
    const linear = [r, g, b].map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (below, colour) => {
    canvas.fillStyle = `rgb(${below.map((c) => 255 * c).join(" ")})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((c) => c / 255);
  };
  const background = (element) =>
    element ? over(background(element.parentElement), getComputedStyle(element).backgroundColor) : [1, 1, 1];
  const texts = [...document.querySelectorAll("body *")].filter(
    (element) => element.checkVisibility() && [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim()),
  );
  return texts.map((element) => {
    const behind = background(element);
    const [dark, light] = [luminance(behind), luminance(over(behind, getComputedStyle(element).color))].sort();
    return [element.textContent.trim(), (light + 0.05) / (dark + 0.05)];
  });
}
"""


def test_every_control_has_a_name(page: Page) -> None:
    ask(page, "Hello!", ANSWER)
    finished(page)
    expect(page.locator("#stop")).to_be_hidden()  # once the speech is played, too
    page.get_by_role("button", name="Record speech").click()
    expect(page.locator("#recording")).to_be_visible()
    controls = page.locator("button, input:not([hidden]), select, textarea, summary").filter(visible=True).all()
    assert len(controls) > 15
    for control in controls:
        expect(control).to_have_accessible_name(re.compile(r"\w"))
    roles = page.locator("main").aria_snapshot()
    for part in ('log "Conversation"', 'heading "You"', 'heading "Answer"', 'textbox "Message"', "status"):
        assert part in roles
    expect(page.locator(".answer .text")).to_have_attribute("aria-live", "polite")
    page.keyboard.press("Escape")
    expect(page.locator("#recording")).to_be_hidden()
    expect(message_box(page)).to_be_focused()


def test_the_keyboard_reaches_everything_in_order(page: Page) -> None:
    expect(message_box(page)).to_be_focused()
    names = []
    for _ in range(13):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        names.append(focused.evaluate("(e) => e.ariaLabel ?? e.labels?.[0]?.innerText.split('\\n')[0] ?? e.innerText"))
        outline = focused.evaluate("(e) => getComputedStyle(e.type === 'radio' ? e.nextSibling : e).outlineStyle")
        assert outline == "solid", names[-1]
    assert [name.strip() for name in names] == [
        "Attach sound, pictures or video",
        "Record speech",
        "Send",
        "Reset",
        "Model",
        "Text and speech",
        "Voice",
        "System message",
        "Temperature",
        "Top p",
        "Seed",
        "Max tokens",
        "More fields (JSON)",
    ]


def test_a_picture_that_cannot_be_shown_is_named(page: Page, complaints: list[str]) -> None:
    page.locator("#files").set_input_files({"name": "torn.png", "mimeType": "image/png", "buffer": b"torn"})
    expect(page.locator("#attachments img")).to_have_count(0)
    ask(page, "What is this?")
    answer = finished(page)
    expect(page.locator(".question .media")).to_have_text("torn.png")
    expect(page.locator(".question img")).to_have_count(0)
    expect(answer.locator(".failed")).to_contain_text("unreadable image file")
    expect(answer.locator("details")).to_be_hidden()  # there are no times of an answer that never came
    assert len(complaints) == 1 and "status of 400" in complaints.pop()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_it_can_be_read(open_page: OpenPage, width: int, theme: str) -> None:
    """Text has the contrast that WCAG 2.2 asks for (1.4.3, level AA), and nothing sticks out of the narrowest screen
    that it names (1.4.10)."""
    page = open_page(width, theme)
    if width < 900:
        page.get_by_role("button", name="Settings", exact=True).click()
        expect(page.get_by_label("Model")).to_be_focused()
    page.get_by_label("More fields").fill(
        '{"ignore_eos": true, "max_completion_tokens": 6, "talker": {"max_tokens": 10}}'
    )
    if width < 900:
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Settings", exact=True)).to_be_focused()
        expect(page.get_by_label("Model")).to_be_hidden()
    ask(page, "Hello!")
    finished(page)
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 15
    assert [text for text in contrasts if text[1] < 4.5] == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
