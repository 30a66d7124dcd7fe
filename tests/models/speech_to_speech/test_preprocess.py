"""From a request to what is said, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.speech_to_speech.info import describe
from omni_python.models.speech_to_speech.preprocess import Preprocessor
from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.info import PipelineInfo
from omni_python.proto.request import AudioPart, ImagePart, Message, OmniRequest, TextPart
from tests.models.speech_to_speech.test_recogniser import noise, save_tiny


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights")
    save_tiny(path / "recogniser", seed=0)
    (path / "synthesiser/voices").mkdir(parents=True)
    for name in ("am_adam", "af_heart"):
        (path / f"synthesiser/voices/{name}.bin").touch()
    return path


@pytest.fixture(scope="module")
def preprocess(weights: Path) -> Preprocessor:
    return Preprocessor(weights, MediaLoader(MediaPolicy()), seconds=2.0)


def sound(seconds: float = 0.5, rate: int = 16000) -> AudioPart:
    return AudioPart(samples=noise(1, seconds * rate / 16000), sample_rate=rate)


def request(*parts: Any, **options: Any) -> OmniRequest:
    return OmniRequest([Message("user", list(parts))], **options)


def test_it_tells_its_voices(weights: Path, tmp_path: Path) -> None:
    expected = PipelineInfo(("text", "audio"), ("af_heart", "am_adam"), "af_heart", 24000)
    assert describe(str(weights)) == expected
    with pytest.raises(CheckpointError, match="has no voices .* --family speech_to_speech"):
        describe(str(tmp_path))


def test_sounds_and_texts_in_their_order(preprocess: Preprocessor) -> None:
    options: dict[str, Any] = {"task": "transcribe", "language": "en", "speed": 1.5, "max_tokens": 9}
    given = request(TextPart("Hi."), sound(), TextPart("  "), sound(0.25, 48000), sampling=options, voice="AM_Adam")
    earlier = [Message("system", [TextPart("Be nice.")]), Message("assistant", [TextPart("Hello.")])]
    said = preprocess(OmniRequest([*earlier, *given.messages], sampling=options, voice="AM_Adam", stream=True))
    text, first, second = said.parts
    assert text == TextPart("Hi.")
    assert isinstance(first, AudioPart) and first.samples is not None and first.sample_rate == 16000
    np.testing.assert_array_equal(first.samples, noise(1, 0.5))
    assert isinstance(second, AudioPart) and second.samples is not None and abs(len(second.samples) - 4000) <= 16
    assert (said.task, said.language, said.speed, said.max_tokens) == ("transcribe", "en", 1.5, 9)
    assert (said.voice, said.speech, said.stream) == ("am_adam", True, True)


def test_text_alone_needs_no_speech(preprocess: Preprocessor) -> None:
    said = preprocess(request(sound(), modalities=["text"], sampling={"task": "transcribe", "language": "de"}))
    assert not said.speech and said.voice == "af_heart"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (OmniRequest([]), "has no message"),
        (OmniRequest([Message("assistant", [TextPart("a")])]), "must be the user's, not the assistant's"),
        (request(TextPart(" ")), "no sound and no text"),
        (request(ImagePart(np.zeros(3, np.uint8))), "no images and videos"),
        (request(sound(), sound(1.6)), "longer than 1.5 s"),
        (request(AudioPart(data=np.zeros(9, np.uint8))), "accepted formats"),
        (request(sound(), voice="bella"), "unknown voice 'bella'; valid: af_heart, am_adam"),
        (request(sound(), modalities=["video"]), "unknown modality 'video'; valid: text, audio"),
        (request(sound(), echo=True), "exclude_input_in_output"),
        (request(sound(), sampling={"temperature": 1}), "temperature.*valid keys: task, language, speed, max_tokens"),
        (request(sound(), sampling={"speed": 3}), r"<= 2.0.*\$.speed"),
        (request(sound(), sampling={"task": "answer"}), "Invalid enum value 'answer'"),
        (request(sound(), sampling={"language": "xx"}), "unknown language 'xx'; valid: de, en"),
        (request(sound(), sampling={"task": "transcribe", "language": "de"}), "only English can be spoken"),
    ],
)
def test_what_is_refused(preprocess: Preprocessor, wrong: OmniRequest, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        preprocess(wrong)


def test_options_are_json(preprocess: Preprocessor) -> None:
    """As the orchestrator reads them."""
    said = preprocess(request(sound(), sampling=json.loads('{"speed": 1, "language": null}')))
    assert said.speed == 1.0 and said.language is None and said.task == "translate"
