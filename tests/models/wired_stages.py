"""The four stages from the thinker on, in one process, wired by hand as the pipeline wires them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from omni_python.models.qwen3_omni import stages
from omni_python.models.qwen3_omni.payloads import CodecFrames, ThinkerInput
from omni_python.models.text.payloads import ThinkerResult
from omni_python.proto.payload import AudioOutput, TextOutput
from omni_python.proto.work import IncomingMessage, OutgoingMessage
from omni_python.scheduling.base import Scheduler


@dataclass
class Answer:
    """What a request gave. `codes` are the frames on their way to code2wav."""

    text: list[str] = field(default_factory=list)
    audio: list[np.ndarray] = field(default_factory=list)
    codes: list[list[int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text_end: TextOutput | None = None
    audio_end: AudioOutput | None = None
    error: Exception | None = None
    speech: bool = True
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def waveform(self) -> np.ndarray:
        return np.concatenate(self.audio)


class WiredStages:
    """`with WiredStages(checkpoint) as stages: answer = stages.submit("id", input)`; then wait for `answer.done`."""

    def __init__(
        self, path: Path, max_running: int = 4, kv_tokens: int = 2048, chunk_frames: int = 4, frames_per_chunk: int = 5
    ) -> None:
        self.schedulers: dict[str, Scheduler] = {
            "thinker": stages.create_thinker(str(path), None, max_running, kv_tokens, prefill_tokens=64),
            "talker_ar": stages.create_talker(
                str(path), None, max_running, kv_tokens, 64, single_frames=3, frames_per_chunk=frames_per_chunk
            ),
            "code2wav": stages.create_code2wav(str(path), None, chunk_frames=chunk_frames),
            "decode": stages.create_decode(str(path)),
        }
        self.answers: dict[str, Answer] = {}
        self._threads = [
            threading.Thread(target=self._pump, args=(name, scheduler)) for name, scheduler in self.schedulers.items()
        ]

    def __enter__(self) -> WiredStages:
        for scheduler in self.schedulers.values():
            scheduler.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for scheduler in self.schedulers.values():
            scheduler.stop()
            scheduler.outbox.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, request_id: str, request: ThinkerInput) -> Answer:
        answer = self.answers[request_id] = Answer(speech=request.prompt.options.speech)
        self.schedulers["thinker"].inbox.put(IncomingMessage(request_id, "new_request", request))
        return answer

    def abort(self, request_id: str) -> None:
        self.answers.pop(request_id, None)
        for scheduler in self.schedulers.values():
            scheduler.abort(request_id)

    def stats(self) -> Mapping[str, int]:
        return {
            f"{name}.{key}": value
            for name, scheduler in self.schedulers.items()
            for key, value in scheduler.stats().items()
        }

    def _pump(self, name: str, scheduler: Scheduler) -> None:
        while (message := scheduler.outbox.get()) is not None:
            answer = self.answers.get(message.request_id)
            if answer is not None:
                self._route(name, message, answer)

    def _route(self, name: str, message: OutgoingMessage, answer: Answer) -> None:
        request_id, data = message.request_id, message.data
        if message.type == "error":
            answer.error = data
            answer.done.set()
        elif message.type == "stream" and message.target is not None:
            if isinstance(data, CodecFrames):
                answer.codes += data.codes.tolist()
            self._send(message.target, request_id, "stream_chunk", data)
        elif name == "thinker":
            assert isinstance(data, ThinkerResult)
            answer.tokens = data.output_ids
            for target in ["decode", "talker_ar"] if data.speech else ["decode"]:
                self._send(target, request_id, "stream_done", None)
                self._send(target, request_id, "new_request", data)
        elif name == "talker_ar":
            self._send("code2wav", request_id, "stream_done", None)
            self._send("code2wav", request_id, "new_request", data)
        else:
            self._collect(message, answer)

    def _collect(self, message: OutgoingMessage, answer: Answer) -> None:
        data = message.data
        ended = message.type == "result"
        if isinstance(data, TextOutput):
            answer.text.append(data.text)
            answer.text_end = data if ended else None
        else:
            answer.audio.append(data.samples)
            answer.audio_end = data if ended else None
        if answer.text_end is not None and (answer.audio_end is not None or not answer.speech):
            answer.done.set()

    def _send(self, target: str, request_id: str, kind: Any, data: Any) -> None:
        self.schedulers[target].inbox.put(IncomingMessage(request_id, kind, data))
