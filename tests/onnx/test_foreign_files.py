"""Files that would end or hold up the process that opens them are refused in a sentence, and others are not."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import ir
import onnx_backend
from ir.cli import arrays
from ir.cli.wrong import WrongCall
from ir.opening import open_artifact
from onnx_backend.runtime import foreign

LEAST, node = -(2**63), helper.make_node
OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("loc", 1)]
FOUR = TensorProto.INT64, [4]


def write(path, nodes, constants=None, functions=(), kind=FOUR):
    """A file whose graph makes y of x."""
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    values = [[helper.make_tensor_value_info(n, kind[0], s)] for n, s in (("x", kind[1]), ("y", None))]
    graph = helper.make_graph(nodes, "g", *values, held)
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=8, functions=list(functions))
    path.write_bytes(model.SerializeToString())


def function(name, inputs, outputs, nodes):
    return helper.make_function("loc", name, inputs, outputs, nodes, OPSETS)


ADD = node("Add", ["x", "c"], ["y"])
DIV = node("Div", ["a", "b"], ["c"])
VALUES = {"a": np.int64([LEAST]), "b": np.int64([-1])}
CALL = function("F", ["p", "q"], ["r"], [node("Div", ["p", "q"], ["r"])])
BRANCH = helper.make_graph([DIV], "b", [], [helper.make_tensor_value_info("c", TensorProto.INT64, None)])
ENDS = {
    "div": ([DIV, ADD], VALUES),
    "mod": ([node("Mod", ["a", "b"], ["c"]), ADD], VALUES),
    "32 bits": ([node("Div", ["i", "j"], ["k"]), node("Cast", ["k"], ["c"], to=7), ADD],
                {"i": np.int32([-(2**31)]), "j": np.int32([-1])}),
    "a constant": ([node("Constant", [], ["b"], value_ints=[-1]), DIV, ADD], {"a": VALUES["a"]}),
    "a cast": ([node("Cast", ["i"], ["b"], to=7), DIV, ADD], {"a": VALUES["a"], "i": np.int32([-1])}),
    "another name": ([node("Identity", ["z"], ["b"]), DIV, ADD], {"a": VALUES["a"], "z": np.int64(-1)}),
    "computed": ([node("Sub", ["a", "z"], ["d"]), node("Div", ["d", "b"], ["c"]), ADD], VALUES | {"z": np.int64([0])}),
    "computed of sizes": ([node("Shape", ["x"], ["s"]), node("Sub", ["z", "s"], ["b"]), DIV, ADD],
                          {"a": VALUES["a"], "z": np.int64([3])}),
    "a branch": ([node("If", ["t"], ["c"], then_branch=BRANCH, else_branch=BRANCH), ADD],
                 VALUES | {"t": np.bool_(True)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_the_least_integer_by_minus_one(name, tmp_path):
    write(tmp_path / "m.onnx", *ENDS[name])
    with pytest.raises(ir.RefusedError, match=r"least integer by -1|while it computes the constants"):
        open_artifact(tmp_path / "m.onnx")


SIGNAL = np.ones((1, 16, 1), "f4")
KERNELS = {
    "no frames": ([node("STFT", ["s", "one", "", "none"], ["c"])], {"none": np.int64(0)}),
    "no window": ([node("STFT", ["s", "one", "none"], ["c"])], {"none": np.ones(0, "f4")}),
    "no batch": ([node("GatherND", ["s", "index"], ["c"], batch_dims=-5)], {"index": np.int64([[0]])}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_ends_the_process(name, tmp_path):
    nodes, values = KERNELS[name]
    held = values | {"s": SIGNAL, "one": np.int64(1)}
    write(tmp_path / "m.onnx", [*nodes, node("ReduceSum", ["c"], ["d"]), node("Add", ["x", "d"], ["y"])], held,
          kind=(TensorProto.FLOAT, [1]))  # fmt: skip
    with pytest.raises(ir.RefusedError, match="ends the process while it computes the constants"):
        open_artifact(tmp_path / "m.onnx")


def test_a_kernel_that_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "_SECONDS", 0)
    write(tmp_path / "m.onnx", [node("MatMul", ["a", "b"], ["c"]), ADD], VALUES)
    with pytest.raises(ir.RefusedError, match="computes the constants of this file for more than 0 s"):
        open_artifact(tmp_path / "m.onnx")


def test_what_lies_beside_a_file_is_not_run(tmp_path, monkeypatch):
    """The other process that opens it first is started in the same folder."""
    write(tmp_path / "m.onnx", [node("MatMul", ["a", "b"], ["c"]), ADD], VALUES)
    (tmp_path / "json.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    assert open_artifact(Path("m.onnx")) and not (tmp_path / "ran").exists()


def test_weights_are_those_that_were_written(tmp_path):
    ir.export(
        torch.nn.Linear(300, 300), (torch.ones(1, 300),), target="onnx", path=tmp_path / "m.onnx", external_data=True
    )
    assert open_artifact(tmp_path / "m.onnx")
    data = bytearray((tmp_path / "m.onnx.data").read_bytes())
    data[3] ^= 64
    (tmp_path / "m.onnx.data").write_bytes(data)
    with pytest.raises(ir.ExportError, match=r"its data file m\.onnx\.data holds other bytes than were written"):
        open_artifact(tmp_path / "m.onnx")


@pytest.mark.parametrize("shape", [[1 << 30, 1 << 20], [1 << 30] * 3], ids=["large", "beyond integers"])
def test_an_input_that_no_memory_holds(shape, tmp_path):
    write(tmp_path / "m.onnx", [node("Identity", ["x"], ["y"])], kind=(TensorProto.FLOAT, shape))
    with pytest.raises(WrongCall, match=r"--input x: .* cannot be made .*give sizes with --size"):
        arrays.fitting(open_artifact(tmp_path / "m.onnx"), {}, {}, 0)


def test_what_is_no_model_has_no_data_files_to_check(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 9)
    with pytest.raises(ir.ExportError, match="holds no ONNX model"):
        onnx_backend.check_data(tmp_path / "m.onnx")


@pytest.mark.parametrize("size", [[1 << 20, 1 << 20], [1 << 62] * 40], ids=["large", "beyond floats"])
@pytest.mark.parametrize(("op", "operands"), [("Expand", ["a", "size"]), ("ConstantOfShape", ["size"])])
def test_a_constant_of_more_than_memory_holds(op, operands, size, tmp_path):
    made = [node(op, operands, ["e"]), node("Cast", ["e"], ["f"], to=7), node("ReduceSum", ["f"], ["c"]), ADD]
    write(tmp_path / "m.onnx", made, VALUES | {"size": np.int64(size)})
    with pytest.raises(ir.RefusedError, match=f"{op} .* makes more than 268435456 constant elements"):
        open_artifact(tmp_path / "m.onnx")


def test_in_a_function(tmp_path):
    write(tmp_path / "m.onnx", [node("F", ["a", "b"], ["c"], domain="loc"), ADD], VALUES, [CALL])
    with pytest.raises(ir.RefusedError, match=r"Div .* divides the least integer by -1"):
        open_artifact(tmp_path / "m.onnx")


def test_no_groups(tmp_path):
    call = node("ConvTranspose", ["x", "w"], ["y"], group=0)
    write(tmp_path / "m.onnx", [call], {"w": np.zeros((4, 4, 1, 1), "f4")}, kind=(TensorProto.FLOAT, [1, 4, 8, 8]))
    with pytest.raises(ir.RefusedError, match=r"ConvTranspose .* has no groups"):
        open_artifact(tmp_path / "m.onnx")


@pytest.mark.parametrize("kind", ["twice", "deep", "itself"])
def test_calls_without_bound(kind, tmp_path):
    count, twice = {"twice": 30, "deep": 20000, "itself": 1}[kind], kind == "twice"
    made = [
        function(f"F{i}", ["p"], ["q"], [
            node(f"F{i + (kind != 'itself')}", ["p"], ["t" if twice else "q"], domain="loc"),
            *[node(f"F{i + 1}", ["t"], ["q"], domain="loc")] * twice,
        ])
        for i in range(count)
    ]  # fmt: skip
    last = function(f"F{count}", ["p"], ["q"], [node("Neg", ["p"], ["q"])])
    write(tmp_path / "m.onnx", [node("F0", ["x"], ["y"], domain="loc")], functions=[*made, last])
    start = time.monotonic()
    with pytest.raises(ir.RefusedError, match="calls itself" if kind == "itself" else "functions call each other"):
        open_artifact(tmp_path / "m.onnx")
    assert time.monotonic() - start < 10


SOUND = {
    "no least": ([DIV, ADD], {"a": np.int64([7]), "b": np.int64([-1])}),
    "no minus one": ([DIV, ADD], VALUES | {"b": np.int64([2])}),
    "not together": ([DIV, ADD], {"a": np.int64([LEAST, 5]), "b": np.int64([2, -1])}),
    "sizes": ([node("Shape", ["x"], ["a"]), DIV, ADD], {"b": np.int64([2])}),
    "weights in few bits": (
        [node("DequantizeLinear", ["q", "s"], ["w"]), node("Cast", ["w"], ["c"], to=7), ADD],
        {"q": np.int8([1, 2]), "s": np.float32(1)},
    ),
    "sizes by sizes": ([node("Shape", ["x"], ["a"]), node("Size", ["x"], ["b"]), DIV, ADD], {}),
}


@pytest.mark.parametrize("name", SOUND)
def test_others_are_opened_without_a_process(name, tmp_path, monkeypatch):
    monkeypatch.setattr(foreign.subprocess, "run", None)
    nodes, values = SOUND[name]
    values = {k: np.resize(v, 1) if name == "sizes by sizes" else v for k, v in values.items()}
    shape = TensorProto.INT64, [2]
    write(tmp_path / "m.onnx", nodes, values, kind=shape)
    opened = open_artifact(tmp_path / "m.onnx")
    assert len(opened(torch.zeros(2, dtype=torch.int64))) == 1


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).softmax(-1) / x.std() + x.shape[0] // 2
        return x // 0.3


@pytest.mark.parametrize(("functions", "dynamic"), itertools.product([False, True], [False, True]))
def test_our_own_files_need_no_process(functions, dynamic, tmp_path, monkeypatch):
    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    path, x = tmp_path / "m.onnx", torch.randn(6, 8)
    program = ir.export(Layers(), (x,), target="onnx", path=path, functions=functions, dynamic_shapes=shapes)
    monkeypatch.setattr(foreign.subprocess, "run", None)
    torch.testing.assert_close(open_artifact(path)(x)[0], program(x))


def test_a_file_that_is_none_is_onnxruntimes_to_tell(tmp_path):
    path = Path(tmp_path / "m.onnx")
    for content in (b"", b"\xff" * 50, onnx.ModelProto().SerializeToString(), b"\x3a\x05\x0a\x03\xff\xff\xff"):
        path.write_bytes(content)
        with pytest.raises(ir.RuntimeFailure, match="onnxruntime does not load"):
            open_artifact(path)
