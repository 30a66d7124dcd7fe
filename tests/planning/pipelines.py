"""Costs as a pipeline of published size has them: milliseconds of an H200, rounded, and requests of different kinds."""

from __future__ import annotations

from omni_python.planning.costs import Costs, Device, StageCost, check_costs


def speech_costs(thinker: str = "gpu0", speech: str = "gpu1") -> Costs:
    """Thinker and encoders on one GPU, talker and vocoder on one (the same, where the names are equal)."""
    costs = Costs(
        pipeline="speech",
        devices={
            "host": Device(cores=4, other_ms=3),
            **{name: Device(gpus=1, memory_gib=80) for name in (thinker, speech)},
        },
        stages={
            "preprocessing": StageCost(device="host", fixed_ms=4, cv=0.5, workers=2),
            "image_encoder": StageCost(
                device=thinker, fixed_ms=6, per_row_ms=3, max_batch=8, share=0.4, after=["preprocessing"]
            ),
            "mm_aggregate": StageCost(device="host", fixed_ms=0.5, after=["preprocessing", "image_encoder"]),
            "thinker": StageCost(
                device=thinker,
                kind="loop",
                first_ms=9,
                fixed_ms=5,
                per_row_ms=0.15,
                steps=24,
                steps_cv=0.3,
                max_batch=64,
                after=["mm_aggregate"],
                memory_gib=60,
            ),
            "decode": StageCost(device="host", fixed_ms=0.1, steps=24, streams_from="thinker", output="text"),
            "talker_ar": StageCost(
                device=speech,
                kind="loop",
                first_ms=6,
                fixed_ms=2.4,
                per_row_ms=0.08,
                steps=70,
                steps_cv=0.3,
                max_batch=64,
                streams_from="thinker",
                memory_gib=8,
            ),
            "code2wav": StageCost(
                device=speech,
                fixed_ms=2,
                per_row_ms=1.2,
                steps=7,
                max_batch=8,
                streams_from="talker_ar",
                needs=10,
                output="audio",
            ),
        },
    )
    check_costs(costs)
    return costs
