"""Text comes out of tokens whole, in order, and cut where it should be."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.qwen3_omni.merge import merge_for_thinker
from omni_python.models.qwen3_omni.payloads import AudioEmbeds, Preprocessed, VisionEmbeds
from omni_python.models.qwen3_omni.tiny_config import ASSETS
from omni_python.models.text.decode import DecodeScheduler
from omni_python.models.text.detokenizer import Detokenizer, StopStrings, TokenBytes
from omni_python.models.text.payloads import AnswerToken, DecodeStart, ThinkerResult
from omni_python.proto.errors import OmniError
from omni_python.proto.payload import TextOutput
from omni_python.proto.work import IncomingMessage
from tests.models.tiny_model import checkpoint as tiny_checkpoint
from tests.models.tiny_model import conversation, hf_model

TOKENIZER = load_tokenizer(ASSETS)
TEXT = "Grüße aus Köln: 你好, 世界! 👩‍👩‍👧 naïve café — ok"


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@pytest.fixture
def scheduler() -> Iterator[DecodeScheduler]:
    scheduler = DecodeScheduler(TokenBytes(TOKENIZER))
    scheduler.start()
    yield scheduler
    scheduler.stop()


def messages(request_id: str, tokens: list[int], **start: object) -> list[IncomingMessage]:
    fields = {"stream": True, "echo_text": "", "stop": [], "num_input_tokens": 7, **start}
    chunks = [DecodeStart(**fields), *map(AnswerToken, tokens)]  # type: ignore[arg-type]
    result = ThinkerResult(tokens, "stop", 7, False)
    return [
        *(IncomingMessage(request_id, "stream_chunk", chunk) for chunk in chunks),
        IncomingMessage(request_id, "stream_done"),
        IncomingMessage(request_id, "new_request", result),
    ]


def answer(scheduler: DecodeScheduler) -> list[TextOutput]:
    pieces = []
    while True:
        message = scheduler.outbox.get(timeout=5)
        assert message is not None and message.target is None
        if message.type == "error":
            raise message.data
        pieces.append(message.data)
        if message.type == "result":
            return pieces


@given(st.lists(st.integers(0, 2080), max_size=40))
def test_deltas_join_to_the_decoding_of_all_tokens(tokens: list[int]) -> None:
    """Of any tokens, also of such as never make valid UTF-8."""
    detokenizer = Detokenizer(TokenBytes(TOKENIZER))
    deltas = [detokenizer.push(token) for token in tokens]
    assert "".join(deltas) + detokenizer.finish() == TOKENIZER.decode(tokens, skip_special_tokens=True)


@given(st.text(max_size=30))
def test_valid_text_never_shows_half_a_character(text: str) -> None:
    detokenizer = Detokenizer(TokenBytes(TOKENIZER))
    shown = ""
    for token in encode(text):
        shown += detokenizer.push(token)
        assert TOKENIZER.decode(encode(text), skip_special_tokens=True).startswith(shown)


@given(
    st.text("abc", max_size=25),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 4), min_size=25, max_size=25),
)
def test_stop_strings_cut_as_a_search_in_the_whole_text_does(text: str, stops: list[str], sizes: list[int]) -> None:
    matcher, given_out, rest = StopStrings(stops), "", text
    for size in sizes:
        given_out += matcher.push(rest[:size])
        rest = rest[size:]
    given_out += matcher.push(rest) + matcher.finish()
    # A search that stops at the first place where some stop string is complete.
    ends = [at for at in range(len(text) + 1) if any(text[:at].endswith(stop) for stop in stops)]
    if not ends:
        assert given_out == text and not matcher.stopped
        return
    assert matcher.stopped
    found = min(text.find(stop) for stop in stops if stop in text)
    # Pieces decide which of two overlapping stop strings is seen first; nothing behind the earliest end is shown.
    assert text.startswith(given_out) and found <= len(given_out) <= min(ends)


def test_text_is_streamed_as_it_comes(scheduler: DecodeScheduler) -> None:
    tokens = encode(TEXT)
    for message in messages("a", tokens):
        scheduler.inbox.put(message)
    pieces = answer(scheduler)
    assert "".join(piece.text for piece in pieces) == TEXT
    assert all(piece.text and piece.finish_reason is None for piece in pieces[:-1])
    assert pieces[-1] == TextOutput("", "stop", 7, len(tokens))
    assert len(pieces) > 15


def test_text_that_is_not_streamed_comes_at_once(scheduler: DecodeScheduler) -> None:
    for message in messages("a", encode(TEXT), stream=False, echo_text="Q: "):
        scheduler.inbox.put(message)
    assert answer(scheduler) == [TextOutput("Q: " + TEXT, "stop", 7, len(encode(TEXT)))]


def test_the_echo_comes_first(scheduler: DecodeScheduler) -> None:
    for message in messages("a", encode("hello"), echo_text="Q: "):
        scheduler.inbox.put(message)
    assert answer(scheduler)[0] == TextOutput("Q: ")


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_and_the_rest_are_cut(scheduler: DecodeScheduler, stream: bool) -> None:
    tokens = encode("one two STOP three")
    for message in messages("a", tokens, stream=stream, stop=["STOP", "never"]):
        scheduler.inbox.put(message)
    pieces = answer(scheduler)
    assert "".join(piece.text for piece in pieces) == "one two "


def test_what_only_looked_like_a_stop_string_is_given_at_the_end(scheduler: DecodeScheduler) -> None:
    for message in messages("a", encode("one ST"), stop=["STOP"]):
        scheduler.inbox.put(message)
    assert "".join(piece.text for piece in answer(scheduler)) == "one ST"


def test_special_tokens_are_skipped_and_half_a_character_is_replaced(scheduler: DecodeScheduler) -> None:
    end = TOKENIZER.token_to_id("<|im_end|>")
    for message in messages("a", [*encode("hi"), *encode("ü")[:1], end]):
        scheduler.inbox.put(message)
    text = "".join(piece.text for piece in answer(scheduler))
    assert text == TOKENIZER.decode([*encode("hi"), *encode("ü")[:1]])


@pytest.mark.parametrize("seed", range(5))
def test_the_result_may_overtake_tokens(scheduler: DecodeScheduler, seed: int) -> None:
    """What comes after the result is not taken twice."""
    *chunks, done, result = messages("a", encode(TEXT))
    chunks.insert(random.Random(seed).randrange(len(chunks)), result)
    for message in [*chunks, done]:
        scheduler.inbox.put(message)
    assert "".join(piece.text for piece in answer(scheduler)) == TEXT
    for message in messages("b", encode("next")):
        scheduler.inbox.put(message)
    assert "".join(piece.text for piece in answer(scheduler)) == "next"
    assert scheduler.stats() == {"running": 0}


def test_aborted_requests_are_forgotten(scheduler: DecodeScheduler) -> None:
    for message in messages("a", encode(TEXT))[:5]:
        scheduler.inbox.put(message)
    scheduler.abort("a")
    deadline = time.monotonic() + 5
    while (scheduler.stats()["running"] or len(scheduler.inbox)) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert scheduler.stats() == {"running": 0}


def test_merging_finds_each_part_by_what_it_is() -> None:
    given = conversation(hf_model(tiny_checkpoint()), 0, ("image", "audio")).input
    assert isinstance(given.vision, VisionEmbeds) and isinstance(given.audio, AudioEmbeds)
    merged = merge_for_thinker({"x": given.audio, "preprocessing": Preprocessed(given.prompt), "y": given.vision})
    assert merged.prompt is given.prompt and merged.vision is given.vision and merged.audio is given.audio
    alone = merge_for_thinker({"preprocessing": given.prompt})
    assert alone.vision is None and alone.audio is None
    with pytest.raises(OmniError, match="prompt"):
        merge_for_thinker({"image_encoder": given.vision})
    with pytest.raises(OmniError, match="TextOutput"):
        merge_for_thinker({"preprocessing": given.prompt, "decode": TextOutput("")})
