"""Requests of an SGLang `Scheduler` that are given up: those that a failed plan had in hand, and what one holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


def in_hand(scheduler: Any, requests: Iterable[Any], held: Collection[Any]) -> list[Any]:
    """Which of the engine's `requests` a plan that failed had in hand: SGLang had taken them off its queue and put them
    nowhere else yet, or had begun to make room for their next token. Where there is no such request the plan would fail
    again: then all that run, or, where none do, all that wait. Those that are `held` back are in no plan."""
    last = scheduler.last_batch
    if last is not None and scheduler.running_batch.is_empty():
        scheduler.running_batch = last  # a plan begins with this
    running = [request for request in scheduler.running_batch.reqs if not request.finished()]
    known = dict.fromkeys([*requests, *running])
    safe = {request for request in running if not _is_changed(request)} - {scheduler.chunked_req}
    safe.update(scheduler.waiting_queue, held)
    if found := [request for request in known if request not in safe]:
        return found
    if not running:
        running, scheduler.waiting_queue = scheduler.waiting_queue, []
        for request in running:
            request.last_node = None  # it was looked up, and not locked
    return running


def release(scheduler: Any, request: Any) -> None:
    """End a request, however far it has come: its tokens, its place and its hold on a cached prefix become free."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT
    from sglang.srt.mem_cache.common import release_kv_cache

    request.finished_reason = FINISH_ABORT()
    if request.kv is not None:
        request.kv_committed_len = request.kv.kv_allocated_len  # where a plan failed there may be more
        release_kv_cache(request, scheduler.tree_cache, is_insert=False)
        return
    if request.last_node is not None:  # the prefix that it was to have from the cache
        scheduler.tree_cache.dec_lock_ref(request.last_node)
    if request.req_pool_idx is not None:
        scheduler.req_to_token_pool.free(request)


def _is_changed(request: Any) -> bool:
    """Whether a running row has a slot for its newest token, which is not computed yet; or none at all any more."""
    tokens = len(request.origin_input_ids) + len(request.output_ids)
    return request.kv is None or int(request.kv.kv_allocated_len) >= tokens
