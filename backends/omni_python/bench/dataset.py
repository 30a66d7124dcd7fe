"""What is asked: requests from a file, or a few questions that come with the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from omni_python.client import RequestOptions
from omni_python.proto.errors import InvalidArgument

QUESTIONS = Path(__file__).parent / "data" / "questions.jsonl"


class BenchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a data set: the keyword arguments of `OmniClient.stream`, with files by their paths."""

    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    audios: list[str] = []
    images: list[str] = []
    videos: list[str] = []
    modalities: list[str] = []
    voice: str | None = None
    sampling: dict[str, Any] = {}

    def options(self, folder: Path) -> RequestOptions:
        """All but the text. Files are read, relative to `folder`; raises OSError for one that cannot be."""
        return {
            "messages": self.messages,
            "audios": [(folder / name).read_bytes() for name in self.audios],
            "images": [(folder / name).read_bytes() for name in self.images],
            "videos": [(folder / name).read_bytes() for name in self.videos],
            "modalities": self.modalities,
            "voice": self.voice,
            "sampling": self.sampling,
        }


class Question(msgspec.Struct, frozen=True):
    """A request, ready to be sent any number of times."""

    text: str | None
    options: RequestOptions


def load_questions(path: Path) -> list[Question]:
    """The requests of a file with a JSON object a line; empty lines are passed over.

    Raises `InvalidArgument` with the line's number, and OSError for files that cannot be read.
    """
    decode = msgspec.json.Decoder(BenchRequest).decode
    questions = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path}: is no text in UTF-8; give one JSON object a line") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            request = decode(line)
            questions.append(Question(request.text, request.options(path.parent)))
        except msgspec.MsgspecError as error:
            valid = ", ".join(BenchRequest.__struct_fields__)
            raise InvalidArgument(f"{path}, line {number}: {error}; a request's keys are {valid}") from None
        except OSError as error:
            raise InvalidArgument(
                f"{path}, line {number}: cannot read {error.filename}: {error.strerror}; files are looked for beside "
                "the data set"
            ) from None
    if not questions:
        raise InvalidArgument(f"{path}: there is no request in it; give one JSON object a line")
    return questions


def with_options(questions: Sequence[Question], options: RequestOptions) -> list[Question]:
    """The same with what `options` names in place of the requests' own; sampling parameters are replaced one by one."""
    changed = []
    for question in questions:
        sampling = {**(question.options.get("sampling") or {}), **(options.get("sampling") or {})}
        changed.append(Question(question.text, {**question.options, **options, "sampling": sampling}))
    return changed
