"""Pictures and videos: embeddings and answers equal to the plain model's, alone, with sound, and among others."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from omni_python.models.loading.tokenizer import load_tokenizer
from omni_python.models.ming_omni.architecture import thinker_config
from omni_python.models.ming_omni.encoder_architecture import image_encoder_config
from omni_python.models.ming_omni.image_encoder import PictureEncoder, load_image_encoder
from omni_python.models.ming_omni.media import EvenSampling, MediaReader
from omni_python.models.ming_omni.payloads import ChatInput, ChatPrompt, Pictures
from omni_python.models.ming_omni.prompt import ThinkerPrompt, media_tokens
from omni_python.models.ming_omni.thinker import load_thinker
from omni_python.models.ming_omni.thinker_runner import ThinkerModelRunner
from omni_python.models.text.detokenizer import TokenBytes
from omni_python.models.text.options import GenerationOptions
from omni_python.proto.errors import InvalidArgument
from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, TextPart, VideoPart
from omni_python.proto.sampling import SamplingParams
from omni_python.proto.work import IncomingMessage
from tests.models.ming_omni.test_pipeline import Ask, answers, sound
from tests.oracle.ming_omni_reference import Film, Prompt, Reference
from tests.pipeline.harness import Pipeline, Sink

ASK = Ask("What is it?", tokens=16, modalities=("text",))


def picture(width: int, height: int, seed: int) -> np.ndarray:
    """Something that looks otherwise everywhere: uint8 [height, width, 3]."""
    rows, columns = np.mgrid[:height, :width] / 40
    waves = [np.sin((seed + channel) * rows + (3 - channel) * columns + seed) for channel in range(3)]
    noise = np.random.default_rng(seed).normal(0, 12, (height, width, 3))
    return np.clip(128 + 90 * np.stack(waves, axis=-1) + noise, 0, 255).astype(np.uint8)


def image(pixels: np.ndarray) -> ImagePart:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return ImagePart(np.frombuffer(file.getvalue(), np.uint8))


def video(frames: Sequence[np.ndarray], rate: int = 4, heard: np.ndarray | None = None) -> np.ndarray:
    """An mp4 file, uint8 [n]; `heard` at 16 kHz."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        pictures: Any = container.add_stream("libx264", rate=rate, options={"preset": "ultrafast", "threads": "1"})
        pictures.height, pictures.width, pictures.pix_fmt = *frames[0].shape[:2], "yuv420p"
        track: Any = None if heard is None else container.add_stream("aac", rate=16000, layout="mono")
        for frame in frames:
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(pictures.encode())
        if heard is not None:
            samples = av.AudioFrame.from_ndarray(heard[None], format="fltp", layout="mono")
            samples.sample_rate = 16000
            container.mux(track.encode(samples))
            container.mux(track.encode())
    return np.frombuffer(file.getvalue(), np.uint8)


def decoded(file: np.ndarray) -> list[np.ndarray]:
    with av.open(io.BytesIO(file.tobytes()), "r") as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def seen(reference: Reference, *frames: np.ndarray) -> tuple[torch.Tensor, Film]:
    return reference.seen(torch.from_numpy(np.stack(frames)))


def check(pipeline: Pipeline, reference: Reference, prompt: Prompt, ask: Ask) -> None:
    """The answer to `ask` is the reference's to `prompt`."""
    (answer,) = answers(pipeline, ask)
    expected = reference.answer(prompt, ask.tokens)
    assert expected.margin > 1e-3, "too close to call in float32; take another picture"
    assert answer.text == reference.text(expected.tokens)
    assert answer.end.num_input_tokens == len(prompt.tokens)


def test_embeddings_are_the_plain_models_however_they_are_cut(ming: Path, ming_reference: Reference) -> None:
    """Two pictures and a video of two steps, all in one forward and each by itself."""
    frames = [picture(96, 64, seed) for seed in range(4)]
    file = [picture(128, 96, 5), picture(64, 160, 6)]
    expected = [seen(ming_reference, shown)[0] for shown in file] + [seen(ming_reference, *frames)[0]]
    reader = MediaReader(ming, 1.0, 10**6, 4096)
    patches = [reader._images.patches(shown) for shown in (file[0][None], file[1][None], np.stack(frames))]
    grids = torch.tensor([(1, 6, 8), (1, 10, 4), (2, 4, 6)])
    encoder = load_image_encoder(ming, image_encoder_config(ming), torch.float32, "cpu")
    for most in (10**6, 1):
        made = PictureEncoder(encoder, most)(Pictures(torch.cat(patches), grids))
        torch.testing.assert_close(made.embeds, torch.cat(expected).float(), atol=2e-5, rtol=0)


def test_logits_are_the_plain_models(ming: Path, ming_reference: Reference) -> None:
    """After a picture, a sound and a video of two steps, of the first token and of those that follow it: an answer need
    not tell how its prompt was read, these do."""
    shown = seen(ming_reference, picture(128, 96, 1))
    film = seen(ming_reference, *(picture(96, 160, seed) for seed in range(4)))
    heard = ming_reference.heard(torch.from_numpy(sound(9000)))
    texts = [ming_reference.picture(shown[1]), ming_reference.sound(heard), ming_reference.video(film[1], [0, 1, 2, 3])]
    asked = ming_reference.prompt("".join(texts) + ASK.text, films=[shown, film], sounds=[heard])

    prompt = ThinkerPrompt(ming)
    ids = torch.tensor(asked.tokens)
    sizes = [size[1:] for size in asked.films for _ in range(size[0])]
    options = GenerationOptions(SamplingParams(temperature=0.0), SamplingParams(), False, "", False)
    chat = ChatPrompt(ids, *prompt.positions(ids, sizes), options)
    config = thinker_config(ming)
    thinker = load_thinker(ming, config, torch.float32, "cpu")
    runner = ThinkerModelRunner(thinker, config.end, media_tokens(ming), TokenBytes(load_tokenizer(ming)))
    runner.allocate(32)
    row = runner.open(IncomingMessage("a", "new_request", ChatInput(chat, asked.seen, asked.heard)))
    assert row is not None
    row.pages = list(range(32))
    with torch.inference_mode():
        for _ in range(3):
            batch = runner._batch([row])
            assert batch is not None
            hidden, logits = runner.forward(batch)
            expected = ming_reference.logits(asked, row.generated)[-1]
            torch.testing.assert_close(logits[0].double(), expected, atol=2e-4, rtol=0)
            runner.advance([row], hidden, logits)


def test_a_question_about_pictures_is_the_plain_models(pipeline: Pipeline, ming_reference: Reference) -> None:
    """Two, of different sizes."""
    shown = [picture(96, 64, 1), picture(64, 160, 2)]
    films = [seen(ming_reference, pixels) for pixels in shown]
    text = "".join(ming_reference.picture(size) for _, size in films) + ASK.text
    check(
        pipeline, ming_reference, ming_reference.prompt(text, films=films), replace(ASK, parts=tuple(map(image, shown)))
    )


def test_a_picture_and_a_sound(pipeline: Pipeline, ming_reference: Reference) -> None:
    pixels, heard = picture(128, 96, 3), sound(9000)
    film, embeds = seen(ming_reference, pixels), ming_reference.heard(torch.from_numpy(heard))
    text = ming_reference.picture(film[1]) + ming_reference.sound(embeds) + ASK.text
    prompt = ming_reference.prompt(text, films=[film], sounds=[embeds])
    parts = (image(pixels), AudioPart(samples=heard, sample_rate=16000))
    check(pipeline, ming_reference, prompt, replace(ASK, parts=parts))


def test_a_video_is_the_plain_models(pipeline: Pipeline, ming_reference: Reference) -> None:
    """Of two seconds at 4 frames a second 4 are looked at, the first and the last among them."""
    file = video([picture(384, 352, seed) for seed in range(8)])
    frames = decoded(file)
    film = seen(ming_reference, *(frames[index] for index in (0, 2, 4, 7)))
    text = ming_reference.video(film[1], [0, 0.5, 1, 1.5]) + ASK.text
    ask = replace(ASK, parts=(VideoPart(file),), tokens=6)
    check(pipeline, ming_reference, ming_reference.prompt(text, films=[film]), ask)


def test_a_videos_sound_follows_its_frames(pipeline: Pipeline) -> None:
    file = video([picture(384, 352, seed) for seed in range(2)], rate=1, heard=sound(16384))
    both = replace(ASK, parts=(VideoPart(file),))
    apart = replace(ASK, parts=(VideoPart(file, use_audio=False), AudioPart(data=file)))
    silent = replace(ASK, parts=(VideoPart(file, use_audio=False),))
    texts = [answer.text for answer in answers(pipeline, both, apart, silent)]
    assert texts[0] == texts[1] != texts[2]


def test_eight_mixed_requests_at_once_are_those_alone(pipeline: Pipeline) -> None:
    clip = AudioPart(samples=sound(8000), sample_rate=16000)
    file = VideoPart(video([picture(384, 352, seed) for seed in range(2)], rate=1))
    first, second = image(picture(96, 64, 1)), image(picture(160, 96, 4))
    parts: list[tuple[ContentPart, ...]] = [
        (first,),
        (second,),
        (first, second),
        (second, clip),
        (clip, first),
        (file,),
        (file, first, clip),
        (),
    ]
    asks = [replace(ASK, parts=of_one, tokens=10) for of_one in parts]
    asks[1] = replace(asks[1], modalities=None, talker=4)
    together = answers(pipeline, *asks)
    for ask, answer in zip(asks, together, strict=True):
        (alone,) = answers(pipeline, ask)
        assert answer.text == alone.text
        np.testing.assert_allclose(answer.samples, alone.samples, atol=1e-4, rtol=0)
    assert len({answer.text for answer in together}) > 4
    assert len(together[1].samples)


def test_a_picture_lies_around_its_moment(ming: Path) -> None:
    prompt = ThinkerPrompt(ming)
    shown = ["<image>" + "<imagePatch>" * 6 + "</image>\n"]
    messages = [Message("system", [TextPart("")]), Message("user", [ImagePart(np.zeros(1, np.uint8)), TextPart("a")])]
    ids = prompt(messages, shown)
    positions, delta = prompt.positions(ids, [(3, 2)])
    start = ids.tolist().index(int(ids[positions[0].diff().argmin()]))
    moments, heights, widths = (positions - start).tolist()
    assert moments[start - 1 : start + 8] == [-1, 0, 0, 0, 0, 0, 0, 1, 2]
    assert heights[start - 1 : start + 8] == [-1, -1, -1, 0, 0, 1, 1, 1, 2]
    assert widths[start - 1 : start + 8] == [-1, 0, 1, 0, 1, 0, 1, 1, 2]
    assert delta == -5 and positions[:, -1].tolist() == [len(ids) + delta - 1] * 3


@pytest.mark.parametrize(("total", "rate", "count"), [(1, 30, 1), (7, 2, 6), (100, 25, 8), (3000, 10, 256), (3, 30, 1)])
def test_frames_are_spread_from_the_first_to_the_last(total: int, rate: float, count: int) -> None:
    found = EvenSampling(max_frames=256).indices(total, rate)
    assert len(found) == count and found[0] == 0 and (count == 1 or found[-1] == total - 1)
    assert max(np.diff(found), default=1) - min(np.diff(found), default=1) <= 1


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (ImagePart(np.zeros(9, np.uint8)), r"messages\[0\].content\[1\]: unreadable image file; accepted formats: png"),
        (ImagePart(np.zeros(0, np.uint8)), r"messages\[0\].content\[1\]: empty image file"),
        (VideoPart(np.zeros(9, np.uint8)), r"messages\[0\].content\[1\]: .*accepted formats: mp4"),
        (image(picture(2240, 2240, 0)), r"content\[1\]: the prompt has at least 4900 tokens; the context holds 4096"),
        (TextPart("a<framePatch>b"), "must not contain the control token <framePatch>"),
    ],
    ids=["picture", "empty", "video", "large", "control"],
)
def test_what_cannot_be_seen_is_said(pipeline: Pipeline, part: ContentPart, message: str) -> None:
    request = ASK.request
    request.messages = [Message("user", [TextPart("Hello"), part])]
    sink = Sink()
    pipeline.coordinator.submit(request, sink, None)
    with pytest.raises(InvalidArgument, match=message):
        sink.wait(30)
