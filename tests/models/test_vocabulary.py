"""The published vocabulary of 151,643 byte-pair ranks with Qwen3-Omni's special tokens, through our stages."""

# ruff: noqa: RUF001 - punctuation of Chinese texts
from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from transformers import Qwen3OmniMoeConfig

from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.qwen3_omni import tiny
from omni_python.models.qwen3_omni.preprocess import Preprocessor
from omni_python.models.qwen3_omni.prompt import MEDIA_TOKENS, PromptBuilder, VideoSpan
from omni_python.models.qwen3_omni.stages import create_decode, eos_ids
from omni_python.models.qwen3_omni.talker_prompt import TalkerTokens
from omni_python.models.qwen3_omni.tiny_config import ASSETS
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.models.text.payloads import AnswerToken, DecodeStart, ThinkerResult
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.payload import TextOutput
from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, OmniRequest, TextPart, VideoPart
from omni_python.proto.work import IncomingMessage
from omni_python.scheduling.base import Scheduler
from tests.models.published_vocabulary import (
    ADDED,
    FIRST_ADDED,
    NOT_SPECIAL,
    SPLIT,
    hugging_face_tokenizer,
    published_ranks,
)
from tests.oracle.cases import MEDIA

PUBLISHED = Path(__file__).parent / "published_config.json"
NO_FILE = np.zeros(0, np.uint8)
TEXTS = [
    "Hello, world!",
    "  It's 3.14159 o'clock\n\n\tdef f(x): return x**2  # naïve café\r\n",
    "你好，世界！今天天气怎么样？",
    "日本語とカタカナ、한국어 문장도 있습니다.",
    "🦜🪿 family 👨‍👩‍👧‍👦 thumbs 👍🏽 flag 🇺🇳",
    "𒀀𒁀 ancient 𓂀 and 𝔊othic",
]


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    return published_ranks()


@pytest.fixture(scope="module")
def directory(ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory without weights: the published config.json and the published vocabulary."""
    out = tmp_path_factory.mktemp("published")
    shutil.copyfile(PUBLISHED, out / "config.json")
    shutil.copyfile(ASSETS / "chat_template.jinja", out / "chat_template.jinja")
    (out / "tokenizer.json").write_text(json.dumps(hugging_face_tokenizer(ranks)), "utf-8")
    tiny.write_settings(out)
    return out


@pytest.fixture(scope="module")
def builder(directory: Path) -> PromptBuilder:
    return PromptBuilder(directory)


@pytest.fixture(scope="module")
def oracle(ranks: dict[bytes, int]) -> tiktoken.Encoding:
    """Another implementation, which needs no merges."""
    special = {token: FIRST_ADDED + n for n, token in enumerate(ADDED)}
    return tiktoken.Encoding("qwen", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=special)


@pytest.fixture(scope="module")
def token_bytes(directory: Path) -> TokenBytes:
    return TokenBytes(load_tokenizer(directory))


@pytest.fixture(scope="module")
def decode_stage(directory: Path) -> Iterator[Scheduler]:
    stage = create_decode(str(directory))
    stage.start()
    yield stage
    stage.stop()


def ids_of(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Every id of one token of the thinker's vocabulary that the config names."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from ids_of(value)
        elif key.endswith("token_id") and key != "codec_eos_token_id":
            yield key, value


TOKEN_OF = {
    "im_start_token_id": "<|im_start|>",
    "im_end_token_id": "<|im_end|>",
    "system_token_id": "system",
    "user_token_id": "user",
    "assistant_token_id": "assistant",
    "tts_pad_token_id": "<tts_pad>",
    "tts_bos_token_id": "<tts_text_bos>",
    "tts_eos_token_id": "<tts_text_eod>",
    "audio_token_id": "<|audio_pad|>",
    "audio_start_token_id": "<|audio_start|>",
    "audio_end_token_id": "<|audio_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def test_every_token_id_of_the_published_config_is_that_token(builder: PromptBuilder) -> None:
    named = set(ids_of(json.loads(PUBLISHED.read_text("utf-8"))))
    assert {key for key, _ in named} == set(TOKEN_OF)
    for key, token_id in named:
        assert builder.tokenizer.encode(TOKEN_OF[key]).ids == [token_id], key
    assert builder.tokenizer.get_vocab_size() == 151_676


def test_known_ids(builder: PromptBuilder) -> None:
    """As transformers' and the published models' documentation print them."""
    known = {"Hello": 9707, "system": 8948, "user": 872, "assistant": 77091, "\n": 198, "<|endoftext|>": 151643}
    assert {text: builder.tokenizer.encode(text).ids for text in known} == {k: [v] for k, v in known.items()}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_cut_as_tiktoken_cuts_them(builder: PromptBuilder, oracle: tiktoken.Encoding, text: str) -> None:
    assert builder.expand(text).tolist() == oracle.encode(text)


def test_random_text_is_cut_as_tiktoken_cuts_it(builder: PromptBuilder, oracle: tiktoken.Encoding) -> None:
    generator = np.random.default_rng()
    alphabet = [chr(c) for c in [*range(0x20, 0x7F), 0xA, *range(0x4E00, 0x4E80), *range(0x1F600, 0x1F640), 0x301]]
    words = [oracle.decode([int(token)]) for token in generator.integers(0, FIRST_ADDED, 400)]
    text = " ".join(word for word in words if "\ufffd" not in word)
    text += "".join(generator.choice(alphabet, 2000))
    normal = builder.tokenizer.normalizer.normalize_str(text)
    assert builder.expand(text).tolist() == oracle.encode(normal, disallowed_special=())


def test_a_conversation_with_every_medium(builder: PromptBuilder, oracle: tiktoken.Encoding) -> None:
    content: list[ContentPart] = [
        AudioPart(),
        TextPart("看"),
        ImagePart(NO_FILE),
        VideoPart(NO_FILE),
        TextPart("What is this?"),
    ]
    messages = [Message("system", [TextPart("Be kind.")]), Message("user", content)]
    video = VideoSpan(grid=(3, 8, 12), seconds_per_grid=1.0)
    ids = builder.expand(builder.render(messages), audio_tokens=[39], image_tokens=[20], videos=[video])
    expected = [
        *(151644, 8948, 198),  # <|im_start|>system
        *oracle.encode("Be kind."),
        *(151645, 198, 151644, 872, 198),
        *(151669, *[151675] * 39, 151670),
        *oracle.encode("看"),
        *(151652, *[151655] * 20, 151653),
        *(151652, *[151656] * 72, 151653),
        *oracle.encode("What is this?"),
        *(151645, 198, 151644, 77091, 198),
    ]
    assert ids.tolist() == expected


def test_a_video_with_sound_interleaves_both(builder: PromptBuilder) -> None:
    text = builder.render([Message("user", [VideoPart(NO_FILE)])])
    video = VideoSpan(grid=(2, 4, 4), seconds_per_grid=1.0, sound_tokens=30)
    ids = builder.expand(text, videos=[video]).tolist()
    start, end = ids.index(151652), ids.index(151653)
    # 13 positions a second: the second step's four tokens come after the first second's thirteen of sound
    assert ids[start : end + 1] == [
        151652,
        151669,
        *[151656] * 4,
        *[151675] * 13,
        *[151656] * 4,
        *[151675] * 17,
        151670,
        151653,
    ]


def test_real_media_through_the_preprocessing_stage(directory: Path, oracle: tiktoken.Encoding) -> None:
    preprocess = Preprocessor(directory, speech=True)
    sound, picture = (np.fromfile(MEDIA / name, np.uint8) for name in ("voice_16k.wav", "portrait.png"))
    request = OmniRequest(
        [Message("user", [AudioPart(data=sound), ImagePart(data=picture), TextPart("Who speaks? 谁？")])], voice="Aiden"
    )
    made = preprocess(request)
    ids = made.prompt.input_ids.tolist()
    assert made.audio is not None and made.vision is not None and made.vision.image_grids is not None
    frames = made.audio.lengths.tolist()
    seconds, rest = divmod(frames[0], 100)
    sound_tokens = 13 * seconds + -(-rest // 8)
    assert ids.count(151675) == sound_tokens and sound_tokens > 13
    t, h, w = made.vision.image_grids[0].tolist()
    assert ids.count(151655) == t * h * w // 4
    assert len(made.vision.image_pixels) == t * h * w  # type: ignore[arg-type]
    around = [151644, 872, 198, 151669, 151670, 151652, 151653]
    assert [token for token in ids if token not in (151675, 151655)] == [
        *around,
        *oracle.encode("Who speaks? 谁？"),
        *(151645, 198, 151644, 77091, 198),
    ]
    assert max(ids) < 152_064
    assert made.prompt.options.voice == "aiden"
    assert made.prompt.position_ids.shape == (3, len(ids))


@pytest.mark.parametrize("token", MEDIA_TOKENS)
def test_text_cannot_pretend_to_be_media(builder: PromptBuilder, token: str) -> None:
    with pytest.raises(InvalidArgument, match="special token"):
        builder.render([Message("user", [TextPart(f"x{token}")])])


def test_the_talkers_tokens(directory: Path) -> None:
    tokens = TalkerTokens.of(Qwen3OmniMoeConfig.from_dict(json.loads(PUBLISHED.read_text("utf-8"))))
    added = load_tokenizer(directory).get_added_tokens_decoder()
    named = (tokens.im_start, tokens.tts_pad, tokens.tts_bos, tokens.tts_eos, *tokens.media, tokens.vision_start)
    contents = ["<|im_start|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"]
    contents += ["<|audio_pad|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>"]
    assert [added[token].content for token in named] == contents
    assert tokens.codec_prefix == (2155, 2156, 2157)
    assert (tokens.codec_pad, tokens.codec_bos, tokens.codec_eos) == (2148, 2149, 2150)
    assert tokens.speakers == {"chelsie": 2301, "ethan": 2302, "aiden": 2303}


def test_without_a_generation_config_an_answer_ends_with_its_turn(directory: Path, tmp_path: Path) -> None:
    config = Qwen3OmniMoeConfig.from_dict(json.loads(PUBLISHED.read_text("utf-8")))
    assert eos_ids(tmp_path, config) == [151645]


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_never_gives_half_a_character(decode_stage: Scheduler, oracle: tiktoken.Encoding, text: str) -> None:
    ids = oracle.encode(text)
    deltas = decoded(decode_stage, [*ids, 151645])
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas)
    assert len(deltas) > 2, "the text came at once"


def test_some_tokens_are_less_than_a_character(token_bytes: TokenBytes, oracle: tiktoken.Encoding) -> None:
    """Otherwise the test before would show nothing."""
    tokens = [token for text in TEXTS[4:] for token in oracle.encode(text)]
    assert all(token_bytes[token] == oracle.decode_single_token_bytes(token) for token in tokens)
    assert sum("\ufffd" in oracle.decode([token]) for token in tokens) > 10


def test_every_token_stands_for_its_bytes(token_bytes: TokenBytes, ranks: dict[bytes, int]) -> None:
    assert all(token_bytes[rank] == token for token, rank in ranks.items())
    assert [token_bytes[FIRST_ADDED + n] for n, token in enumerate(ADDED) if token not in NOT_SPECIAL] == [b""] * (
        len(ADDED) - len(NOT_SPECIAL)
    )
    assert token_bytes[151_667] == b"<think>"
    assert token_bytes[152_063] == b"", "an id of the padded embedding, which is no token"


def decoded(stage: Scheduler, ids: list[int]) -> list[str]:
    """What the decode stage streams for an answer of these tokens."""
    stage.inbox.put(IncomingMessage("r", "stream_chunk", DecodeStart(True, "", [], 1)))
    for token in ids:
        stage.inbox.put(IncomingMessage("r", "stream_chunk", AnswerToken(token)))
    stage.inbox.put(IncomingMessage("r", "stream_done", None))
    stage.inbox.put(IncomingMessage("r", "new_request", ThinkerResult(ids, "stop", 1, False)))
    texts = []
    while True:
        message = stage.outbox.get(timeout=10)
        assert message is not None and isinstance(message.data, TextOutput)
        texts.append(message.data.text)
        if message.type == "result":
            assert message.data.num_output_tokens == len(ids)
            return texts
