"""Handlers with ops() and compile(), in the shape of ExTorch's OpHandler."""

import types

import pytest
import torch
from torch import nn

import ir
from eager_backend import op_handlers
from eager_backend.op_handlers import Ref

torch.library.define("op_handlers::blend", "(Tensor[] xs, Tensor w, float alpha=0.5, SymInt? count=None) -> Tensor")
torch.library.define("op_handlers::minmax", "(Tensor x) -> (Tensor, Tensor)")


def blend(xs, w, alpha=0.5, count=None):
    return sum(xs) * w * alpha + (count or 0)


def minmax(x):
    return x.amin(), x.amax()


torch.library.impl("op_handlers::blend", "CompositeExplicitAutograd", blend)
torch.library.impl("op_handlers::minmax", "CompositeExplicitAutograd", minmax)
torch.library.register_fake("op_handlers::blend", lambda xs, w, alpha=0.5, count=None: torch.empty_like(xs[0]))
torch.library.register_fake("op_handlers::minmax", lambda x: (x.new_empty(()), x.new_empty(())))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        y = torch.ops.op_handlers.blend([x, x + 1], self.weight, count=x.shape[0])
        low, high = torch.ops.op_handlers.minmax(y)
        return (y - low) / (high - low)


class Handler:
    def __init__(self):
        self.nodes, self.calls, self.initial = [], 0, []

    def ops(self):
        return ["op_handlers::blend", "op_handlers::minmax"]

    def compile(self, node, initial_values, device):
        self.nodes.append(node)
        self.initial.append(dict(initial_values))
        arguments = {i.name: i.arg for i in node.inputs}
        if node.target == "op_handlers::minmax":

            def pair(values):
                self.calls += 1
                x = values[arguments["x"].name]
                return [x.amin(), x.amax()]

            return pair

        def one(values):
            self.calls += 1
            xs = [values[r.name] for r in arguments["xs"]]
            count = arguments["count"]
            count = values[count.name] if isinstance(count, Ref) else count or 0
            return [sum(xs) * values[arguments["w"].name] * arguments["alpha"] + count]

        return one


@pytest.fixture(autouse=True)
def clean():
    yield
    op_handlers.reset()


def exported(model, **options):
    return ir.export(model, (torch.randn(3, 4),), target="eager", dynamic_shapes=({0: "n"},), **options)


def test_class():
    handler, model = op_handlers.register(Handler()), Net()
    program = exported(model, verify=True)
    x = torch.randn(7, 4)
    torch.testing.assert_close(program(x), model(x), rtol=0, atol=0)
    blend_node = handler.nodes[0]
    assert blend_node.inputs[1].arg == Ref("p_weight") and blend_node.inputs[3].arg == Ref("n")
    assert handler.initial[0].keys() == {"p_weight"}
    assert blend_node.metadata["file"].endswith("test_op_handlers.py")
    assert handler.calls >= 4 and len(handler.nodes) == 2


def test_module_and_newest_wins():
    first, model = Handler(), Net()
    op_handlers.register(first)
    module = types.ModuleType("vision")
    module.ops = lambda: ["op_handlers::minmax"]
    module.compile = lambda node, values, device: lambda v: (torch.zeros(()), torch.ones(()))
    op_handlers.register(module)
    assert op_handlers.lookup("op_handlers::minmax") is module
    assert op_handlers.lookup("op_handlers::blend") is first
    assert set(op_handlers.table()) == {"op_handlers::blend", "op_handlers::minmax"}
    x = torch.randn(3, 4)
    torch.testing.assert_close(exported(model)(x), blend([x, x + 1], model.weight, count=3).detach())


def test_reset():
    handler = op_handlers.register(Handler())
    op_handlers.reset()
    assert op_handlers.lookup("op_handlers::blend") is None and not op_handlers.table()
    exported(Net(), verify=True)  # through torch's own kernels again
    assert handler.calls == 0


def test_plugin(tmp_path, monkeypatch):
    source = """
from eager_backend import op_handlers
class Ops:
    compiled = 0
    def ops(self): return ["op_handlers::minmax"]
    def compile(self, node, initial_values, device):
        Ops.compiled += 1
        x = node.inputs[0].arg.name
        return lambda values: torch_minmax(values[x])
def torch_minmax(x): return x.amin(), x.amax()
op_handlers.register(Ops())
"""
    (tmp_path / "my_eager_ops.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("IR_PLUGINS", "my_eager_ops")
    exported(Net(), verify=True)
    import my_eager_ops

    assert my_eager_ops.Ops.compiled == 1


def test_what_is_no_handler():
    with pytest.raises(TypeError, match="compile"):
        op_handlers.register(types.SimpleNamespace(ops=lambda: []))
    op_handlers.register(types.SimpleNamespace(ops=lambda: ["op_handlers::minmax"], compile=lambda *a: None))
    with pytest.raises(ir.ExportError, match="cannot be called"):
        exported(Net())


def test_a_class_stands_for_an_instance():
    class Relu:
        def ops(self):
            return ["aten::relu"]

        def compile(self, node, initial_values, device):
            (x,) = (i.arg.name for i in node.inputs)
            return lambda values: values[x] * 0 + 7

    assert isinstance(op_handlers.register(Relu), Relu) and isinstance(op_handlers.lookup("aten::relu"), Relu)
    program = ir.export(lambda x: x.relu(), torch.ones(2), target="eager")
    assert program(torch.ones(2)).tolist() == [7, 7]
