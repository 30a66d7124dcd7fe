"""A stage process's figures under the names of its metrics."""

from __future__ import annotations

from collections.abc import Iterator

from omni_python.glue import metric_names as names
from omni_python.glue.metric_names import Sample
from omni_python.glue.pipeline_samples import totals_of_edges
from omni_python.pipeline.stage import Stage
from omni_python.pipeline.stage_process import StageProcess
from omni_python.pipeline.stats.gpu_memory import GpuMemory
from omni_python.proto.errors import ErrorCode


def held_by_process(process: StageProcess) -> Iterator[Sample]:
    """What its stages and its relays hold, and the requests that came."""
    replica = str(process.replica)
    for stage in process.stages.values():
        labels = (stage.spec.name, replica)
        yield names.STAGE_REQUESTS(stage.accepted, *labels)
        for what, count in stage.stats().items():
            yield names.HELD(count, *labels, what)
    for reader, slots in process.relay_slots_by_reader().items():
        yield names.SLOTS(slots, process.process, replica, reader)


def totals_of_process(process: StageProcess, memory: GpuMemory | None) -> Iterator[Sample]:
    """What its stages do and have done, what went out of them, and what its GPU has for them."""
    replica = str(process.replica)
    for stage in process.stages.values():
        yield from _totals_of_stage(stage, replica)
    yield from totals_of_edges(process.edges, replica)
    for relay, stats in process.relay_stats().items():
        yield names.WAITS(stats["waits"], process.process, replica, relay)
    if memory is not None:
        gpu = str(memory.gpu)
        for name, nbytes in memory.budgets.items():
            yield names.GPU_BUDGET(nbytes, name, process.process, replica, gpu)
        for name, nbytes in memory.loaded.items():
            yield names.GPU_LOADED(nbytes, name, process.process, replica, gpu)
        yield names.GPU_RESERVED(memory.reserved(), process.process, replica, gpu)


def _totals_of_stage(stage: Stage, replica: str) -> Iterator[Sample]:
    labels = (stage.spec.name, replica)
    counts, scheduler = stage.counts, stage.scheduler
    yield names.QUEUE_DEPTH(counts.waiting, *labels)
    yield names.RUNNING(counts.running, *labels)
    yield names.WAIT(counts.wait, *labels)
    yield names.RUN(counts.run, *labels)
    yield names.BATCH(scheduler.batch_sizes, *labels)
    yield names.ABORTS(counts.aborts, *labels)
    for code in (ErrorCode.INTERNAL, *counts.errors):
        yield names.ERRORS(counts.errors[code], *labels, code.name)
    if (kv := scheduler.kv_use()) is not None:
        yield names.KV_USED(kv.used, *labels)
        yield names.KV_CAPACITY(kv.capacity, *labels)
        yield names.PREFIX_QUERIES(kv.queries, *labels)
        yield names.PREFIX_HITS(kv.hits, *labels)
