"""Random valid pipelines for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from omni_python.config import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig

NAMES = st.text("abcXYZ019_-", min_size=1, max_size=12)
TEXT = st.text(max_size=12)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.text("abcdef_", min_size=1, max_size=6), PLAIN, max_size=3)
DOTTED = st.sampled_from(["pkg.fn", "a.b.c.make_2", "tests.config.family.merge"])


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineConfig:
    """A chain of stages with further edges, each from an earlier stage to a later one."""
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    stages = [_stage(draw, index, names) for index in range(len(names))]
    return PipelineConfig(
        name=draw(st.none() | NAMES),
        model_path="org/" + draw(NAMES.filter(lambda name: name.strip("_-"))),
        entry_stage=draw(st.sampled_from([None, names[0]])),
        terminal_stages_fn=draw(st.none() | DOTTED),
        info_fn=draw(st.none() | DOTTED),
        relay_backend=draw(st.sampled_from(["shm", "nccl", "nixl", "mooncake"])),
        endpoints=EndpointsConfig(base_path=draw(st.sampled_from([None, "/run/omni"]))),
        env_defaults=draw(st.dictionaries(st.sampled_from(["A", "OMP_NUM_THREADS"]), TEXT)),
        runtime_overrides=draw(st.dictionaries(st.sampled_from(names), ARGUMENTS)),
        stages=stages,
    )


def _stage(draw: st.DrawFn, index: int, names: list[str]) -> StageConfig:
    later = names[index + 1 :]
    # Each stage sends to the one behind it at least, so that all can be reached.
    others = draw(st.lists(st.sampled_from(later[1:]), unique=True)) if len(later) > 1 else []
    routing: dict[str, Any] = {"next": [later[0], *others]} if later else {"terminal": True}
    if len(later) == 1 and draw(st.booleans()):
        routing["next"] = later[0]
    streams = draw(st.lists(st.sampled_from(later), unique=True)) if later else []
    following = routing.get("next", [])
    targets = sorted({*streams, *([following] if isinstance(following, str) else following)})
    relay = st.builds(RelayConfig, slot_size_mb=st.integers(1, 4096), credits=st.integers(1, 64))
    tp_size = draw(st.integers(1, 2))
    # Every stage has GPUs and a process of its own.
    gpus = [2 * index, 2 * index + 1]
    return StageConfig(
        name=names[index],
        process=f"p{index}" if tp_size == 1 else draw(st.sampled_from([None, f"p{index}"])),
        gpu=draw(st.sampled_from([None, 2 * index])) if tp_size == 1 else gpus,
        tp_size=tp_size,
        factory=draw(DOTTED),
        factory_args=draw(ARGUMENTS),
        stream_to=streams,
        project_payload=draw(st.dictionaries(st.sampled_from(targets), DOTTED)) if targets else {},
        relay=draw(st.none() | relay),
        **routing,
    )
