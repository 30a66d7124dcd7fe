"""The preprocessing stage as its factory makes it, under media policies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from omni_python.models.qwen3_omni import preprocess
from omni_python.models.qwen3_omni.front import create_preprocessing
from omni_python.models.qwen3_omni.payloads import Preprocessed
from omni_python.preprocessing import request_limit
from omni_python.preprocessing.container import Encoded
from omni_python.preprocessing.image import decode_image
from omni_python.proto.errors import Cancelled, InvalidArgument, Unsupported
from omni_python.proto.request import ImagePart, Message, OmniRequest, TextPart
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.base import Scheduler
from tests.models.tiny_model import checkpoint
from tests.oracle.cases import MEDIA
from tests.waiting import wait_until

NO_DATA = np.empty(0, np.uint8)


@contextmanager
def stage(**media: Any) -> Iterator[Scheduler]:
    scheduler = create_preprocessing(str(checkpoint()), media=media)
    scheduler.start()
    yield scheduler
    scheduler.stop()


def pictures(*names: str) -> OmniRequest:
    parts = [ImagePart(np.fromfile(MEDIA / name, np.uint8)) for name in names]
    return OmniRequest([Message("user", [TextPart("What are they?"), *parts])])


def answer(scheduler: Scheduler, part: ImagePart) -> Any:
    request = OmniRequest([Message("user", [TextPart("What is it?"), part])])
    scheduler.inbox.put(IncomingMessage("r", "new_request", request))
    message = scheduler.outbox.get(timeout=60)
    assert message is not None
    return message.data


def test_a_local_file_is_the_same_as_its_content() -> None:
    content = np.fromfile(MEDIA / "portrait.png", np.uint8)
    with stage(file_root=str(MEDIA)) as scheduler:
        inline = answer(scheduler, ImagePart(content))
        linked = answer(scheduler, ImagePart(NO_DATA, f"file://{MEDIA}/portrait.png"))
        assert torch.equal(inline.vision.image_pixels, linked.vision.image_pixels)
        assert torch.equal(inline.prompt.input_ids, linked.prompt.input_ids)
        refused = answer(scheduler, ImagePart(NO_DATA, "file:///etc/passwd"))
        assert isinstance(refused, InvalidArgument)
        assert str(refused).startswith("messages[0].content[1]: 'file:///etc/passwd' is not allowed; local files are")
        assert isinstance(answer(scheduler, ImagePart(NO_DATA, "http://127.0.0.1/x")), Unsupported)


def test_hosts_that_are_not_public_are_refused_by_the_stage() -> None:
    with stage(url_hosts=["*"]) as scheduler:
        for url in ("http://127.0.0.1/x", "http://[::1]/x", "https://169.254.169.254/latest"):
            refused = answer(scheduler, ImagePart(NO_DATA, url))
            assert isinstance(refused, InvalidArgument) and "is not on the public internet" in str(refused)


def test_by_default_nothing_is_got_from_elsewhere() -> None:
    with stage() as scheduler:
        for url in ("http://127.0.0.1/x", f"file://{MEDIA}/portrait.png"):
            refused = answer(scheduler, ImagePart(NO_DATA, url))
            assert isinstance(refused, Unsupported) and "URLs are not loaded by this server" in str(refused)
    with pytest.raises(InvalidArgument, match="media: .*unknown field `hosts`"):
        create_preprocessing(str(checkpoint()), media={"hosts": []})


@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_file_is_decoded_for_a_request_that_was_aborted(elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    decoded: list[int] = []

    def held_up(data: Encoded, *args: Any) -> np.ndarray:
        image = decode_image(data, *args)
        decoded.append(len(data))
        begun.set()
        assert go.wait(60)
        return image

    monkeypatch.setattr(preprocess, "decode_image", held_up)
    with stage(**({"file_root": str(MEDIA)} if elsewhere else {})) as scheduler:
        scheduler.inbox.put(IncomingMessage("r", "new_request", pictures("portrait.png", "landscape.jpg")))
        assert begun.wait(60)
        scheduler.abort("r")
        go.set()
        message = scheduler.outbox.get(timeout=60)
        assert message is not None and isinstance(message.data, Cancelled)
        wait_until(lambda: not any(scheduler.stats().values()), 60)
        assert decoded == [(MEDIA / "portrait.png").stat().st_size]
        part = ImagePart(np.fromfile(MEDIA / "landscape.jpg", np.uint8))
        assert isinstance(answer(scheduler, part), Preprocessed), "others go on"


def test_all_files_of_a_request_have_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long each may take."""
    now = [0.0]

    def slow(data: Encoded, *args: Any) -> np.ndarray:
        image = decode_image(data, *args)
        now[0] += 40.0
        return image

    monkeypatch.setattr(request_limit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(preprocess, "decode_image", slow)
    with stage() as scheduler:
        for names in (["portrait.png", "landscape.jpg"], ["portrait.png", "landscape.jpg", "portrait.png"]):
            scheduler.inbox.put(IncomingMessage(str(len(names)), "new_request", pictures(*names)))
        two, three = (scheduler.outbox.get(timeout=60) for _ in range(2))
        assert two is not None and isinstance(two.data, Preprocessed), "each of them has its own time"
        assert three is not None and isinstance(three.data, InvalidArgument)
        assert "messages[0].content[3]: decoding the request's files took longer than 60 s" in str(three.data)
