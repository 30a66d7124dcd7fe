"""Checks Ming-Omni on a GPU, and measures it: `python scripts/check_ming_omni_gpu.py [--published-size]`.

First the tiny checkpoint, in float32: what is seen and heard, greedy answers, latents and the waveform must be those of
the plain float64 model. Then, where asked, random weights in the published sizes: the image encoder, a step of the
talker, and of a thinker with fewer layers, for the whole one does not fit one GPU. `--gpu -1` tries the first part on
the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from drive_stages import started, stopped, taken, voiced  # noqa: E402
from tests.models.ming_omni.published import published_configs  # noqa: E402
from tests.models.ming_omni.test_pipeline import RATE, STEP, pieces, sound  # noqa: E402
from tests.models.ming_omni.test_seeing import image, picture, seen  # noqa: E402
from tests.oracle.ming_omni_reference import Reference  # noqa: E402

from omni_python.models.ming_omni import tiny  # noqa: E402
from omni_python.models.ming_omni.payloads import (  # noqa: E402
    ChatInput,
    ChatPrompt,
    Latents,
    LatentsResult,
    Pictures,
    Piece,
    PiecesStart,
)
from omni_python.models.ming_omni.preprocess import Preprocessor  # noqa: E402
from omni_python.models.ming_omni.stages import (  # noqa: E402
    create_audio_encoder,
    create_audio_vae,
    create_image_encoder,
    create_talker,
    create_thinker,
)
from omni_python.models.text.options import GenerationOptions  # noqa: E402
from omni_python.models.text.payloads import ThinkerResult  # noqa: E402
from omni_python.preprocessing.media.loader import MediaLoader  # noqa: E402
from omni_python.preprocessing.media.policy import MediaPolicy  # noqa: E402
from omni_python.proto.request import AudioPart, ContentPart, Message, OmniRequest, TextPart  # noqa: E402
from omni_python.proto.sampling import SamplingParams  # noqa: E402
from omni_python.proto.work import IncomingMessage  # noqa: E402
from omni_python.scheduling.base import Scheduler  # noqa: E402

THINKER_LAYERS = 8
"""Of 32, in bfloat16 some 50 GB."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--published-size", action="store_true", help="measure random weights in the published size")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check_tiny(Path(folder) / "tiny", None if args.gpu < 0 else args.gpu)
        if args.published_size:
            measure(Path(folder) / "tiny", args.gpu)


def check_tiny(path: Path, gpu: int | None) -> None:
    tiny.build(path)
    reference = Reference(path)
    hears = create_audio_encoder(str(path), gpu, dtype="float32")
    sees = create_image_encoder(str(path), gpu, dtype="float32")
    thinker = create_thinker(str(path), gpu, kv_tokens=4096, speech_stage=None, dtype="float32")
    talker = create_talker(str(path), gpu, kv_tokens=8192, dtype="float32")
    vae = create_audio_vae(str(path), gpu)
    started(hears, sees, thinker, talker, vae)
    shown, question = picture(128, 96, 3), "What is it?"
    content: list[ContentPart] = [image(shown), AudioPart(samples=sound(9000), sample_rate=16000), TextPart(question)]
    read = Preprocessor(path, True, MediaLoader(MediaPolicy()))(
        OmniRequest([Message("user", content)], sampling={"max_tokens": 16})
    )
    film, heard = seen(reference, shown), reference.heard(torch.from_numpy(sound(9000)))
    embeds = []
    for encoder, given, expected in ((sees, read.pictures, film[0]), (hears, read.clips, heard)):
        encoder.inbox.put(IncomingMessage("e", "new_request", given))
        embeds.append(taken(encoder).data.embeds)
        error = float((embeds[-1].double() - expected).abs().max())
        assert error < 1e-4, f"what is seen or heard is off by {error}"
    text = reference.picture(film[1]) + reference.sound(heard) + question
    prompt = reference.prompt(text, films=[film], sounds=[heard])
    assert read.prompt.input_ids.tolist() == prompt.tokens
    answer = answered(thinker, {"a": ChatInput(read.prompt, *embeds)})["a"]
    assert answer == reference.answer(prompt, 16).tokens, "another answer on the GPU"
    words, voice = reference.speech.voice("DB30")
    said = pieces("The sea is wide and deep, and nobody has seen all of it. Nobody.")
    prompts = [reference.speech.prompt(piece, words, len(voice) // 4) for piece in said]
    expected_speech = reference.speech.speak(prompts, 5, 7, 0.8, voice=voice)
    sampling = SamplingParams(temperature=0.8, max_tokens=7, seed=5)
    latents, _ = spoken(talker, {"s": said}, "db30", sampling)
    error = float((latents["s"][:, :-1].double() - torch.cat(expected_speech.pieces)).abs().max())
    assert error < 1e-3, f"latents are off by {error}"
    error = float(
        (voiced(vae, *whole(latents["s"])).double() - reference.speech.waveform(expected_speech.pieces)).abs().max()
    )
    assert error < 1e-4, f"the waveform is off by {error}"
    stopped(hears, sees, thinker, talker, vae)
    print(f"tiny checkpoint: sight, hearing, answer and speech are the plain model's (waveform within {error:.1e})")


def measure(path: Path, gpu: int) -> None:
    for folder, config in published_configs().items():
        if not folder:
            config["llm_config"]["num_hidden_layers"] = THINKER_LAYERS
        (path / folder / "config.json").write_text(json.dumps(config))
    sees = create_image_encoder(str(path), gpu, load_format="dummy")
    started(sees)
    for rows, columns in ((24, 32), (24, 32), (64, 64), (128, 128)):
        pictures = Pictures(torch.randn(rows * columns, 1536), torch.tensor([(1, rows, columns)]))
        start = time.perf_counter()
        sees.inbox.put(IncomingMessage("p", "new_request", pictures))
        tokens, took = len(taken(sees).data.embeds), time.perf_counter() - start
        print(f"image_encoder, {16 * columns} x {16 * rows}: {tokens} tokens, {1000 * took:.1f} ms")
    stopped(sees)
    del sees
    talker = create_talker(str(path), gpu, kv_tokens=65536, load_format="dummy")
    vae = create_audio_vae(str(path), gpu, load_format="dummy")
    started(talker, vae)
    steps = 60
    sampling = SamplingParams(max_tokens=steps, seed=1, ignore_eos=True)
    for together in (1, 1, 8, 32):
        start = time.perf_counter()
        latents, first = spoken(talker, {str(n): ["What is to be said."] for n in range(together)}, "default", sampling)
        step = (time.perf_counter() - start - first) / (steps - 1)
        print(
            f"talker, {together:2} at once: first patch after {1000 * first:.0f} ms, a step {1000 * step:.2f} ms, "
            f"real-time factor {step * RATE / STEP:.3f}, {together * STEP / RATE / step:.1f} s of speech a second"
        )
    for _ in range(2):
        start = time.perf_counter()
        voiced(vae, *whole(latents["0"]))
        print(f"audio_vae (tiny backbone): {4 * steps} latents in {1000 * (time.perf_counter() - start):.1f} ms")
    stopped(talker, vae)
    del talker, vae
    torch.cuda.empty_cache()
    thinker = create_thinker(str(path), gpu, kv_tokens=65536, speech_stage=None, load_format="dummy")
    started(thinker)
    options = GenerationOptions(SamplingParams(max_tokens=65, ignore_eos=True), SamplingParams(), False, "", True)
    for together in (1, 1, 8, 32):
        ids = torch.randint(0, 150000, (64,))
        start = time.perf_counter()
        prompt = ChatPrompt(ids, torch.arange(64).repeat(3, 1), 0, options)
        answered(thinker, {str(n): ChatInput(prompt) for n in range(together)})
        took = time.perf_counter() - start
        print(f"thinker, {THINKER_LAYERS} layers, {together:2} at once: {1000 * took / 65:.2f} ms a token")
    stopped(thinker)
    print(f"{torch.cuda.max_memory_reserved(gpu) / 2**30:.1f} GiB reserved at most")


def answered(thinker: Scheduler, asked: dict[str, ChatInput]) -> dict[str, list[int]]:
    for request_id, request in asked.items():
        thinker.inbox.put(IncomingMessage(request_id, "new_request", request))
    found: dict[str, list[int]] = {}
    while len(found) < len(asked):
        message = taken(thinker)
        if isinstance(message.data, ThinkerResult):
            found[message.request_id] = message.data.output_ids
    return found


def spoken(
    talker: Scheduler, texts: dict[str, list[str]], voice: str, sampling: SamplingParams
) -> tuple[dict[str, torch.Tensor], float]:
    """Each request's latents, numbered by pieces from 1 on, and the seconds until the first came."""
    start, first = time.perf_counter(), 0.0
    for request_id, said in texts.items():
        talker.inbox.put(IncomingMessage(request_id, "stream_chunk", PiecesStart(voice, sampling, True)))
        for piece in said:
            talker.inbox.put(IncomingMessage(request_id, "stream_chunk", Piece(piece)))
        talker.inbox.put(IncomingMessage(request_id, "stream_done"))
    parts: dict[str, list[torch.Tensor]] = {request_id: [] for request_id in texts}
    waiting = len(texts)
    while waiting:
        message = taken(talker)
        if isinstance(message.data, Latents):
            first = first or time.perf_counter() - start
            parts[message.request_id].append(message.data.codes)
        waiting -= isinstance(message.data, LatentsResult)
    return {request_id: torch.cat(found) for request_id, found in parts.items()}, first


def whole(latents: torch.Tensor) -> tuple[Latents, LatentsResult]:
    """All of a speech's latents at once, and its end."""
    return Latents(latents, True), LatentsResult(len(latents), "stop", True)


if __name__ == "__main__":
    main()
