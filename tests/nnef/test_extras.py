"""Handlers with the signature and the helper of torch-to-nnef's extras, in tract."""

import pytest
import torch
from torch import nn

import ir
import nnef_backend
from ir.registry import registry
from nnef_backend import extras
from nnef_backend.extras import Fragment, TractNNEF, register, resolve_attr_axis_size


@torch.library.custom_op("t2n_extra::my_op", mutates_args=())
def my_op(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


@torch.library.custom_op("t2n_extra::steps", mutates_args=())
def steps(x: torch.Tensor, y: torch.Tensor, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    total = (x.transpose(0, 1) * scale).transpose(0, 1) + y
    return total, torch.cat([x, y]).reshape(-1)


my_op.register_fake(lambda x: torch.empty_like(x))
steps.register_fake(lambda x, y, scale=2.0: (torch.empty_like(x), x.new_empty(2 * x.numel())))


class Model(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.inner, self.op = nn.Linear(4, 4), op

    def forward(self, x):
        return self.op(self.inner(x))


@pytest.fixture(autouse=True)
def clean():
    """Handlers of this file alone, and of each test alone: an example handles the same op."""
    entries = registry("nnef").entries
    others = {name: entries.pop(name) for name in list(entries) if name.startswith("t2n_extra::")}
    yield
    for name in [n for n in entries if n.startswith("t2n_extra::")]:
        entries.pop(name)
    entries.update(others)
    nnef_backend.remove_fragment("twice_plus")


def exported(model):
    program = ir.export(model, (torch.randn(3, 4),), target="nnef", dynamic_shapes=({0: "batch"},), verify=True)
    program.verify((torch.randn(7, 4),))
    return program


def test_the_example_of_the_page():
    @register("my_op")
    def handler(
        g,
        node,
        name_to_tensor,
        null_ref,
        *,
        torch_graph,
        inference_target,
        op_helper,
        **kwargs,
    ):
        x = op_helper.get_or_add_tensor_variable_in_nnef(node.inputs[0])
        op_helper.add_single_output_op_from_nnef_tensors(
            node=node,
            nnef_op_type="relu",
            inputs=x,
            force_full_output_tensor_name=node.outputs[0].export_name,
        )
        return []

    assert "output = relu(linear);" in exported(Model(torch.ops.t2n_extra.my_op)).artifact.to_text()


def test_steps_outputs_and_sizes():
    seen = {}

    @register("steps")
    def handler(g, node, name_to_tensor, null_ref, *, torch_graph, inference_target, op_helper, **kwargs):
        assert isinstance(inference_target, TractNNEF) and null_ref.shape == ()
        x, y = (op_helper.get_or_add_tensor_variable_in_nnef(i) for i in node.inputs[:2])
        seen["scale"], seen["kind"], seen["rank"] = node.inputs[2].data, node.kind, node.inputs[0].rank
        assert node.inputs[0].dtype is torch.float32 and x.dtype == "float32"
        rows = resolve_attr_axis_size(op_helper, node.inputs[0], 0)
        turned = op_helper.add_intermediate_op(x, "transpose", {"axes": [1, 0]}, [4, rows], "turned")
        scale = op_helper.get_or_add_tensor_variable_in_nnef(node.inputs[2])
        scaled = op_helper.add_intermediate_op(turned, "copy", None, turned.shape, "copied")
        scaled = extras.Tensor(g.emit("mul", scaled.value, scale.value))
        back = op_helper.add_intermediate_op(scaled, "transpose", {"axes": [1, 0]}, [rows, 4], "back")
        total, flat = node.outputs
        op_helper.add_single_output_op_from_nnef_tensors(
            node, "add", (back, y), force_full_output_tensor_name=total.export_name
        )
        both = op_helper.add_intermediate_op(x, "copy", None, x.shape, "both")
        joined = extras.Tensor(g.emit("concat", [both.value, y.value], axis=0))
        name_to_tensor[flat.export_name] = op_helper.add_intermediate_op(
            joined, "reshape", {"shape": [8 * rows]}, [8 * rows], "flat"
        )
        return []

    class Two(nn.Module):
        def forward(self, x):
            return torch.ops.t2n_extra.steps(x, x + 1, 3.0)

    exported(Two())
    assert seen == {"scale": 3.0, "kind": "t2n_extra::steps", "rank": 2}


TWICE = """
fragment twice_plus(x: tensor<scalar>, bias: scalar = 0.0) -> (y: tensor<scalar>)
{
    y = relu(x) + bias - bias;
}
"""


def test_fragment_by_instance_and_by_name():
    @register("my_op")
    def handler(g, node, name_to_tensor, null_ref, *, op_helper, **kwargs):
        x = op_helper.get_or_add_tensor_variable_in_nnef(node.inputs[0])
        op_helper.add_single_output_op_from_nnef_tensors(node, "twice_plus", x, attrs={"bias": 0.5})
        return [Fragment(TWICE)]

    assert "fragment twice_plus" in exported(Model(torch.ops.t2n_extra.my_op)).artifact.to_text()

    @register("my_op", override=True)
    def named(g, node, name_to_tensor, null_ref, *, op_helper, **kwargs):
        op_helper.unary_output_op_without_attr("twice_plus", node)
        return ["twice_plus"]

    exported(Model(torch.ops.t2n_extra.my_op))


def test_multiple_outputs_of_one_operation():
    nnef_backend.add_fragments("""
fragment twice_plus(x: tensor<scalar>, y: tensor<scalar>) -> (a: tensor<scalar>, b: tensor<scalar>)
{
    a = x * 3.0 + y;
    b = reshape(concat([x, y], axis = 0), shape = [-1]);
}
""")

    @register("steps")
    def handler(g, node, name_to_tensor, null_ref, *, op_helper, **kwargs):
        tensors = op_helper.data_nodes_to_nnef_tensors(node.inputs[:2])
        assert len(op_helper.add_multi_output_op_from_nnef_tensors(node, "twice_plus", tensors)) == 2
        return ["twice_plus"]

    class Two(nn.Module):
        def forward(self, x):
            return torch.ops.t2n_extra.steps(x, x + 1, 3.0)

    program = ir.export(Two(), (torch.randn(3, 4),), target="nnef", verify=True)
    assert "fragment twice_plus" in program.artifact.to_text()


def test_mistakes_are_named():
    @register("my_op")
    def nothing(g, node, name_to_tensor, null_ref, **kwargs):
        return []

    with pytest.raises(ir.RefusedError, match="made no tensor for the output"):
        exported(Model(torch.ops.t2n_extra.my_op))

    @register("my_op", override=True)
    def unknown(g, node, name_to_tensor, null_ref, *, op_helper, **kwargs):
        op_helper.unary_output_op_without_attr("no_such_thing", node)
        return []

    with pytest.raises(ir.RefusedError, match="no_such_thing, which is no operation"):
        exported(Model(torch.ops.t2n_extra.my_op))
    with pytest.raises(ir.DuplicateHandlerError, match="test_extras"):
        register("my_op")(unknown)


def test_as_a_plugin(tmp_path, monkeypatch):
    """Two modules handle one op: the first in the list wins; a broken one is a warning, or an error if strict."""
    for number, op in ((1, "relu"), (2, "abs")):
        (tmp_path / f"extra_handlers_{number}.py").write_text(
            "from nnef_backend.extras import register\n"
            "@register('my_op')\n"
            "def my_op(g, node, name_to_tensor, null_ref, *, op_helper, **kwargs):\n"
            f"    op_helper.unary_output_op_without_attr({op!r}, node)\n"
        )
    (tmp_path / "extra_handlers_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("IR_PLUGINS", "extra_handlers_2")
    model, args = Model(torch.ops.t2n_extra.my_op), (torch.randn(3, 4),)
    ir.export(model, args, target="nnef", plugins=["extra_handlers_1"], verify=True)
    with pytest.warns(UserWarning, match="extra_handlers_broken"):
        ir.export(model, args, target="nnef", plugins=["extra_handlers_broken"])
    with pytest.raises(ir.PluginError, match="extra_handlers_broken"):
        ir.export(model, args, target="nnef", plugins=["extra_handlers_broken"], strict_plugins=True)
