"""The client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from omni_python.client._events import Answer, AudioChunk, Event, Finished, TextDelta
from omni_python.client._transport import Transport

File = str | Path | bytes
"""A file: its path, or its contents."""


class OmniClient:
    """Talks to one pipeline of one server.

    **Usage**

        with OmniClient("localhost:8001", "qwen3_omni") as client:
            answer = client.chat("What is in this picture?", images=["photo.jpg"])
            print(answer.text)
            answer.save_wav("answer.wav")

            for event in client.stream("And now sing it.", voice="chelsie"):
                ...  # TextDelta, AudioChunk, and at last Finished

    Thread-safe.
    """

    def __init__(self, url: str = "localhost:8001", pipeline: str = "qwen3_omni") -> None:
        self.pipeline = pipeline
        self._transport = Transport(url)

    def __enter__(self) -> OmniClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def is_ready(self) -> bool:
        """Whether the server answers and the pipeline is loaded."""
        return self._transport.is_ready(self.pipeline)

    def chat(self, text: str | None = None, **options: Any) -> Answer:
        """Ask, and wait for the whole answer. Takes what `stream` takes."""
        return Answer.collect(self._events(_inputs(text, stream=False, **options)))

    def stream(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        audios: Sequence[File] = (),
        images: Sequence[File] = (),
        videos: Sequence[File] = (),
        audio: np.ndarray | None = None,
        audio_sample_rate: int | None = None,
        modalities: Sequence[str] = (),
        voice: str | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> Iterator[Event]:
        """Ask, and get the answer's events as they come; leaving the iterator cancels the request.

        `text`, or `messages` in OpenAI's form (role, and content as text or parts). Media go with the last message:
        `audios`, `images` and `videos` are files of any common format; `audio` is float32 mono samples [n] at
        `audio_sample_rate` Hz. `modalities` are "text", "audio" or both (default: what the pipeline gives). `sampling`
        holds parameters of the text stage by name, and an object for each stage that has its own, for example
        `{"temperature": 0.7, "talker": {"seed": 1}}`.

        Raises `RequestFailed` with the server's message, `ServerUnreachable`, and `OSError` for unreadable files.
        """
        return self._events(
            _inputs(
                text,
                stream=True,
                messages=messages,
                audios=audios,
                images=images,
                videos=videos,
                audio=audio,
                audio_sample_rate=audio_sample_rate,
                modalities=modalities,
                voice=voice,
                sampling=sampling,
            )
        )

    def _events(self, inputs: Mapping[str, np.ndarray]) -> Iterator[Event]:
        start = time.perf_counter()
        first_text = first_audio = None
        for outputs in self._transport.infer(self.pipeline, inputs):
            now = time.perf_counter() - start
            if "text_output" in outputs:
                first_text = now if first_text is None else first_text
                yield TextDelta(outputs["text_output"][0].decode())
            if "audio_output" in outputs:
                first_audio = now if first_audio is None else first_audio
                yield AudioChunk(outputs["audio_output"], int(outputs["audio_sample_rate"][0]))
            if "finish_reason" in outputs:
                reason, usage = outputs["finish_reason"][0].decode(), json.loads(outputs["usage"][0])
                yield Finished(reason, usage, first_text, first_audio, time.perf_counter() - start)


def _inputs(
    text: str | None,
    *,
    stream: bool,
    messages: Sequence[Mapping[str, Any]] | None = None,
    audios: Sequence[File] = (),
    images: Sequence[File] = (),
    videos: Sequence[File] = (),
    audio: np.ndarray | None = None,
    audio_sample_rate: int | None = None,
    modalities: Sequence[str] = (),
    voice: str | None = None,
    sampling: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    inputs: dict[str, np.ndarray] = {"stream": np.array([stream])}
    strings = {
        "text_input": [text] if text is not None else [],
        "messages": [json.dumps(messages)] if messages is not None else [],
        "modalities": modalities,
        "voice": [voice] if voice is not None else [],
        "sampling_parameters": [json.dumps(sampling)] if sampling else [],
    }
    files = {"audios": audios, "images": images, "videos": videos}
    for name, values in strings.items():
        if values:
            inputs[name] = np.array([value.encode() for value in values], np.object_)
    for name, values in files.items():
        if values:
            inputs[name] = np.array([_read(value) for value in values], np.object_)
    if audio is not None:
        inputs["audio"] = np.asarray(audio, np.float32)
    if audio_sample_rate is not None:
        inputs["audio_sample_rate"] = np.array([audio_sample_rate], np.int32)
    return inputs


def _read(file: File) -> bytes:
    return file if isinstance(file, bytes) else Path(file).read_bytes()
