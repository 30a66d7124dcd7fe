"""Every metric that this backend writes. Names keep Prometheus' conventions: base units, `_total` for counters.

All have the label `pipeline` too. `replica` counts the instances of a process from 0. In a pipeline's Grafana dashboard
(`docker/monitoring`) each has a place, which a test sees to.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from omni_python.proto.histogram import Histogram


class Kind(enum.Enum):
    COUNTER = "counter"
    """The value is the total since the process's start."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Family:
    """`at_rest` is what a gauge falls back to when no request is left: 0, or None where it holds what is kept."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    at_rest: int | None = None

    def __call__(self, value: float | Histogram, *labels: str) -> Sample:
        """The family's value now for these values of its labels, in their order."""
        return Sample(self, value, labels)

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which its values are exported."""
        if self.kind is not Kind.HISTOGRAM:
            return (self.name,)
        return f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count"


class Sample(NamedTuple):
    family: Family
    value: float | Histogram
    labels: tuple[str, ...]


FAMILIES: list[Family] = []


def _family(name: str, kind: Kind, help: str, *labels: str, at_rest: int | None = None) -> Family:
    family = Family(name, kind, help, labels, at_rest)
    FAMILIES.append(family)
    return family


def _counter(name: str, help: str, *labels: str) -> Family:
    return _family(name, Kind.COUNTER, help, *labels)


def _held(name: str, help: str, *labels: str) -> Family:
    """A gauge of what requests hold."""
    return _family(name, Kind.GAUGE, help, *labels, at_rest=0)


def _gauge(name: str, help: str, *labels: str) -> Family:
    return _family(name, Kind.GAUGE, help, *labels)


def _histogram(name: str, help: str, *labels: str) -> Family:
    return _family(name, Kind.HISTOGRAM, help, *labels)


# -- the pipeline, written by its orchestrator

REQUESTS = _counter("omni_requests_total", "Requests by final state (completed, failed, aborted)", "state")
REFUSED = _counter("omni_requests_refused_total", "Requests that were not admitted, by the error's code", "code")
IN_FLIGHT = _held("omni_requests_in_flight", "Requests between admission and their final state")
QUEUED = _held("omni_requests_queued", "Admitted requests that wait for one in flight to end")
REPLICA_REQUESTS = _held(
    "omni_replica_requests", "Requests in flight that were given to a replica of a process", "process", "replica"
)
DURATION = _histogram(
    "omni_request_duration_seconds", "From a request's admission to its last response, by final state", "state"
)
FIRST_TEXT = _histogram("omni_time_to_first_text_seconds", "From admission to the first text, of streamed answers")
FIRST_AUDIO = _histogram("omni_time_to_first_audio_seconds", "From admission to the first speech, of streamed answers")
INTERVAL = _histogram(
    "omni_chunk_interval_seconds", "Between two chunks of a streamed answer, by kind (text, audio)", "kind"
)
REAL_TIME_FACTOR = _histogram(
    "omni_real_time_factor_ratio", "Time from admission to the last speech by the speech's duration, of whole answers"
)
UNDERRUN = _histogram(
    "omni_audio_underrun_seconds",
    "Silence that a player hears that plays a streamed answer from its first chunk on, for want of speech to play",
)
STREAMS = _counter(
    "omni_audio_streams_total", "Streamed answers with speech, as that player hears them (continuous, broken)", "heard"
)
INPUT_TOKENS = _counter("omni_input_tokens_total", "Tokens of the prompts, by the answers' final state", "state")
OUTPUT_TOKENS = _counter("omni_output_tokens_total", "Tokens of the answers' texts, by final state", "state")
FRAMES = _counter("omni_audio_frames_total", "Codec frames of the speech sent, by the answers' final state", "state")
SAMPLES = _counter("omni_audio_samples_total", "Samples of the speech sent, by the answers' final state", "state")
AUDIO = _counter("omni_audio_seconds_total", "Duration of the speech sent, by the answers' final state", "state")

# -- its stages

STAGE_REQUESTS = _counter("omni_stage_requests_total", "Requests that reached a stage", "stage", "replica")
QUEUE_DEPTH = _gauge("omni_stage_queue_depth", "Requests that wait in a stage for its scheduler", "stage", "replica")
RUNNING = _gauge("omni_stage_running", "Requests with which a stage's scheduler has begun", "stage", "replica")
WAIT = _histogram(
    "omni_stage_wait_seconds", "From a stage's first input to the begin of its computation", "stage", "replica"
)
RUN = _histogram("omni_stage_run_seconds", "From that begin to the stage's result", "stage", "replica")
BATCH = _histogram("omni_stage_batch_size", "Requests that a stage computed at once", "stage", "replica")
ABORTS = _counter("omni_stage_aborts_total", "Requests that were aborted in a stage", "stage", "replica")
ERRORS = _counter(
    "omni_stage_errors_total", "Requests that failed in a stage, by the error's code", "stage", "replica", "code"
)
HELD = _held(
    "omni_stage_held",
    "What a stage holds now: requests, fan-in, and its scheduler's own rows and KV",
    "stage",
    "replica",
    "what",
)
KV_USED = _gauge("omni_kv_tokens_in_use", "Tokens of KV cache that requests hold", "stage", "replica")
KV_CAPACITY = _gauge("omni_kv_tokens_capacity", "Tokens of KV cache that a stage has", "stage", "replica")
PREFIX_QUERIES = _counter(
    "omni_prefix_cache_queries_total",
    "Prompt tokens that were looked up in the prefix (radix) cache",
    "stage",
    "replica",
)
PREFIX_HITS = _counter(
    "omni_prefix_cache_hits_total", "Prompt tokens that were found there, and not computed", "stage", "replica"
)

# -- its edges: `source` "client" is the orchestrator's input, `target` "client" its output

EDGE_PAYLOADS = _counter(
    "omni_edge_payloads_total",
    "Payloads from stage to stage, by way (local: by reference; inline: in the message; else a relay)",
    "source",
    "target",
    "replica",
    "way",
)
EDGE_CHUNKS = _counter(
    "omni_edge_chunks_total", "Those of them that are chunks of a stream", "source", "target", "replica", "way"
)
EDGE_BYTES = _counter("omni_edge_bytes_total", "Their encoded bytes", "source", "target", "replica", "way")
SLOTS = _held(
    "omni_relay_slots_in_use",
    "Relay slots of a process, by the process that reads them (none yet: they are being written)",
    "process",
    "replica",
    "reader",
)
WAITS = _counter(
    "omni_relay_waits_total",
    "Payloads that had to wait for a slot (for credits of readers)",
    "process",
    "replica",
    "relay",
)

# -- its GPUs

GPU_BUDGET = _gauge(
    "omni_gpu_memory_budget_bytes", "A stage's share of its GPU's memory", "stage", "process", "replica", "gpu"
)
GPU_LOADED = _gauge(
    "omni_gpu_memory_loaded_bytes",
    "What the stage's process reserved for it when it was built: weights, KV cache, graphs",
    "stage",
    "process",
    "replica",
    "gpu",
)
GPU_RESERVED = _gauge(
    "omni_gpu_memory_reserved_bytes", "What a process has reserved on a GPU now", "process", "replica", "gpu"
)
