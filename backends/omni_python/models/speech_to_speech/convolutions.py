"""Integer convolutions of an ONNX network with signed inputs: the same results in about half the time on x86."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from omni_python.models.loading.checkpoint import CheckpointError

_HALF = "signed_convolutions_half"

_VNNI = {"avx512_vnni", "avx_vnni"}


def multiplies_signed_bytes_exactly() -> bool:
    """Whether ONNX Runtime does on this machine. On x86 without VNNI it adds two products of bytes in 16 bits, where
    they saturate, and what comes out is wrong by up to a tenth."""
    return not _VNNI.isdisjoint(Path("/proc/cpuinfo").read_text().split())


def with_signed_inputs(network: bytes) -> bytes:
    """The network with what `DynamicQuantizeLinear` gives to `ConvInteger` shifted from 0..255 to -128..127, its zero
    point too, so that every product of differences stays what it was.

    ONNX Runtime multiplies signed bytes by unsigned ones with AVX512-VNNI or AVX-VNNI, two unsigned ones without; but
    see `multiplies_signed_bytes_exactly`.
    Raises `CheckpointError` where the file is no ONNX network.
    """
    try:
        model = onnx.load_model_from_string(network)
    except Exception as error:  # protobuf's, whose class depends on its implementation
        raise CheckpointError(f"the ONNX network cannot be read: {error}") from error
    quantized = {node.output[0] for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"}
    nodes: list[onnx.NodeProto] = []
    shifted: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "ConvInteger" and node.input[0] in quantized:
            for place in (0, 2):
                name = node.input[place]
                if name not in shifted:
                    nodes += _shift(name)
                    shifted.add(name)
                node.input[place] = _signed(name)
        nodes.append(node)
    if shifted:
        model.graph.initializer.append(numpy_helper.from_array(np.array(128, np.uint8), _HALF))
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    changed: bytes = model.SerializeToString()
    return changed


def _shift(name: str) -> list[onnx.NodeProto]:
    """Of a byte with the highest bit flipped, read as signed: 128 less than before."""
    flipped = f"{name}_flipped"
    return [
        helper.make_node("BitwiseXor", [name, _HALF], [flipped], flipped),
        helper.make_node("Cast", [flipped], [_signed(name)], _signed(name), to=TensorProto.INT8),
    ]


def _signed(name: str) -> str:
    return f"{name}_signed"
