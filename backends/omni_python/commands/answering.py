"""One answer, shown while it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from omni_python.commands.printing import dim
from omni_python.commands.wrapping import WrappedText, can_move_cursor, terminal_columns

if TYPE_CHECKING:
    from omni_python.client import Answer, Event

_STATUS_PERIOD_S = 0.1


class AnswerView:
    """Shows the events of an answer on `out`: on a terminal wrapped, with live timings below; elsewhere the text alone.

    `text` is what has come so far.
    """

    def __init__(self, out: TextIO) -> None:
        self.text = ""
        self._out = out
        self._wrapped = WrappedText(out) if can_move_cursor(out) else None
        self._start = time.perf_counter()
        self._first_text: float | None = None
        self._first_audio: float | None = None
        self._audio_s = 0.0
        self._status_at = float("-inf")
        self._status()

    def collect(self, events: Iterable[Event]) -> Answer:
        """Show all events and gather them. Whatever ends this, the output is left at the beginning of a line."""
        from omni_python.client import Answer

        seen = []
        try:
            for event in events:
                self._show(event)
                seen.append(event)
        finally:
            self._end()
        return Answer.collect(seen)

    def _show(self, event: Event) -> None:
        from omni_python.client import AudioChunk, TextDelta

        now = time.perf_counter() - self._start
        if isinstance(event, TextDelta):
            self._first_text = now if self._first_text is None else self._first_text
            self.text += event.text
            if self._wrapped:
                self._wrapped.write(event.text)
            else:
                self._out.write(event.text)
                self._out.flush()
        elif isinstance(event, AudioChunk):
            self._first_audio = now if self._first_audio is None else self._first_audio
            self._audio_s += len(event.samples) / event.sample_rate
            self._status()

    def _status(self) -> None:
        now = time.perf_counter()
        if self._wrapped is None or now - self._status_at < _STATUS_PERIOD_S:
            return
        self._status_at = now
        took = timings(self._first_text, self._first_audio, now - self._start, self._audio_s)
        self._wrapped.show_status("  ".join(took) or "waiting for the answer (Ctrl-C stops it)")

    def _end(self) -> None:
        if self._wrapped:
            self._wrapped.end()
        elif self.text:
            self._out.write("\n")
            self._out.flush()


def timings(first_text: float | None, first_audio: float | None, so_far: float, audio_s: float) -> list[str]:
    """How an answer comes along, in words; times in seconds."""
    took = []
    if first_text is not None:
        took.append(f"first text {first_text:.2f} s")
    if first_audio is not None and audio_s:
        took += [
            f"first audio {first_audio:.2f} s",
            f"real-time factor {so_far / audio_s:.2f}",
            f"speech {audio_s:.1f} s",
        ]
    return took


def print_timings(answer: Answer, speech: Path | None) -> None:
    """What the answer took, and the file of its speech, on stderr; where it was traced, the trace's drawing, too."""
    finished = answer.finished
    took = timings(finished.first_text, finished.first_audio, finished.total, answer.audio_seconds)
    if speech is not None:
        took.append(f"in {speech}")
    print(dim(folded(took, terminal_columns()), sys.stderr), file=sys.stderr)
    if finished.trace is not None:
        from rich.console import Console

        from omni_python.commands.trace import draw

        print(file=sys.stderr)
        draw(finished.trace, Console(stderr=True, soft_wrap=True))


def folded(words: Iterable[str], columns: int) -> str:
    """The words in lines of at most `columns`, none broken."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 2 <= columns:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def answer_as_json(answer: Answer, speech: Path | None) -> dict[str, Any]:
    """The answer for scripts; times in seconds."""
    finished = answer.finished
    return {
        "text": answer.text,
        "finish_reason": finished.finish_reason,
        "usage": finished.usage,
        **({} if finished.trace is None else {"trace_id": finished.trace.trace_id}),
        "speech": None
        if speech is None
        else {"file": str(speech), "sample_rate": answer.sample_rate, "seconds": round(answer.audio_seconds, 6)},
        "timings": {
            "first_text": finished.first_text,
            "first_audio": finished.first_audio,
            "total": finished.total,
            "real_time_factor": answer.real_time_factor,
        },
    }
