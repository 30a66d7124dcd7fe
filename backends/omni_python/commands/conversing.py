"""The loop of a conversation on a terminal: ask for a line, do it, show what comes of it."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from omni_python.commands.answering import AnswerView, print_timings
from omni_python.commands.conversation import CommandError, Conversation, Quit
from omni_python.commands.printing import dim, without_controls
from omni_python.commands.wrapping import terminal_columns

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document

    from omni_python.client import OmniClient, RequestOptions

_FILE_COMMANDS = ("/audio", "/image", "/video", "/save")


def converse(client: OmniClient, talk: Conversation, options: RequestOptions, out: Path) -> int:
    """Question after question, each with all that was said before, until Ctrl-D or /quit; returns the exit status.

    The last speech is in the file `out`. Raises what the client raises when the server is gone.
    """
    session = _session(talk)
    _note(f"{client.pipeline} listens. /help lists the commands; Ctrl-D leaves.")
    while True:
        try:
            attached = f"[{', '.join(talk.names)}] " if talk.names else ""
            line = session.prompt(f"{attached}> ").strip()
            if line.startswith("/"):
                _note(talk.command(line))
            elif line or talk.attached:
                _ask(client, talk, line, options, out)
        except CommandError as error:
            _complain(str(error))
        except KeyboardInterrupt:
            _note("Ctrl-D or /quit leaves")
        except (EOFError, Quit):
            return 0


def _ask(client: OmniClient, talk: Conversation, text: str, options: RequestOptions, out: Path) -> None:
    from omni_python.client import RequestFailed, UnknownPipeline

    question = talk.question(text)
    talk.detach()
    request: RequestOptions = {
        **options,
        "messages": talk.asking(question),
        "voice": talk.voice if talk.speaks else None,
        "modalities": options.get("modalities", ()) if talk.speaks else ["text"],
    }
    view = AnswerView(sys.stdout)
    try:
        with closing(client.stream(**request)) as events:
            answer = view.collect(events)
    except KeyboardInterrupt:
        if view.text:
            talk.answered(question, view.text)
        _note("stopped")
        return
    except UnknownPipeline:
        raise
    except RequestFailed as error:
        _complain(str(error))
        return
    talk.answered(question, answer.text)
    talk.last = answer
    if len(answer.audio):
        answer.save_wav(out)
    print_timings(answer, out if len(answer.audio) else None)


def _session(talk: Conversation) -> PromptSession[str]:
    """Line editing with a history that outlives the program, on the terminal even where stdout is none."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.output import create_output

    class Commands(Completer):
        def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
            before = document.text_before_cursor
            name, space, rest = before.partition(" ")
            if not before.startswith("/"):
                return
            if not space:
                yield from (Completion(known, -len(name)) for known in talk.commands if known.startswith(name))
            elif name in _FILE_COMMANDS:
                yield from PathCompleter(expanduser=True).get_completions(Document(rest), event)
            elif name == "/voice":
                voices = (*talk.info.voices, "off")
                yield from (Completion(voice, -len(rest)) for voice in voices if voice.startswith(rest))

    try:
        path = _history_file()
        history: FileHistory | InMemoryHistory = FileHistory(str(path))
    except OSError:  # a home that cannot be written
        history = InMemoryHistory()
    return PromptSession(
        history=history,
        completer=Commands(),
        complete_while_typing=False,
        output=create_output(always_prefer_tty=True),
    )


def _history_file() -> Path:
    """Where the freedesktop.org specification puts what a program remembers, readable by this user alone."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "omni"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "chat_history"
    path.touch(mode=0o600)
    with path.open("a"):  # raises where it cannot be written
        return path


def _note(text: str) -> None:
    if text:
        print(dim(_folded(text), sys.stderr), file=sys.stderr)


def _complain(text: str) -> None:
    print(_folded(without_controls(text)), file=sys.stderr)


def _folded(text: str) -> str:
    """`text` without a word that the terminal's border cuts; lines that fit stay as they are."""
    return "\n".join(textwrap.fill(line, terminal_columns(), replace_whitespace=False) for line in text.split("\n"))
