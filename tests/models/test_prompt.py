"""Requests to prompts: equal to the oracle's, and every wrong request is refused with what would be right."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_python.models.qwen3_omni.preprocess import TALKER_DEFAULTS, Preprocessor
from omni_python.models.qwen3_omni.prompt import MEDIA_TOKENS, PromptBuilder
from omni_python.models.text.options import default_sampling
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, ImagePart, Message, OmniRequest, TextPart, VideoPart
from omni_python.proto.sampling import SamplingParams
from tests.models.tiny_model import checkpoint
from tests.oracle.cases import AUDIO_TOLERANCE, CASES, MEDIA, load_case


@cache
def preprocessor() -> Preprocessor:
    return Preprocessor(checkpoint(), speech=True)


def ask(text: str = "Hello", **fields: Any) -> OmniRequest:
    return OmniRequest(messages=[Message("user", [TextPart(text)])], **fields)


def media(name: str) -> np.ndarray:
    return np.fromfile(MEDIA / name, np.uint8)


@pytest.mark.parametrize("name", CASES)
def test_prompts_equal_the_oracle(name: str) -> None:
    case = load_case(name)
    made = preprocessor()(case.request())
    np.testing.assert_array_equal(made.prompt.input_ids.numpy(), case.input_ids)
    np.testing.assert_array_equal(made.prompt.position_ids.numpy(), case.position_ids)
    assert made.prompt.rope_delta == case.rope_delta
    assert made.prompt.options.voice == case.voice.lower()
    if case.audio_lengths is not None:
        assert made.audio is not None
        assert case.features["audio_features"].error(made.audio.features) < AUDIO_TOLERANCE
    else:
        assert made.audio is None
    for key, grids in (("image", case.image_grids), ("video", case.video_grids)):
        stored: Any = getattr(made.vision, f"{key}_grids", None)
        assert (stored is None) == (grids is None)
        if grids is not None:
            np.testing.assert_array_equal(stored.numpy(), grids)


def test_a_sound_track_can_be_left_out() -> None:
    video = VideoPart(media("talking.mp4"), use_audio=False)
    made = preprocessor()(OmniRequest(messages=[Message("user", [video])]))
    assert made.audio is None
    assert made.vision is not None and made.vision.video_grids is not None
    assert made.vision.video_grids.tolist() == [[3, 20, 28]]


def test_samples_are_the_same_as_their_file() -> None:
    samples = media("voice_16k.wav")[44:].view("<i2").astype(np.float32) / 32768
    parts = [AudioPart(samples=samples, sample_rate=16000)], [AudioPart(data=media("voice_16k.wav"))]
    one, other = (preprocessor()(OmniRequest(messages=[Message("user", list(part))])) for part in parts)
    assert one.audio is not None and other.audio is not None
    torch.testing.assert_close(one.audio.features, other.audio.features, rtol=0, atol=0)
    assert one.prompt.input_ids.tolist() == other.prompt.input_ids.tolist()


def test_defaults() -> None:
    options = preprocessor()(ask()).prompt.options
    assert options.thinker == SamplingParams(temperature=0.0, max_tokens=2048)
    assert options.talker == TALKER_DEFAULTS
    assert (options.speech, options.voice, options.stream, options.echo_text) == (True, "ethan", False, "")
    assert preprocessor()(ask(echo=True)).prompt.options.echo_text == "Hello"


def test_sampling_of_each_stage_is_its_own() -> None:
    given = {"temperature": 0.5, "max_tokens": 7, "thinker": {"max_tokens": 9}, "talker": {"seed": 3}}
    options = preprocessor()(ask(sampling=given)).prompt.options
    assert (options.thinker.temperature, options.thinker.max_tokens, options.thinker.seed) == (0.5, 9, None)
    assert (options.talker.temperature, options.talker.max_tokens, options.talker.seed) == (0.9, 4096, 3)
    assert preprocessor()(ask(sampling={"temperature": 0})).prompt.options.talker == TALKER_DEFAULTS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temprature": 1}, r"unknown key 'temprature'; valid keys: temperature, .*talker"),
        ({"talker": {"voice": "x"}}, r"sampling_parameters\.talker: unknown key 'voice'; valid"),
        ({"talker": {"stop": ["x"]}}, r"sampling_parameters\.talker: speech has no stop"),
        ({"talker": 3}, r"sampling_parameters\.talker must be an object, not int"),
        ({"temperature": -1}, r"sampling_parameters: .*temperature"),
        ({"thinker": {"top_p": 2}}, r"sampling_parameters\.thinker: .*top_p"),
        ({"stop": ["x"] * 17}, r"sampling_parameters: .*length <= 16 .*stop"),
        ({"stop": "x" * 257}, r"sampling_parameters: .*length <= 256 .*stop"),
        ({"thinker": {"stop": ["x", "x" * 257]}}, r"sampling_parameters\.thinker: .*length <= 256 .*stop"),
    ],
)
def test_wrong_sampling_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        preprocessor()(ask(sampling=given))


def test_modalities() -> None:
    assert not preprocessor()(ask(modalities=["text"])).prompt.options.speech
    assert preprocessor()(ask(modalities=["audio"])).prompt.options.speech
    with pytest.raises(InvalidArgument, match="unknown modality 'video'; valid: text, audio"):
        preprocessor()(ask(modalities=["text", "video"]))
    with pytest.raises(InvalidArgument, match="no modality is given; valid: text, audio"):
        preprocessor()(ask(modalities=[]))
    mute = Preprocessor(checkpoint(), speech=False)
    assert not mute(ask()).prompt.options.speech
    with pytest.raises(InvalidArgument, match="cannot speak"):
        mute(ask(modalities=["text", "audio"]))


def test_voices() -> None:
    assert preprocessor()(ask(voice="AIDEN")).prompt.options.voice == "aiden"
    with pytest.raises(InvalidArgument, match="unknown voice 'nobody'; valid: aiden, chelsie, ethan"):
        preprocessor()(ask(voice="nobody"))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no message"),
        ([Message("user", [])], "prompt is empty"),
        ([Message("user", [TextPart(" \n")])], "prompt is empty"),
        ([Message("tool", [TextPart("x")])], r"messages\[0\]: unknown role 'tool'; valid: system, user, assistant"),
        ([Message("user", [TextPart("x")]), Message("assistant", [TextPart("y")])], "last message must be .* user"),
        ([Message("system", [ImagePart(media("portrait.png"))]), Message("user", [TextPart("x")])], "role user only"),
        ([Message("user", [TextPart("x"), ImagePart(media("voice_8k.wav"))])], r"content\[1\]: unreadable image"),
        (
            [Message("user", [AudioPart(data=media("portrait.png"))])],
            r"messages\[0\]\.content\[0\]: .*accepted formats",
        ),
        ([Message("user", [AudioPart(samples=np.zeros(9, np.float32))])], "sample rate"),
        ([Message("user", [AudioPart()])], "encoded file"),
    ],
)
def test_wrong_messages_are_refused(messages: list[Message], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        preprocessor()(OmniRequest(messages=messages))


@pytest.mark.parametrize("token", MEDIA_TOKENS)
def test_text_cannot_pretend_to_be_media(token: str) -> None:
    with pytest.raises(InvalidArgument, match="must not contain the special token"):
        preprocessor()(ask(f"look: {token}"))


def copy_with_context(tmp_path: Path, context: int) -> Path:
    out = shutil.copytree(checkpoint(), tmp_path / "checkpoint")
    config = json.loads((out / "config.json").read_text())
    config["thinker_config"]["text_config"]["max_position_embeddings"] = context
    (out / "config.json").write_text(json.dumps(config))
    return out


def test_the_context_bounds_prompt_and_answer(tmp_path: Path) -> None:
    small = Preprocessor(copy_with_context(tmp_path, 100), speech=True)
    made = small(ask("one two three"))
    assert made.prompt.options.thinker.max_tokens == 100 - len(made.prompt.input_ids)
    with pytest.raises(InvalidArgument, match="context holds 100"):
        small(ask("word " * 200))
    with pytest.raises(InvalidArgument, match=r"content\[0\]: .*at least 420 tokens"):
        small(OmniRequest(messages=[Message("user", [VideoPart(media("talking.mp4"))])]))


def test_generation_config_decides_the_thinkers_defaults(tmp_path: Path) -> None:
    out = copy_with_context(tmp_path, 4096)
    given = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
    (out / "generation_config.json").write_text(json.dumps(given))
    expected = SamplingParams(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1)
    assert default_sampling(out) == expected


def test_older_places_of_the_chat_template(tmp_path: Path) -> None:
    out = shutil.copytree(checkpoint(), tmp_path / "checkpoint")
    template = (out / "chat_template.jinja").read_text()
    (out / "chat_template.jinja").unlink()
    (out / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    messages = [Message("system", [TextPart("Be kind.")]), Message("user", [AudioPart(), TextPart("Hi")])]
    expected = (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|>Hi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert PromptBuilder(out).render(messages) == PromptBuilder(checkpoint()).render(messages) == expected
