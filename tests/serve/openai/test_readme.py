"""The README's samples, executed from its own text: only hosts and ports become those of the test's servers."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import av
import pytest
from playwright.sync_api import Browser

from omni_python.client import OmniClient
from omni_python.proto.wav import wav_file
from omni_python.serve.openai.server import HttpServer
from omni_python.serve.triton_server import TritonServer
from tests.serve.openai.playground_page import browser
from tests.serve.openai.test_encoding import tone

__all__ = ["browser"]

MODEL = "qwen3_omni"


@pytest.fixture(scope="module")
def ask_it(repo_root: Path) -> str:
    """The section with the samples."""
    _, _, after = (repo_root / "README.md").read_text("utf-8").partition("\n## Ask it\n")
    return after.partition("\n## ")[0]


@pytest.fixture
def sample(ask_it: str, server: TritonServer, api: HttpServer, request: pytest.FixtureRequest) -> str:
    """The one code block in which the test's parameter stands, with the servers' addresses."""
    addresses = {"8000": server.http_url, "8001": server.grpc_url, "9000": api.url.removeprefix("http://")}
    blocks = re.findall(r"^```\w+\n(.*?)^```$", ask_it, re.DOTALL | re.MULTILINE)
    [code] = [block for block in blocks if request.param in block]
    return re.sub(r"localhost:(\d{4})", lambda found: addresses[found[1]], code)


@pytest.fixture
def folder(tmp_path: Path, repo_root: Path) -> Path:
    (tmp_path / "question.wav").write_bytes(wav_file(tone(0.5, 16000), 16000))
    shutil.copy(repo_root / "backends/omni_python/commands/data/photo.jpg", tmp_path)
    return tmp_path


@pytest.fixture
def direct(server: TritonServer) -> Iterator[OmniClient]:
    with OmniClient(server.grpc_url, MODEL) as client:
        yield client


def printed(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_PROXY": "*", "no_proxy": "*"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds(wav: Path) -> float:
    with wave.open(str(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        return file.getnframes() / 24000


def heard(direct: OmniClient, folder: Path) -> str:
    """What the pipeline answers to the samples' question."""
    return direct.chat("What do you hear?", audios=[folder / "question.wav"], modalities=["text"]).text


def test_every_block_is_known(ask_it: str) -> None:
    assert re.findall(r"^```(\w+)$", ask_it, re.MULTILINE) == ["sh", "python", "python", "python", "js"]


@pytest.mark.parametrize("sample", ["curl"], indirect=True)
def test_shell(sample: str, folder: Path) -> None:
    output = printed(["bash", "-euo", "pipefail", "-c", sample], folder)
    assert '"finish_reason":"' in output and '"audio_base64":"' in output
    with av.open(io.BytesIO((folder / "morning.mp3").read_bytes()), "r") as file:
        assert sum(frame.samples for frame in file.decode(audio=0)) > 0
    assert seconds(folder / "picture.wav") > 0


@pytest.mark.parametrize("sample", ["omni_python.client"], indirect=True)
def test_our_client(sample: str, folder: Path, direct: OmniClient) -> None:
    output = printed([sys.executable, "-c", sample], folder)
    assert output.startswith(f"voices: aiden chelsie ethan\n{heard(direct, folder)}\n")
    assert re.search(r"\n(stop|length): \{'input_tokens': \d+, .*'audio_frames': \d+", output)
    assert seconds(folder / "answer.wav") > 0


@pytest.mark.parametrize("sample", ["from openai import"], indirect=True)
def test_openai_sdk(sample: str, folder: Path, direct: OmniClient) -> None:
    output = printed([sys.executable, "-c", sample], folder)
    first, speech, second = re.split(r"\n(\d+\.\d) s of speech\n", output)
    assert first == heard(direct, folder) and float(speech) > 0 and second.strip("\n")


@pytest.mark.parametrize("sample", ["tritonclient"], indirect=True)
def test_tritonclient_alone(sample: str, folder: Path, direct: OmniClient) -> None:
    assert len(sample.splitlines()) <= 40 and "omni_python" not in sample
    assert printed([sys.executable, "-c", sample], folder) == heard(direct, folder)
    assert seconds(folder / "heard.wav") > 0


@pytest.mark.parametrize("sample", ["AudioContext"], indirect=True)
def test_browser(sample: str, api: HttpServer, browser: Browser, direct: OmniClient) -> None:
    page = browser.new_page()
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    page.goto(api.url)
    page.evaluate(f"async () => {{ {sample} }}")
    answer = direct.chat("Hello!", modalities=["text"]).text
    said = [text for text in logged if "s of speech to come" in text]
    assert len(said) == 1 and said[0].startswith(f"{answer} and ") and " 0.0 s" not in said[0], logged
    page.close()
