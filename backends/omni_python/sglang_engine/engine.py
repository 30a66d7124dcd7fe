"""An SGLang `Scheduler` inside this process, as its owner drives it: requests, steps, and what the cache holds.

SGLang decides who runs (batches, paged KV cache, radix cache, chunked and mixed prefill, retraction) and runs the
forward pass. Its sockets, tokenizer and sampler are not used: requests come by `add`, tokens are chosen by the owner.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from omni_python.proto.errors import OmniError
from omni_python.sglang_engine.config import EngineConfig
from omni_python.sglang_engine.giving_up import in_hand, release
from omni_python.sglang_engine.held_rows import HeldRows
from omni_python.sglang_engine.hooks import Choice, StepHooks
from omni_python.sglang_engine.launch import check_version, leave_groups, start_scheduler

__all__ = ["Choice", "Engine", "EngineConfig", "StepHooks", "check_version"]


class Engine:
    """All methods are called from one thread, but for the constructor."""

    def __init__(self, config: EngineConfig, hooks: StepHooks) -> None:
        self._config = config
        self._hooks = hooks
        self._requests: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self._count = 0
        self._batch: Any = None
        self._lost: list[str] = []
        self.computed_tokens = 0
        """Prompt tokens that went through the model so far; those found in the cache do not."""
        self.looked_up_tokens = 0
        """Tokens of all prompts that were computed so far."""
        self.found_tokens = 0
        """Those of them that were found in the cache."""
        self.retractions = 0
        """How often a request that has ended by itself had lost its slots to others while it ran."""
        self._scheduler = start_scheduler(config, self)
        self._held = HeldRows(self._scheduler, self._names)
        self._runner = self._scheduler.tp_worker.model_runner
        self._model = self._runner.model
        self._runner.sample = self._sample
        self.token_embedding: torch.Tensor = self._model.whole(self._model.model.embed_tokens)
        """[vocab, H], shared with the engine where that holds all of it; on rank 0."""
        self.head: torch.Tensor = self._model.whole(self._model.lm_head)
        """[vocab, H], as `token_embedding`."""

    def close(self) -> None:
        """Let go of what is outside this process. The engine takes no further step."""
        leave_groups()

    # ---- what it holds

    @property
    def norm(self) -> torch.Tensor:
        return self._model.model.norm.weight.data

    @property
    def capacity(self) -> int:
        """Prompt tokens and max_tokens of a request must be fewer together."""
        return self._scheduler.max_total_num_tokens - self._scheduler.page_size

    @property
    def context(self) -> int:
        """Tokens that prompt and answer of a request may have together."""
        return int(self._scheduler.model_config.context_len)

    @property
    def longest_prompt(self) -> int:
        """Tokens; SGLang refuses longer ones, a few tokens before the KV cache or the model's context is full."""
        return int(self._scheduler.max_req_input_len) - 1

    @property
    def kv_tokens(self) -> int:
        """Slots of the KV cache that running requests hold; what is merely remembered for others is not counted."""
        free = self._scheduler.token_to_kv_pool_allocator.available_size()
        return int(self._scheduler.max_total_num_tokens - free - self._scheduler.tree_cache.evictable_size())

    @property
    def request_slots(self) -> int:
        pool = self._scheduler.req_to_token_pool
        return int(pool.size - pool.available_size())

    # ---- requests

    def add(self, name: str, ids: Sequence[int], positions: torch.Tensor, max_tokens: int) -> None:
        """Queue a request. `ids` are the prompt's tokens, as far as its prefixes are looked up in the cache; ids beyond
        the vocabulary stand for media. `positions` int64 [3, len(ids) + max_tokens] are those of prompt and answer.

        Raises `OmniError` where SGLang refuses it, and keeps nothing of it then."""
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.managers.schedule_batch import MultimodalInputs
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(max_new_tokens=max_tokens, temperature=0.0)
        sampling.normalize(None)
        self._count += 1
        request = TokenizedGenerateReqInput(
            # SGLang aborts every request whose id begins with the one that it is given.
            rid=f"{self._count}/",
            input_text=None,
            input_ids=array("q", ids),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
        )
        self._scheduler.process_input_requests([request])
        queued = self._scheduler.waiting_queue[-1]
        if queued.rid != request.rid or queued.to_finish is not None or queued.finished():
            if queued.rid == request.rid:
                self._scheduler.waiting_queue.pop()
            raise OmniError(f"SGLang refused a request: {queued.to_finish or queued.finished_reason}")
        # SGLang takes a few away near the end of the context, and would then end an answer of which the owner awaits
        # more tokens.
        queued.sampling_params.max_new_tokens = max_tokens
        queued.multimodal_inputs = MultimodalInputs(mm_items=[], mrope_positions=positions)
        self._requests[name] = queued
        self._names[queued] = name

    def abort(self, name: str) -> None:
        """Drop a request, known or not; what it holds is free after the next `step`."""
        from sglang.srt.managers.io_struct import AbortReq

        request = self._requests.pop(name, None)
        if request is None:
            return
        del self._names[request]
        if self._held.forget(request):
            release(self._scheduler, request)
        elif not request.finished():
            self._scheduler.abort_request(AbortReq(rid=request.rid))

    def tapped(self, name: str, mask: torch.Tensor) -> torch.Tensor:
        """The tapped hidden state [m, H] at those places of the prompt where `mask` [prompt tokens] is True; in
        `StepHooks.choose` of its first token."""
        row = self._scheduler.req_to_token_pool.req_to_token[self._requests[name].req_pool_idx]
        slots = row[: len(mask)][mask.to(row.device)]
        return self._model.tapped[slots.long()]

    # ---- steps

    def step(self, ready: Callable[[str], bool] | None = None) -> bool:
        """Compute a batch; False where there is nothing to do. Rows that are not `ready` wait, and hold up no others.

        An exception means that the batch, or the plan for it, failed; then call `fail_batch`.
        """
        scheduler = self._scheduler
        self._batch = None  # until this step has one
        if self._config.gpu_id is not None:
            torch.cuda.set_device(self._config.gpu_id)
        if ready is not None:
            self._held.update(ready)
        busy = scheduler.last_batch is not None or not scheduler.running_batch.is_empty()
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch = plan.running_batch
        batch = self._batch = plan.batch_to_run
        if batch is not None:
            self._set_inputs(batch)
            result = scheduler.run_batch(batch)
            scheduler.process_batch_result(batch, result)
        elif not self._requests:
            scheduler.new_token_ratio_tracker.reset()
        scheduler.last_batch = batch
        # Where the last row of a batch ended, SGLang looks at its queue only the next time that it is asked.
        return busy or batch is not None

    def fail_batch(self) -> list[str]:
        """Give up everything that was in the batch that failed, or in the plan for it; the names of its rows."""
        scheduler, batch = self._scheduler, self._batch
        requests = in_hand(scheduler, self._requests.values(), self._held.rows) if batch is None else list(batch.reqs)
        if scheduler.chunked_req in requests:
            scheduler.chunked_req = None
        scheduler.last_batch = self._batch = None
        for request in requests:
            if request.req_pool_idx is not None or not request.finished():
                release(self._scheduler, request)
        scheduler.running_batch.filter_batch()
        scheduler.running_batch.batch_is_full = False
        names = [self._names[request] for request in requests if request in self._names]
        for name in names:
            del self._names[self._requests.pop(name)]
        return names

    def take_lost(self) -> list[str]:
        """Requests that SGLang gave up since the last call, since the KV cache could not hold even them alone."""
        lost, self._lost = self._lost, []
        return lost

    def reset_cache(self) -> None:
        """Forget every remembered prefix."""
        self._scheduler.tree_cache.reset()
        self._scheduler.token_to_kv_pool_allocator.clear()
        self._scheduler.req_to_token_pool.clear()

    def _set_inputs(self, batch: Any) -> None:
        from omni_python.sglang_engine.decoder import PromptSlice

        if not batch.forward_mode.is_extend():
            if self._config.feedback:
                self._set_decode_inputs(batch)
            return
        slices, at = [], 0
        for request, start, tokens in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
            name = self._names.get(request)
            of_prompt = min(start + tokens, len(request.origin_input_ids)) - start
            if name is not None and of_prompt > 0:
                self.computed_tokens += of_prompt
                prompt = self._hooks.prompt(name)
                if prompt is None:
                    request.skip_radix_cache_insert = True
                else:
                    slices.append(PromptSlice(prompt, start, at, of_prompt))
            at += tokens
        self._model.slices = slices

    def _set_decode_inputs(self, batch: Any) -> None:
        known = [(row, self._names[request]) for row, request in enumerate(batch.reqs) if request in self._names]
        if known:
            inputs = self._hooks.decode_embeds([name for _, name in known])
            rows = [row for row, _ in known]
            self._model.inputs[_places(rows, inputs.device)] = inputs

    def _sample(self, logits_output: Any, forward_batch: Any) -> torch.Tensor:
        """In place of SGLang's sampler."""
        batch = self._batch
        logits = logits_output.next_token_logits
        tokens = [0] * len(batch.reqs)
        rows = [
            row
            for row, request in enumerate(batch.reqs)
            if request in self._names and request.inflight_middle_chunks <= 0
        ]
        if rows:
            index = _places(rows, logits.device)
            names = [self._names[batch.reqs[row]] for row in rows]
            choices = self._hooks.choose(names, self._model.last_hidden[index], logits[index].float())
            for row, choice in zip(rows, choices, strict=True):
                tokens[row] = choice.token
                self._count_prefix(batch.reqs[row])
                self._finish(batch.reqs[row], choice)
        return torch.tensor(tokens, dtype=torch.int64).to(logits.device, non_blocking=True)

    def _count_prefix(self, request: Any) -> None:
        """Once a prompt: at its first token."""
        if not request.output_ids:
            self.looked_up_tokens += len(request.origin_input_ids)
            self.found_tokens += request.cached_tokens

    def _finish(self, request: Any, choice: Choice) -> None:
        from sglang.srt.managers import schedule_batch

        if choice.failed:
            request.skip_radix_cache_insert = True
            request.to_finish = schedule_batch.FINISH_ABORT()
        elif choice.finish == "length":
            request.to_finish = schedule_batch.FINISH_LENGTH(length=len(request.output_ids) + 1)
        elif choice.finish is not None:
            request.to_finish = schedule_batch.FINISH_MATCHED_TOKEN(matched=choice.token)
        if request.to_finish is not None:
            self.retractions += request.retraction_count
            del self._requests[self._names.pop(request)]

    # ---- what SGLang sends to its own front end

    def send_output(self, output: Any, origin: Any = None) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        if not isinstance(output, AbortReq) or output.finished_reason is None:
            return
        for name, request in list(self._requests.items()):
            if request.rid == output.rid:
                del self._names[self._requests.pop(name)]
                self._lost.append(name)


def _places(rows: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """An index that picks `rows`, which ascend; mostly they are all of the batch, and then nothing is copied."""
    if len(rows) == rows[-1] + 1:
        return slice(0, len(rows))
    return torch.tensor(rows, device=device)
