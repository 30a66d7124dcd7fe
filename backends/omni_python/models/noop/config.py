"""The no-op pipelines' declarations."""

from __future__ import annotations

from omni_python.config.schema import PipelineConfig, StageConfig

_STAGES = "omni_python.models.noop.stages"


class NoopLinePipelineConfig(PipelineConfig):
    """Three stages in a line, each in a process of its own."""

    name: str | None = "noop_line"
    model_path: str = "none"
    stages: list[StageConfig] = [
        StageConfig(name="a", process="a", factory=f"{_STAGES}.create_source", next="b"),
        StageConfig(name="b", process="b", factory=f"{_STAGES}.create_pass", next="c"),
        StageConfig(name="c", process="c", factory=f"{_STAGES}.create_sink", terminal=True),
    ]


class NoopStreamPipelineConfig(PipelineConfig):
    """Two stages with a streaming edge; the second counts."""

    name: str | None = "noop_stream"
    model_path: str = "none"
    stages: list[StageConfig] = [
        StageConfig(name="a", process="a", factory=f"{_STAGES}.create_chunk_source", next="b", stream_to=["b"]),
        StageConfig(name="b", process="b", factory=f"{_STAGES}.create_chunk_sink", terminal=True),
    ]


class NoopForwardPipelineConfig(PipelineConfig):
    """Two stages with a streaming edge; the second forwards every chunk to the client."""

    name: str | None = "noop_forward"
    model_path: str = "none"
    stages: list[StageConfig] = [
        StageConfig(name="a", process="a", factory=f"{_STAGES}.create_chunk_source", next="b", stream_to=["b"]),
        StageConfig(
            name="b", process="b", factory=f"{_STAGES}.create_chunk_sink", factory_args={"forward": True}, terminal=True
        ),
    ]
