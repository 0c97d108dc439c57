"""Tables of ONNX ops in the backend, against ONNX's own schemas and its shape inference."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, defs, helper

from ir.dim_functions import FUNCTIONS
from onnx_backend.building import products, shapes, sizes

SHAPE = [2, 3, 4]
ELEMENT = {"tensor(float)": TensorProto.FLOAT, "tensor(bool)": TensorProto.BOOL, "tensor(int32)": TensorProto.INT32,
           "tensor(uint8)": TensorProto.UINT8, "tensor(int64)": TensorProto.INT64}  # fmt: skip


def test_what_broadcasts():
    """ONNX says so in words; of PRelu it says that the slope alone does."""
    said = {
        s.name
        for s in defs.get_all_schemas()
        if "multidirectional" in f"{s.doc} {' '.join(i.description for i in s.inputs)}"
    }
    assert said | {"PRelu"} == shapes.BROADCASTING


@pytest.mark.parametrize("op", sorted(shapes.SAME))
def test_what_keeps_the_shape(op):
    """Where ONNX infers a shape of the first result, it is that of the first operand."""
    schema = defs.get_schema(op)
    operands = []
    for i, formal in enumerate(schema.inputs[: schema.min_input]):
        element = next((e for name, e in ELEMENT.items() if name in formal.types), TensorProto.FLOAT)
        operands.append(helper.make_tensor_value_info(f"x{i}", element, SHAPE))
    node = helper.make_node(op, [o.name for o in operands], ["y"])
    for attribute in schema.attributes.values():
        if attribute.required:
            value = [1] if attribute.type == defs.OpSchema.AttrType.INTS else 1
            node.attribute.append(helper.make_attribute(attribute.name, value))
    result = helper.make_empty_tensor_value_info("y")
    model = helper.make_model(helper.make_graph([node], "one", operands, [result]))
    (inferred,) = onnx.shape_inference.infer_shapes(model).graph.output
    if inferred.type.tensor_type.HasField("shape"):
        assert [d.dim_value for d in inferred.type.tensor_type.shape.dim] == SHAPE


def test_names_are_of_ops():
    assert {*sizes._EXPRESSION_OPS.values(), *products._STOPS} <= {s.name for s in defs.get_all_schemas()}
    assert FUNCTIONS.keys() >= sizes._EXPRESSION_OPS.keys()
