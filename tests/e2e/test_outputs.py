"""Clients get the outputs that they request, and tensors that responses have in common are right in each of them."""

from __future__ import annotations

import json
import queue
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from omni_python.client._inputs import request_inputs
from omni_python.serve.triton_server import TritonServer

MODEL = "qwen3_omni_text"
LAST = ("stage_timings", "finish_reason", "num_input_tokens", "num_output_tokens", "usage")


def answers(url: str, wanted: Sequence[Sequence[str]], stream: bool, tokens: int) -> list[Mapping[str, np.ndarray]]:
    """The last responses to as many requests at once, by request; each asks for some outputs, none for all."""
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    sampling = {"max_tokens": tokens, "ignore_eos": True}
    made = []
    for name, array in request_inputs("Hm?", {"sampling": sampling}, stream=stream).items():
        made.append(triton.InferInput(name, list(array.shape), "BYTES" if array.dtype == object else "BOOL"))
        made[-1].set_data_from_numpy(array)
    found: dict[int, Mapping[str, np.ndarray]] = {}
    with triton.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        for number, names in enumerate(wanted):
            outputs = [triton.InferRequestedOutput(name) for name in names] or None
            client.async_stream_infer(
                MODEL, made, outputs=outputs, request_id=str(number), enable_empty_final_response=False
            )
        while len(found) < len(wanted):
            result, error = arrived.get(timeout=60)
            assert error is None, error
            response = result.get_response()
            if response.parameters["triton_final_response"].bool_param:
                found[int(response.id)] = {output.name: result.as_numpy(output.name) for output in response.outputs}
    return [found[number] for number in range(len(wanted))]


def test_only_requested_outputs_come_and_all_where_none_is_named(server: TritonServer) -> None:
    wanted: list[list[str]] = [["text_output"], [], ["usage", "finish_reason"], ["num_output_tokens"]] * 6
    for stream, tokens in ((False, 3), (True, 5), (False, 3)):
        for names, last in zip(wanted, answers(server.grpc_url, wanted, stream, tokens), strict=True):
            expected = set(names or LAST)
            assert set(last) - {"text_output"} == expected - {"text_output"}
            if not stream and ("text_output" in names or not names):
                assert last["text_output"][0]
            if "finish_reason" in expected:
                assert last["finish_reason"].tolist() == [b"length"]
            if "num_output_tokens" in expected:
                assert last["num_output_tokens"].tolist() == [tokens]
            if "usage" in expected:
                assert json.loads(last["usage"][0])["output_tokens"] == tokens
