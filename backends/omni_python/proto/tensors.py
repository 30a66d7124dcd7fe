"""The tensors of the models that Triton sees: names, types and shapes. Names follow vllm_backend where it has one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    """`dtype` is Triton's client-side name ("BYTES", "FP32", ...); -1 in `dims` stands for any length.

    For an output, `optional` means that a response may leave it out.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = True


INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("text_input", "BYTES", (1,)),
    # JSON: a list of chat messages with OpenAI content parts (text, input_audio, audio_url, image_url, video_url).
    TensorSpec("messages", "BYTES", (1,)),
    # Mono samples in -1..1, at `audio_sample_rate` Hz.
    TensorSpec("audio", "FP32", (-1,)),
    TensorSpec("audio_sample_rate", "INT32", (1,)),
    # Encoded files, one an element.
    TensorSpec("audios", "BYTES", (-1,)),
    TensorSpec("images", "BYTES", (-1,)),
    TensorSpec("videos", "BYTES", (-1,)),
    # What to answer with: "text", "audio" or both.
    TensorSpec("modalities", "BYTES", (-1,)),
    TensorSpec("voice", "BYTES", (1,)),
    # "fp32" (the default) answers in `audio_output`; "pcm16" and "wav" answer in `audio_base64`.
    TensorSpec("audio_format", "BYTES", (1,)),
    # JSON: an object of parameters, with an object for each stage that has its own.
    TensorSpec("sampling_parameters", "BYTES", (1,)),
    TensorSpec("stream", "BOOL", (1,)),
    TensorSpec("exclude_input_in_output", "BOOL", (1,)),
    # Alone: True asks for `description`, False for `uptime_ms`.
    TensorSpec("describe", "BOOL", (1,)),
    # Alone: asks for the `trace` of a request that has ended, by its id or its W3C trace id; "" for the newest.
    TensorSpec("trace_id", "BYTES", (1,)),
    # Alone: ends the request that was sent with this `cancel_key`.
    TensorSpec("cancel", "BYTES", (1,)),
)
"""Inputs of the orchestrator. All are optional to Triton; the request parser checks which belong together."""

OUTPUTS: tuple[TensorSpec, ...] = (
    # The whole text, or a delta when streaming.
    TensorSpec("text_output", "BYTES", (1,)),
    # Mono samples in -1..1, a chunk or all of them, at `audio_sample_rate` Hz.
    TensorSpec("audio_output", "FP32", (-1,)),
    TensorSpec("audio_sample_rate", "INT32", (1,)),
    TensorSpec("audio_base64", "BYTES", (1,)),
    TensorSpec("finish_reason", "BYTES", (1,)),
    TensorSpec("num_input_tokens", "UINT32", (1,)),
    TensorSpec("num_output_tokens", "UINT32", (1,)),
    # JSON: token counts by stage and modality.
    TensorSpec("usage", "BYTES", (1,)),
    # JSON: [{"stage", "start", "first", "end"}, ...] in the order of the starts: when each stage got its first input,
    # gave its first output, and was done, in seconds since the request was admitted.
    TensorSpec("stage_timings", "BYTES", (1,)),
    # JSON: a `Trace`, with the last response to a request that asked for it (parameter `trace`), or alone.
    TensorSpec("trace", "BYTES", (1,)),
    # JSON: the files, on the server's host, into which the stages that the client named are recorded.
    TensorSpec("recordings", "BYTES", (1,)),
    # JSON: the pipeline's modalities, voices and so on, as in `PipelineInfo`.
    TensorSpec("description", "BYTES", (1,)),
    # Milliseconds since the orchestrator was started: requests that are older went to one that died.
    TensorSpec("uptime_ms", "INT64", (1,)),
)
"""Outputs of the orchestrator."""

STAGE_INPUTS: tuple[TensorSpec, ...] = (TensorSpec("recording", "UINT8", (-1,), optional=False),)
"""A stage model takes a recording to be replayed; requests of the pipeline reach it over its own socket ..."""

STAGE_OUTPUTS: tuple[TensorSpec, ...] = (TensorSpec("reply", "UINT8", (-1,), optional=False),)
"""... and answers piece by piece with a recording of the replay's outputs."""

AUDIO_FORMATS: tuple[str, ...] = ("fp32", "pcm16", "wav")
"""Valid values of `audio_format`; the first is the default."""
