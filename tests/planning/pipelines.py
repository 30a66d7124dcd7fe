"""Costs as a pipeline of published size has them: milliseconds of an H200, rounded, and requests of different kinds."""

from __future__ import annotations

import random

import msgspec

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


def brief(costs: Costs) -> Costs:
    """The same without the later pieces of its text, for which nothing waits, and which take most of the simulation."""
    decode = msgspec.structs.replace(costs.stages["decode"], steps=1)
    return msgspec.structs.replace(costs, stages={**costs.stages, "decode": decode})


def _before_the_thinker(chance: random.Random, encoder: str) -> dict[str, StageCost]:
    """Preprocessing, and an encoder that some requests need, on the device `encoder`: faster or slower."""
    uniform = chance.uniform
    return {
        "preprocessing": StageCost(
            device="host", fixed_ms=uniform(1, 10), cv=uniform(0, 0.8), workers=chance.choice([1, 2, 4])
        ),
        "encoder": StageCost(
            device=encoder,
            fixed_ms=uniform(2, 12),
            per_row_ms=uniform(0.5, 5),
            max_batch=chance.choice([1, 4, 8]),
            share=uniform(0.1, 0.9),
            after=["preprocessing"],
        ),
    }


def some_costs(seed: int) -> Costs:
    """Preprocessing, an encoder that some need, on the thinker's GPU or its own, and a thinker: faster or slower."""
    chance = random.Random(seed)
    uniform = chance.uniform
    encoder = chance.choice(["gpu0", "gpu0", "gpu1"])
    costs = Costs(
        devices={"host": Device(cores=4, other_ms=uniform(0, 4)), "gpu0": Device(gpus=1), encoder: Device(gpus=1)},
        stages={
            **_before_the_thinker(chance, encoder),
            "thinker": StageCost(
                device="gpu0",
                kind="loop",
                first_ms=uniform(4, 25),
                fixed_ms=uniform(3, 15),
                per_row_ms=uniform(0.05, 0.6),
                steps=chance.randrange(15, 40),
                steps_cv=uniform(0, 0.5),
                max_batch=64,
                after=["preprocessing", "encoder"],
                output="text",
            ),
        },
    )
    check_costs(costs)
    return costs


def some_speech_costs(seed: int) -> tuple[Costs, dict[str, int]]:
    """A pipeline that speaks, and copies of its devices: thinker and speech on a GPU each, faster or slower, more steps
    or fewer, and speech that begins with few frames or many."""
    chance = random.Random(seed)
    uniform = chance.uniform
    encoder = chance.choice(["gpu0", "gpu0", "gpu2"])
    text, frames = chance.randrange(20, 60), chance.randrange(40, 110)
    names = dict.fromkeys(["gpu0", "gpu1", encoder])
    costs = Costs(
        devices={"host": Device(cores=4, other_ms=uniform(0, 4)), **{name: Device(gpus=1) for name in names}},
        stages={
            **_before_the_thinker(chance, encoder),
            "thinker": StageCost(
                device="gpu0",
                kind="loop",
                first_ms=uniform(4, 20),
                fixed_ms=uniform(3, 12),
                per_row_ms=uniform(0.05, 0.5),
                steps=text,
                steps_cv=uniform(0, 0.5),
                max_batch=64,
                after=["preprocessing", "encoder"],
            ),
            "decode": StageCost(device="host", fixed_ms=0.1, streams_from="thinker", output="text"),
            "talker_ar": StageCost(
                device="gpu1",
                kind="loop",
                first_ms=uniform(3, 12),
                fixed_ms=uniform(1.5, 6),
                per_row_ms=uniform(0.03, 0.3),
                steps=frames,
                steps_cv=uniform(0, 0.5),
                max_batch=64,
                streams_from="thinker",
                needs=chance.choice([1, 1, 1, 4]),
            ),
            "code2wav": StageCost(
                device="gpu1",
                fixed_ms=uniform(1, 6),
                per_row_ms=uniform(0.3, 3),
                steps=chance.randrange(3, 11),
                max_batch=chance.choice([1, 4, 8, 16]),
                streams_from="talker_ar",
                needs=chance.choice([1, 4, 10, 20]),
                output="audio",
            ),
        },
    )
    check_costs(costs)
    return costs, {"host": 1, **{name: chance.choice([1, 1, 2, 3]) for name in names}}
