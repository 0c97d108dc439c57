"""A pool behind a Pad: onnxruntime pads the pool, and to MaxPool pads are the lowest number; so past some nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor
from torch.nn import functional as F

import ir
from onnx_backend.handlers.pool import _REMOVED

SHAPE = np.array([1, 1, 5, 5])
# Between the Pad and the pool, each so that it changes nothing: nodes of (op, inputs, attributes), and constants.
FORMS: dict[str, tuple[list[tuple[str, list[str], dict[str, Any]]], dict[str, Any]]] = {
    "Cast": ([("Cast", ["p"], {"to": 1})], {}),
    "Transpose": ([("Transpose", [t], {"perm": [0, 1, 3, 2]}) for t in ("p", "p2")], {}),
    **{op: ([(op, ["p"], {})], {}) for op in ("Identity", "Dropout", "Clip", "Max", "Min", "Sum", "Mean")},
    **{op: ([(op, ["p", "c"], {})], {"c": np.float32([0])}) for op in ("Add", "Sub")},
    **{op: ([(op, ["p", "c"], {})], {"c": np.float32([1])}) for op in ("Mul", "Div", "Pow")},
    **{op: ([(op, ["p", "c"], {})], {"c": SHAPE}) for op in ("Reshape", "Expand")},
    "Tile": ([("Tile", ["p", "c"], {})], {"c": np.ones(4, np.int64)}),
    "Slice": ([("Slice", ["p", "c", "d"], {})], {"c": np.array([0]), "d": np.array([9])}),
    "Concat": ([("Concat", ["p"], {"axis": 0})], {}),
    "Gather": ([("Gather", ["p", "c"], {"axis": 0})], {"c": np.array([0])}),
    "Where": ([("Where", ["c", "p", "p"], {})], {"c": np.array([True])}),
    "ReduceSum": ([("ReduceSum", ["p", "c"], {"noop_with_empty_axes": 1})], {"c": np.zeros(0, np.int64)}),
    "Squeeze": ([("Squeeze", ["p", "c"], {}), ("Unsqueeze", ["p2", "c"], {})], {"c": np.array([0])}),
    "Unsqueeze": ([("Unsqueeze", ["p", "c"], {}), ("Squeeze", ["p2", "c"], {})], {"c": np.array([0])}),
}  # fmt: skip


def _ran(nodes: Sequence[tuple[str, list[str], dict[str, Any]]], constants: dict[str, Any]) -> float:
    """The corner of a max pool of -1 behind a Pad by 0, as onnxruntime computes it: 0, or -1 where it pads the pool."""
    made = [helper.make_node("Pad", ["x", "pads"], ["p"])]
    for i, (op, inputs, attributes) in enumerate(nodes):
        made.append(helper.make_node(op, inputs, [f"p{i + 2}"], **attributes))
    made.append(helper.make_node("MaxPool", [f"p{len(nodes) + 1}"], ["y"], kernel_shape=[2, 2]))
    held = {**constants, "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    graph = helper.make_graph(
        made, "pads", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, 3, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return float(session.run(None, {"x": -np.ones((1, 1, 3, 3), np.float32)})[0][0, 0, 0, 0])


def test_the_list_is_what_onnxruntime_removes() -> None:
    assert {name for name, form in FORMS.items() if _ran(*form) != 0.0} == _REMOVED


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "transposes": lambda x: (x.transpose(2, 3) + 0.0).transpose(2, 3),
    "permutes": lambda x: (x.permute(0, 2, 3, 1) * 1.0).permute(0, 3, 1, 2),
    "casts": lambda x: (x.float().transpose(1, 2) / 1).transpose(1, 2).float(),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_max_pool_of_padded_numbers(name: str) -> None:
    between = BETWEEN[name]
    model = lambda x: F.max_pool2d(between(F.pad(x, (1, 1, 1, 1))), 2, 1)  # noqa: E731
    x = -torch.rand(1, 2, 4, 4) - 1
    torch.testing.assert_close(ir.export(model, (x,), target="onnx")(x), model(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (2, 0, 0, 3), (1, 2, 2, 1)], ids=str)
def test_an_average_pool_of_padded_numbers(pads, counted, ceil_mode, dynamic) -> None:
    """onnxruntime takes no pads of a window's size, and with ceil_mode no window that starts at them."""

    def model(x: Tensor) -> list[Tensor]:
        y = F.pad(x, pads)
        return [F.avg_pool2d(y, k, 2, p, ceil_mode, counted) for k, p in ((2, 0), (2, 1), (3, 1))]

    shapes = ({2: "h"},) if dynamic else None
    program = ir.export(model, (torch.rand(2, 3, 4, 3),), target="onnx", dynamic_shapes=shapes)
    for height in (4, 5, 3) if dynamic else (4,):
        x = torch.rand(2, 3, height, 3)
        torch.testing.assert_close(program(x), model(x))
