"""What the playground does, in a real Chromium against the real server."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from omni_python.serve.openai import page as playground
from omni_python.serve.triton_server import TritonServer
from tests.e2e import metrics
from tests.serve.openai.playground_page import (
    HEARD_HZ,
    ask,
    browser,
    complaints,
    finished,
    message_box,
    open_page,
    page,
)
from tests.serve.openai.test_encoding import decoded, pitch

__all__ = ["browser", "complaints", "open_page", "page"]

PHOTO = Path("backends/omni_python/commands/data/photo.jpg")
LENGTHS: dict[str, Any] = {"ignore_eos": True, "talker": {"max_tokens": 20, "temperature": 0, "ignore_eos": True}}
ENDLESS = {"ignore_eos": True, "max_completion_tokens": 4000}


KEEP_ANSWERS = """
() => {
  const plain = fetch;
  window.answers = [];
  window.fetch = async (...request) => {
    const response = await plain(...request);
    if (response.url.endsWith("/v1/chat/completions")) answers.push(response.clone().text());
    return response;
  };
}
"""
"""The browser's protocol cannot be asked for a body afterwards: Chromium may have thrown it away."""


def streamed(body: str) -> tuple[str, np.ndarray]:
    """Text and 16-bit samples [n] of a streamed answer."""
    text, wav = "", b""
    for line in body.splitlines():
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
            text += choice["delta"].get("content") or ""
            wav += base64.b64decode(choice["delta"].get("audio", {}).get("data", ""))
    header, samples = wav[:44], np.frombuffer(wav[44:], "<i2")
    assert struct.unpack_from("<I", header, 24) == (24000,)
    return text, samples


def played(page: Page) -> np.ndarray:
    """The float32 frames that the page handed to the audio output."""
    return np.array(page.evaluate("playedFrames.map((frames) => [...frames]).flat()"), np.float32)


def test_speech_in_text_and_sound_out(page: Page, http: httpx.Client) -> None:
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Max tokens").fill("12")
    page.get_by_role("button", name="Record speech").click()
    expect(page.locator("#recorded")).to_have_text(re.compile(r"^[1-9]\.\d s$"))
    page.get_by_role("button", name="Finish recording").click()
    expect(page.get_by_role("list", name="Attachments")).to_contain_text("Recording, ")
    page.evaluate(KEEP_ANSWERS)
    body = ask(page, "What was that?", LENGTHS)
    answer = finished(page)

    [spoken, written] = body["messages"][0]["content"]
    assert written == {"type": "text", "text": "What was that?"}
    heard, rate = decoded("wav", base64.b64decode(spoken["input_audio"]["data"]), 0)
    assert len(heard) > 0.9 * rate and abs(pitch(heard, rate) - HEARD_HZ) < 2

    assert {key: body[key] for key in ("seed", "max_completion_tokens", "modalities", "audio", "talker")} == {
        "seed": 7,
        "max_completion_tokens": 12,
        "modalities": ["text", "audio"],
        "audio": {"format": "wav"},
        "talker": {**LENGTHS["talker"], "seed": 7},
    }
    [came] = page.evaluate("Promise.all(answers)")
    text, samples = streamed(came)
    assert len(samples) > 24000
    assert answer.locator(".text").text_content() == text
    expect(answer.get_by_role("button", name="Play again")).to_be_visible(timeout=20_000)
    np.testing.assert_array_equal(played(page), (samples / 32767).astype(np.float32))

    # The same seed gives the same answer; the vocoder's windows may move its samples by the last bit.
    again_text, again = streamed(http.post("/v1/chat/completions", json=body).text)
    assert again_text == text
    np.testing.assert_allclose(samples, again, rtol=0, atol=2)

    expect(answer.locator("summary")).to_contain_text(re.compile(r"First text \d+.*First sound \d+.*Whole answer \d+"))
    bars = answer.locator(".waterfall .name").all_inner_texts()
    assert [bars[0], *bars[-3:]] == ["Wait", "Text", "Speech", "Playback"]
    assert {"preprocessing", "audio_encoder", "thinker", "talker_ar", "code2wav"} < set(bars)
    with page.expect_download() as download:
        answer.get_by_role("button", name="Save as WAV").click()
    saved, rate = decoded("wav", Path(download.value.path()).read_bytes(), 0)
    assert rate == 24000
    np.testing.assert_array_equal(np.rint(saved * 32768), samples)


TELL = """
const register = registerProcessor;
globalThis.registerProcessor = (name, Processor) =>
  register(
    name,
    class extends Processor {
      constructor(options) {
        super(options);
        this.port.addEventListener("message", () => this.port.postMessage({ came: true }));
      }
    },
  );
"""
"""Lets the player say of each message that it has come: the clock of what is rendered does not wait for any."""

RENDER = """
async ({ pieces, times, lead, length }) => {
  const context = new OfflineAudioContext(1, length, 24000);
  await context.audioWorklet.addModule("/playground/tell.js");
  await context.audioWorklet.addModule("/playground/player-worklet.js");
  const options = { numberOfInputs: 0, outputChannelCount: [1], processorOptions: { lead, record: false } };
  const node = new AudioWorkletNode(context, "player", options);
  let gaps = 0;
  let came, done;
  const ended = new Promise((resolve) => (done = resolve));
  node.port.onmessage = ({ data }) => {
    gaps = data.gaps ?? gaps;
    if (data.came) came();
    if (data.done) done();
  };
  node.connect(context.destination);
  times.forEach((time, i) =>
    context.suspend(time).then(async () => {
      const arrived = new Promise((resolve) => (came = resolve));
      node.port.postMessage(i < pieces.length ? { samples: Float32Array.from(pieces[i]) } : { end: true });
      await arrived;
      context.resume();
    }),
  );
  const rendered = await context.startRendering();
  await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 20000))]);
  return [[...rendered.getChannelData(0)], gaps];
}
"""


@pytest.mark.parametrize("late", [0, 1])
def test_what_is_rendered_is_what_came(page: Page, late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The player's output as the browser renders it: without a gap where the stream keeps up, and with silence in place
    of what comes `late`, but never with anything lost, doubled or changed."""
    rng = np.random.default_rng()
    pieces = [rng.uniform(0.1, 1, rng.integers(1, 3000)).astype(np.float32) for _ in range(20)]
    starts = np.cumsum([0, *(len(piece) for piece in pieces)])
    quanta = np.maximum(0, (starts - 2000) // 128)
    quanta[11:] = np.maximum(quanta[11:], quanta[11] + 80 * late)
    times = [float(128 * quantum / 24000) for quantum in _increasing(quanta)]
    length = int(starts[-1]) + 128 * (int(quanta[-1]) + 200)
    arguments = {"pieces": [piece.tolist() for piece in pieces], "times": times, "lead": 1000, "length": length}
    (tmp_path / "tell.js").write_text(TELL)
    monkeypatch.setitem(playground._FILES, "tell.js", tmp_path / "tell.js")
    output, gaps = page.evaluate(RENDER, arguments)
    rendered = np.array(output, np.float32)
    sounding = rendered != 0
    np.testing.assert_array_equal(rendered[sounding], np.concatenate(pieces))
    assert np.count_nonzero(np.diff(sounding.astype(int), prepend=0) == 1) == 1 + late and gaps == late


def _increasing(quanta: np.ndarray) -> list[int]:
    """A context can be suspended but once in each quantum."""
    result: list[int] = []
    for quantum in quanta.tolist():
        result.append(max(quantum, result[-1] + 1 if result else 0))
    return result


@pytest.mark.parametrize("by", ["button", "key"])
def test_stop_cancels_the_request(page: Page, server: TritonServer, by: str) -> None:
    metrics.wait_empty(server, "qwen3_omni")
    before = metrics.aborted(server, "qwen3_omni")
    ask(page, "Tell me everything.", ENDLESS)
    expect(page.locator(".answer .text")).not_to_be_empty()
    expect(page.get_by_role("button", name="Send")).to_be_hidden()
    page.get_by_role("button", name="Stop", exact=True).click() if by == "button" else page.keyboard.press("Escape")
    answer = finished(page)
    expect(answer.get_by_role("status")).to_have_text("Stopped.")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    expect(message_box(page)).to_be_focused()
    metrics.wait_left(server, "qwen3_omni", before + 1)


def test_a_conversation(page: Page) -> None:
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Text", exact=True).check()
    first = ask(page, "Hello!", {"max_completion_tokens": 6, "ignore_eos": True})
    question = {"role": "user", "content": [{"type": "text", "text": "Hello!"}]}
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, question]
    assert first["modalities"] == ["text"] and "audio" not in first
    said = finished(page).locator(".text").text_content()
    second = ask(page, "And tomorrow?")
    assert second["messages"][1:3] == [question, {"role": "assistant", "content": said}]
    expect(finished(page).locator(".sound")).to_be_hidden()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".exchange")).to_have_count(0)
    assert len(ask(page, "Again.")["messages"]) == 2
    page.reload()
    expect(page.get_by_label("System message")).to_have_value("Be brief.")


def test_files_by_dialog_drop_and_paste(page: Page, repo_root: Path) -> None:
    page.get_by_label("Text", exact=True).check()
    page.get_by_label("Voice").select_option("chelsie")
    page.locator("#files").set_input_files(repo_root / PHOTO)
    give = """
    ([event, target, name, type]) => {
      const data = new DataTransfer();
      data.items.add(new File(["nothing"], name, { type }));
      const options = { bubbles: true, cancelable: true };
      const made = event === "paste" ? new ClipboardEvent(event, { ...options, clipboardData: data })
                                     : new DragEvent(event, { ...options, dataTransfer: data });
      document.querySelector(target).dispatchEvent(made);
    }
    """
    page.evaluate(give, ["drop", "body", "noise.mp3", "audio/mpeg"])
    page.evaluate(give, ["paste", "#message", "film.mkv", ""])
    page.evaluate(give, ["drop", "body", "letter.txt", "text/plain"])
    expect(page.locator("#status")).to_have_text("letter.txt is neither sound nor picture nor video.")
    expect(page.locator("#attachments .name")).to_have_text(["photo.jpg", "noise.mp3", "film.mkv"])
    page.get_by_role("button", name="Remove noise.mp3").click()
    page.get_by_role("button", name="Remove film.mkv").click()
    [picture, _] = ask(page, "What is this?", {"max_completion_tokens": 4})["messages"][0]["content"]
    data = picture["image_url"]["url"].removeprefix("data:image/jpeg;base64,")
    assert base64.b64decode(data) == (repo_root / PHOTO).read_bytes()
    expect(finished(page).locator(".failed")).to_have_count(0)


def test_voices_are_the_servers(page: Page) -> None:
    page.get_by_label("Voice").select_option("chelsie")
    assert ask(page, "Hello!", ENDLESS)["audio"] == {"format": "wav", "voice": "chelsie"}
    page.keyboard.press("Escape")
    finished(page)


def test_what_is_wrong_is_told(page: Page, complaints: list[str]) -> None:
    page.get_by_label("More fields").fill("{")
    message_box(page).fill("Hello!")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#status")).to_contain_text("More fields must be a JSON object")
    ask(page, "Hello!", {"max_tokens": "many"})
    expect(finished(page).locator(".failed")).to_contain_text("max_tokens")
    # Chromium writes of every refused request to the console.
    assert len(complaints) == 1 and "status of 400" in complaints.pop()
