"""Convolutions of signed bytes give exactly what those of unsigned ones gave."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from omni_python.models.loading.checkpoint import CheckpointError
from omni_python.models.speech_to_speech.convolutions import multiplies_signed_bytes_exactly, with_signed_inputs


def network(rng: np.random.Generator) -> bytes:
    """x [1, 6, n] -> quantized once -> two convolutions with padding -> their integers."""
    weights = [
        numpy_helper.from_array(rng.integers(0, 256, (5, 6, size), np.uint8), f"weight_{size}") for size in (3, 7)
    ]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["bytes", "scale", "zero"]),
        *(
            helper.make_node(
                "ConvInteger",
                ["bytes", f"weight_{size}", "zero", "weight_zero"],
                [f"y_{size}"],
                kernel_shape=[size],
                pads=[size // 2, size // 2],
            )
            for size in (3, 7)
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, "n"])],
        [helper.make_tensor_value_info(f"y_{size}", TensorProto.INT32, [1, 5, "n"]) for size in (3, 7)],
        [*weights, numpy_helper.from_array(np.array(rng.integers(0, 256), np.uint8), "weight_zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def run(model: bytes, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, {"x": x})]


@pytest.mark.skipif(not multiplies_signed_bytes_exactly(), reason="needs a CPU with AVX512-VNNI or AVX-VNNI")
@pytest.mark.parametrize("shift", [-3.0, 0.0, 0.4, 7.0])
def test_integers_stay_the_same(shift: float) -> None:
    rng = np.random.default_rng()
    given = network(rng)
    changed = with_signed_inputs(given)
    convolutions = [node for node in onnx.load_model_from_string(changed).graph.node if node.op_type == "ConvInteger"]
    assert [list(node.input[:3:2]) for node in convolutions] == [["bytes_signed", "zero_signed"]] * 2
    onnx.checker.check_model(onnx.load_model_from_string(changed), full_check=True)
    x = (rng.standard_normal((1, 6, 40)) + shift).astype(np.float32)
    for before, after in zip(run(given, x), run(changed, x), strict=True):
        assert before.any()
        np.testing.assert_array_equal(before, after)


def test_what_is_changed_already_stays() -> None:
    changed = with_signed_inputs(network(np.random.default_rng()))
    assert with_signed_inputs(changed) == changed


def test_no_network() -> None:
    with pytest.raises(CheckpointError, match="ONNX network cannot be read"):
        with_signed_inputs(b"no network")
