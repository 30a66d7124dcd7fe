"""The conversation that `omni chat` holds: what was said, what goes with the next question, the commands."""

from __future__ import annotations

import base64
import json
import mimetypes
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_python.client import Answer, PipelineInfo

Part = dict[str, Any]

HELP = """\
/audio FILE...  sound to go with the next question
/image FILE...  pictures, likewise
/video FILE...  videos, likewise
/voice [NAME]   list the voices, or choose one; off: text alone
/save FILE      last speech to X.wav, or all that was said to X.json
/clear          forget all that was said
/help           this list
/quit           leave, as Ctrl-D does
Enter on an empty line sends the files alone.
Ctrl-C stops an answer, Tab completes.
Up and Ctrl-R find earlier questions."""


class CommandError(Exception):
    """A command that cannot be done; the message says what would be right."""


class Quit(Exception):
    """The user wants to leave."""


@dataclass
class Conversation:
    """`messages` are what was said so far, in OpenAI's form, with the media inside; `attached` goes with the next
    question, `names` are its files. With `speaks` off, answers are text alone."""

    info: PipelineInfo
    system: str | None = None
    voice: str | None = None
    speaks: bool = True
    messages: list[dict[str, Any]] = field(default_factory=list)
    attached: list[Part] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    last: Answer | None = None

    @property
    def commands(self) -> Mapping[str, Callable[[str], str]]:
        """By name; each takes the rest of its line and returns what to show. They raise `CommandError` and `Quit`."""
        return {
            "/audio": self._attach_audio,
            "/clear": self._clear,
            "/help": lambda _: HELP,
            "/image": self._attach_image,
            "/quit": self._quit,
            "/save": self._save,
            "/video": self._attach_video,
            "/voice": self._voice,
        }

    def command(self, line: str) -> str:
        """Do what a line that begins with "/" says. Raises `CommandError` and `Quit`."""
        name, _, rest = line.partition(" ")
        command = self.commands.get(name)
        if command is None:
            raise CommandError(f"{name}: no such command; there are {', '.join(self.commands)}")
        return command(rest.strip())

    def question(self, text: str) -> dict[str, Any]:
        """The user's next message, with what is attached."""
        return {"role": "user", "content": [*self.attached, *([{"type": "text", "text": text}] if text else [])]}

    def asking(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        """The messages to send."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, question]

    def detach(self) -> None:
        """The attached files went with a question."""
        self.attached, self.names = [], []

    def answered(self, question: dict[str, Any], text: str) -> None:
        """Remember a question and what was answered, as far as it came."""
        self.messages += [question, {"role": "assistant", "content": text}]

    def _attach_audio(self, files: str) -> str:
        return self._attach(files, lambda data, kind: {"type": "input_audio", "input_audio": {"data": data}})

    def _attach_image(self, files: str) -> str:
        return self._attach(files, lambda data, kind: _url_part("image_url", data, kind))

    def _attach_video(self, files: str) -> str:
        return self._attach(files, lambda data, kind: _url_part("video_url", data, kind))

    def _attach(self, files: str, part: Callable[[str, str], Part]) -> str:
        """Read files and keep them for the next question; `part` makes content of base64 and a media type."""
        paths = _paths(files)
        if not paths:
            raise CommandError("which file? for example /image photo.jpg")
        parts = []
        for path in paths:
            try:
                data = base64.b64encode(path.read_bytes()).decode()
            except OSError as error:
                raise CommandError(f"cannot read {path}: {error.strerror}") from None
            parts.append(part(data, mimetypes.guess_type(path.name)[0] or "application/octet-stream"))
        self.attached += parts
        self.names += [path.name for path in paths]
        return ""

    def _clear(self, _: str) -> str:
        self.messages, self.last = [], None
        self.detach()
        return "forgotten"

    def _quit(self, _: str) -> str:
        raise Quit

    def _voice(self, name: str) -> str:
        if "audio" not in self.info.modalities:
            raise CommandError("this pipeline does not speak")
        if name == "off":
            self.speaks = False
            return "text alone from now on"
        if name:
            if self.info.voices and name not in self.info.voices:
                raise CommandError(f"no voice {name}; there are {', '.join(self.info.voices)}, or off")
            self.speaks, self.voice = True, name
        now = (self.voice or self.info.default_voice) if self.speaks else "off"
        return f"voice: {now} (of {', '.join(self.info.voices)})"

    def _save(self, rest: str) -> str:
        paths = _paths(rest)
        if len(paths) != 1 or paths[0].suffix not in (".wav", ".json"):
            raise CommandError("give one file: NAME.wav for the last speech, NAME.json for the conversation")
        path = paths[0]
        try:
            if path.suffix == ".json":
                path.write_text(json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n")
            elif self.last is None or not len(self.last.audio):
                raise CommandError("there is no speech to save yet")
            else:
                self.last.save_wav(path)
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}") from None
        return f"wrote {path}"


def _url_part(kind: str, data: str, media_type: str) -> Part:
    return {"type": kind, kind: {"url": f"data:{media_type};base64,{data}"}}


def _paths(text: str) -> list[Path]:
    """Files as a shell reads them, or as one name with spaces. Raises `CommandError` for an open quotation mark."""
    if text and Path(text).expanduser().is_file():
        return [Path(text).expanduser()]
    try:
        return [Path(word).expanduser() for word in shlex.split(text)]
    except ValueError:
        raise CommandError(f"{text}: a quotation mark is open") from None
