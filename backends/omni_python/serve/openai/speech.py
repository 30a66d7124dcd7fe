"""`POST /v1/audio/speech`: the pipeline reads a text aloud.

A pipeline that converses is told to read, in a system message; how faithfully it does is the model's matter.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from omni_python.client import AsyncOmniClient, AudioChunk, RequestOptions
from omni_python.serve.openai.encoding import SpeechEncoder
from omni_python.serve.openai.errors import ApiError
from omni_python.serve.openai.schema import SpeechRequest

READ_ALOUD = (
    "Read the user's text aloud, word for word, in its own language. Add nothing, leave nothing out, do not answer it."
)


async def spoken(
    request: SpeechRequest, client: AsyncOmniClient, traceparent: str | None = None
) -> AsyncGenerator[tuple[int, bytes], None]:
    """The encoded speech as it comes, each piece with the pipeline's sample rate; at least one. Leaving the iterator
    cancels the request."""
    info = await client.info()
    options = _options(request, converses="text" in info.modalities)
    options["traceparent"] = traceparent
    encoder: SpeechEncoder | None = None
    sample_rate = 0
    async with aclosing(client.stream(**options)) as events:
        async for event in events:
            if isinstance(event, AudioChunk):
                sample_rate = event.sample_rate
                encoder = encoder or SpeechEncoder(request.response_format, sample_rate, request.speed)
                if data := encoder.encode(event.samples):
                    yield sample_rate, data
    if encoder is None:  # nothing was said: an empty file
        sample_rate = info.sample_rate
        if not sample_rate:
            raise ApiError(400, f"The model {request.model!r} does not speak.", "unsupported", "model")
        encoder = SpeechEncoder(request.response_format, sample_rate, request.speed)
    yield sample_rate, encoder.close()


def _options(request: SpeechRequest, converses: bool) -> RequestOptions:
    user = {"role": "user", "content": request.input}
    seed: dict[str, Any] = {} if request.seed is None else {"seed": request.seed}
    if not converses:  # it speaks what it is given, and nothing else
        if request.instructions:
            raise ApiError(400, f"The model {request.model!r} takes no instructions.", "unsupported", "instructions")
        return {"messages": [user], "modalities": ["audio"], "voice": request.voice, "sampling": seed}
    instructions = " ".join(part for part in (READ_ALOUD, request.instructions) if part)
    return {
        "messages": [{"role": "system", "content": instructions}, user],
        "modalities": ["text", "audio"],
        "voice": request.voice,
        "sampling": {**seed, "talker": seed} if seed else {},
    }
