"""The entry stage of every family: a request's media are got and decoded, for as long as the request is wanted."""

from __future__ import annotations

from collections.abc import Callable

from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.preprocessing.request_limit import request_limit
from omni_python.proto.payload import Payload
from omni_python.proto.request import OmniRequest
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.cancellation import CancelToken
from omni_python.scheduling.prepared import PreparedScheduler
from omni_python.scheduling.simple import SimpleScheduler


def preprocessing_stage(
    preprocess: Callable[[OmniRequest], Payload], loader: MediaLoader, workers: int = 1
) -> Scheduler:
    """`preprocess` on `workers` threads, behind a scheduler that fetches what the loader's policy allows, or alone
    where that is nothing. An abort ends the decoding of a file, and no further one is begun."""

    def compute(request: OmniRequest, token: CancelToken) -> Payload:
        with request_limit(loader.policy.decode_seconds, token.is_cancelled):
            return preprocess(request)

    def fetch(request: OmniRequest, token: CancelToken) -> OmniRequest:
        return loader.load(request, token.is_cancelled)

    scheduler = SimpleScheduler(compute_cancellable=compute, workers=workers)
    if not loader.policy.fetches:
        return scheduler
    return PreparedScheduler(scheduler, fetch, loader.needs_fetch, loader.policy.max_fetching)
