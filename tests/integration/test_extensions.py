"""C++ extensions, compiled here: pybind functions inside autograd.Function, and ops of TORCH_LIBRARY."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import ir

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler on this machine")
SOURCES = Path(__file__).parent / "extensions"
X = torch.rand(4, 3)
ROWS = ({0: "n"}, {0: "n"})


def compiled(name, source, folder):
    """Built once a run: processes of one run wait for each other, in torch's own folder also for a build long dead."""
    from torch.utils.cpp_extension import load

    base = folder.getbasetemp()
    build = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    build.mkdir(exist_ok=True)
    return load(
        name, [str(SOURCES / source)], extra_cflags=["-O0", "-DAT_PER_OPERATOR_HEADERS"], build_directory=str(build)
    )


@pytest.fixture(scope="module")
def my_lib(tmp_path_factory):
    return compiled("my_lib", "my_add.cpp", tmp_path_factory)


@pytest.fixture(scope="module")
def opaque(tmp_path_factory):
    lib = compiled("ir_tests_opaque", "opaque.cpp", tmp_path_factory)
    torch.library.register_fake("cpp_ext::add.Tensor", lambda a, b: torch.empty_like(a))
    torch.library.register_fake("cpp_ext::add.Scalar", lambda a, b: torch.empty_like(a))
    torch.library.register_fake("cpp_ext::accumulate", lambda state, x: None)

    @torch.library.register_fake("cpp_ext::split")
    def _(x, mode="plain", sizes=None):
        n = x.shape[0] // 2 if sizes is None else sizes[0]
        return x.new_empty(n, *x.shape[1:]), x.new_empty(x.shape[0] - n, *x.shape[1:])

    return lib


# -- the article's example ---------------------------------------------------------------------------------------------


def test_my_add(my_lib, tmp_path):
    class MyAddFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return my_lib.my_add(a, b)

        @staticmethod
        def symbolic(g, a, b):
            two = g.op("Constant", value_t=torch.tensor([2]))
            a = g.op("Mul", a, two)
            return g.op("Add", a, b)

    my_add = MyAddFunction.apply

    class MyAdd(torch.nn.Module):
        def __init__(self):
            super().__init__()

        def forward(self, a, b):
            return my_add(a, b)

    model = MyAdd()
    input = torch.rand(1, 3, 10, 10)
    program = ir.export(model, (input, input), path=tmp_path / "my_add.onnx")
    torch_output = model(input, input).detach().numpy()

    sess = onnxruntime.InferenceSession(tmp_path / "my_add.onnx")
    ort_output = sess.run(None, {"a": input.numpy(), "b": input.numpy()})[0]

    assert np.allclose(torch_output, ort_output)
    assert [n.op_type for n in program.artifact.graph] == ["Mul", "Add"]
    other = torch.rand(1, 3, 10, 10)
    assert torch.allclose(program(input, other), model(input, other))
    for target in ("nnef", "eager"):  # fake tensors can enter this function, so it has a body
        ir.export(model, (input, other), target=target, verify=True)


# -- a function that fake tensors cannot enter -------------------------------------------------------------------------


def test_a_pybind_function_that_reads_memory(opaque):
    class Axpy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b, scale):
            return opaque.axpy(a, b, scale)

        @staticmethod
        def symbolic(g, a, b, scale):
            return g.op("Add", g.op("Mul", a, torch.tensor(scale)), b)

    class Model(nn.Module):
        def forward(self, a, b):
            return Axpy.apply(a, b, 3.0) * 2

    args = torch.rand(4, 3), torch.rand(4, 3)
    with pytest.raises(ir.CaptureError, match=r"op_from_function\(Axpy, fake="):
        ir.export(Model(), args)
    op = ir.op_from_function(Axpy, schema="(Tensor a, Tensor b, float scale) -> Tensor", fake=lambda a, b, scale: a)
    for target in ("onnx", "eager"):
        program = ir.export(Model(), args, target=target, dynamic_shapes=ROWS, verify=True)
        program.verify((torch.rand(7, 3), torch.rand(7, 3)))
    with pytest.raises(ir.UnsupportedOpsError, match=r"Axpy.*\n(.*\n)*.*def _\(a, b, scale\): \.\.\."):
        ir.export(Model(), args, target="nnef")
    op.body(lambda a, b, scale: a * scale + b)
    ir.export(Model(), args, target="nnef", dynamic_shapes=ROWS, verify=True)


# -- TORCH_LIBRARY -----------------------------------------------------------------------------------------------------


class Ops(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x, y):
        z = torch.ops.cpp_ext.add(torch.ops.cpp_ext.add(x, y), 2.5)
        low, high = torch.ops.cpp_ext.split(z, "negative", [1])
        torch.ops.cpp_ext.accumulate(self.state, high.sum(0))
        return low, high, self.state * 2


ARGS = torch.rand(4, 3), torch.rand(4, 3)


def test_every_op_is_a_node(opaque):
    graph = ir.check(ir.capture(Ops(), ARGS, dynamic_shapes=ROWS))
    nodes = [n for n in graph.nodes if n.op.startswith("cpp_ext")]
    assert [n.overload for n in nodes] == [
        "cpp_ext::add.Tensor", "cpp_ext::add.Scalar", "cpp_ext::split", "cpp_ext::accumulate",
    ]  # fmt: skip
    assert nodes[2].args == {"x": nodes[1].outputs[0], "mode": "negative", "sizes": (1,)}
    assert list(graph.updates) == ["state"] and graph.updates["state"] is nodes[3].outputs[0]


def test_eager_runs_the_kernels(opaque):
    model = Ops()
    ir.export(model, ARGS, target="eager", dynamic_shapes=ROWS, verify=True)
    assert not model.state.any()


def test_handlers_for_an_op_and_for_one_overload(opaque):
    def add(h, a, b):
        return h.emit("Add", a, b)

    def split(h, x, mode, sizes):
        x = h.emit("Neg", x) if mode == "negative" else x
        rows = x.type.shape[0]
        return h.split(x, [sizes[0], rows - sizes[0]], 0)

    def accumulate(h, state, x):  # an op that writes returns the new content
        return h.emit("Add", state, x)

    handlers = {"cpp_ext::add": add, "cpp_ext::split": split, "cpp_ext::accumulate": accumulate}
    ir.export(Ops(), ARGS, handlers=handlers, dynamic_shapes=ROWS, verify=True)
    program = ir.export(
        Ops(), ARGS, handlers=handlers | {"cpp_ext::add.Scalar": lambda h, a, b: h.emit("Sub", a, -b)}, verify=True
    )
    assert [n.op_type for n in program.artifact.graph][:2] == ["Add", "Sub"]


def test_bodies_for_every_target(opaque):
    with pytest.raises(ir.UnsupportedOpsError) as error:
        ir.export(Ops(), ARGS, target="nnef")
    assert [m.op for m in error.value.missing] == [
        "cpp_ext::add.Tensor", "cpp_ext::add.Scalar", "cpp_ext::split", "cpp_ext::accumulate",
    ]  # fmt: skip
    ir.op("cpp_ext::add").body(lambda a, b: a + b)
    ir.op("cpp_ext::accumulate").body(lambda state, x: state.add_(x))

    @ir.op("cpp_ext::split").body
    def _(x, mode, sizes):
        y = -x if mode == "negative" else x
        return y[: sizes[0]], y[sizes[0] :]

    for target in ("onnx", "nnef", "eager"):
        program = ir.export(Ops(), ARGS, target=target, dynamic_shapes=ROWS, verify=True)
        if target != "eager":  # which keeps what it wrote to its buffers, as the module does
            program.verify((torch.rand(6, 3), torch.rand(6, 3)))
