"""Entry stages whose requests may name media that have to be fetched first."""

from __future__ import annotations

from omni_python.preprocessing.media.loader import MediaLoader
from omni_python.proto.request import OmniRequest
from omni_python.scheduling.base import Scheduler
from omni_python.scheduling.cancellation import CancelToken
from omni_python.scheduling.prepared import PreparedScheduler
from omni_python.scheduling.simple import SimpleScheduler


def fetching_first(compute: SimpleScheduler, loader: MediaLoader) -> Scheduler:
    """`compute` behind a scheduler that fetches what the loader's policy allows, or alone where that is nothing."""
    if not loader.policy.fetches:
        return compute

    def fetch(request: OmniRequest, token: CancelToken) -> OmniRequest:
        return loader.load(request, token.is_cancelled)

    return PreparedScheduler(compute, fetch, loader.needs_fetch, loader.policy.max_fetching)
