"""The conversations of which make_fixtures.py records what Hugging Face makes, and the questions that it tries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXT = "{question}"
QUESTIONS = """What is this?
Tell me what you notice.
Can you describe it in a few words?
What happens next?
Please explain this to me.
Is there something unusual here?
How would you describe the mood?
What should I know about it?
Give me a short summary.
Who could have made this?
Which part is the most important?
Why does it matter?
Where might this come from?
When was this made?
Do you like it?
How many things are there?
What would you change?
Say it in one sentence.
Compare the beginning and the end.
Repeat the main point.
What is missing?
Make up a title for this.
Is it true?
List three details.""".splitlines()
QUESTIONS += [f"{opening} {question}" for opening in ("Hello.", "Now tell me:", "Quickly:") for question in QUESTIONS]


@dataclass
class CaseSpec:
    """`messages` in content-part form; media parts name a file under media/, and TEXT stands for the question."""

    messages: list[dict[str, Any]]
    voice: str
    thinker_tokens: int = 16
    talker_tokens: int = 41
    speech_ends: str = "length"
    answer_ends: str | None = None
    min_frames: int = field(default=8)


def user(*parts: str) -> dict[str, Any]:
    return {"role": "user", "content": [_part(part) for part in parts]}


def _part(text: str) -> dict[str, Any]:
    kinds = {".wav": "audio", ".jpg": "image", ".png": "image", ".mp4": "video"}
    kind = kinds.get(Path(text).suffix)
    return {"type": kind, "file": text} if kind else {"type": "text", "text": text}


SYSTEM = {"role": "system", "content": [_part("You are a helpful assistant that speaks.")]}
CASES = {
    "text": CaseSpec([user(TEXT)], "Ethan", talker_tokens=62),
    "text_stop": CaseSpec([SYSTEM, user(TEXT)], "chelsie", thinker_tokens=24, speech_ends="stop", answer_ends="stop"),
    "audio": CaseSpec([user("voice_16k.wav", TEXT)], "Chelsie"),
    "image": CaseSpec([SYSTEM, user("landscape.jpg", TEXT)], "aiden", thinker_tokens=20),
    "video": CaseSpec([user("silent.mp4", TEXT)], "ethan", talker_tokens=31),
    "video_sound": CaseSpec([SYSTEM, user("talking.mp4", TEXT)], "Aiden", talker_tokens=31),
    "audio_image": CaseSpec([user("portrait.png", TEXT, "voice_short_16k.wav")], "chelsie", speech_ends="stop"),
    "all": CaseSpec(
        [SYSTEM, user("voice_16k.wav", "landscape.jpg", "talking.mp4", TEXT)],
        "ethan",
        thinker_tokens=20,
        talker_tokens=31,
    ),
    "multi_turn": CaseSpec(
        [
            SYSTEM,
            user("portrait.png", "What do you see in this picture?"),
            {"role": "assistant", "content": [_part("A sun over a field.")]},
            user("voice_16k.wav", "voice_short_16k.wav", TEXT),
        ],
        "aiden",
        talker_tokens=31,
    ),
}


def fill(messages: list[dict[str, Any]], question: str) -> list[dict[str, Any]]:
    """The messages with the question in the place of TEXT."""
    return json.loads(json.dumps(messages).replace(TEXT, question))
