"""The preprocessing stage as its factory makes it, under media policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from omni_python.models.qwen3_omni.front import create_preprocessing
from omni_python.proto.errors import InvalidArgument, Unsupported
from omni_python.proto.request import ImagePart, Message, OmniRequest, TextPart
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.base import Scheduler
from tests.models.tiny_model import checkpoint
from tests.oracle.cases import MEDIA

NO_DATA = np.empty(0, np.uint8)


@contextmanager
def stage(**media: Any) -> Iterator[Scheduler]:
    scheduler = create_preprocessing(str(checkpoint()), media=media)
    scheduler.start()
    yield scheduler
    scheduler.stop()


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
