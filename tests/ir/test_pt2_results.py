"""The check of a .pt2 file's results takes no more memory or time than the file is long."""

import subprocess
import sys

import pytest
import torch

import ir
from tests.ir import pt2_files


class Called(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *args):
        return self.call(*args)


def changed(path, call, args, edit, **more):
    """The program of a function saved with its first node changed."""
    torch.export.save(torch.export.export(Called(call), args, **more), path)
    return pt2_files.write(path, pt2_files.edited(pt2_files.parts(path), pt2_files.MODEL, edit))


def node(document, name):
    return next(n for n in document["graph_module"]["graph"]["nodes"] if name in n["target"])


def given(node, name, value):
    """Give a node another value for an argument."""
    node["inputs"] = [i for i in node["inputs"] if i["name"] != name]
    node["inputs"].append({"name": name, "arg": value, "kind": 2 if name == "device" else 1})


LIMITED = """
import resource, sys, ir
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
try:
    ir.capture(sys.argv[1])
except ir.ExportError as error:
    print(error)
"""


def refused(path):
    """What is said of a file with little memory and time."""
    run = subprocess.run([sys.executable, "-c", LIMITED, path], capture_output=True, text=True, timeout=60, check=True)
    return run.stdout


@pytest.mark.parametrize("device", [{"as_none": True}, {"as_device": {"type": "cpu", "index": None}}, None])
def test_a_large_tensor_that_a_node_makes_has_no_memory(tmp_path, device):
    def edit(document):
        made = node(document, "full")
        given(made, "size", {"as_ints": [3, 1 << 40]})
        given(made, "device", device)
        if device is None:
            made["inputs"].pop()

    path = changed(tmp_path / "m.pt2", lambda x: x + torch.full((3,), 2.0), (torch.ones(3),), edit)
    assert "the node full gives float32[3, 1099511627776], the file says float32[3]" in refused(path)


def test_no_device_is_as_good_as_none(tmp_path):
    path = changed(tmp_path / "m.pt2", lambda x: x + torch.full((3,), 2.0), (torch.ones(3),),
                   lambda d: given(node(d, "full"), "device", {"as_none": True}))  # fmt: skip
    assert [n.op for n in ir.capture(path).nodes][-1] == "aten::add"


CUTS = {
    "sections": (lambda x: torch.ops.aten.tensor_split.sections(x, 3)[0], "tensor_split", {}),
    "rows": (lambda x: torch.ops.aten.vsplit.int(x, 3)[0], "vsplit", {}),
    "chunks": (lambda x: torch.ops.aten.chunk(x[:0], 3)[0], "chunk", {"chunks": {"as_int": 10**9}}),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_tensor_is_cut_into_as_many_as_the_file_says(tmp_path, name):
    call, op, more = CUTS[name]

    def edit(document):
        for argument, value in (more or {"sections": {"as_int": 10**9}}).items():
            given(node(document, f".{op}."), argument, value)

    path = changed(tmp_path / "m.pt2", call, (torch.ones(6, 2),), edit)
    assert f"the node {op} gives 1000000000 results, the file says 3" in refused(path)


LARGE = {
    "unbind": lambda x: x.unbind()[0],
    "split": lambda x: torch.ops.aten.split.Tensor(x, 1)[0],
    "unsafe_chunk": lambda x: torch.ops.aten.unsafe_chunk(x, 3)[0],
}


@pytest.mark.parametrize("op", LARGE)
def test_a_large_tensor_is_cut_into_as_many_as_the_file_says(tmp_path, op):
    def edit(document):
        values = document["graph_module"]["graph"]["tensor_values"]
        values[document["graph_module"]["graph"]["inputs"][0]["as_tensor"]["name"]]["sizes"][0] = {"as_int": 10**9}
        if op == "unsafe_chunk":
            given(node(document, "chunk"), "chunks", {"as_int": 10**9})

    path = changed(tmp_path / "m.pt2", LARGE[op], (torch.ones(3, 2),), edit)
    assert "gives 1000000000 results, the file says 3" in refused(path)


def test_cuts_are_read(tmp_path):
    def call(x):
        parts = [*x.unbind(1), *x.split(4), *x.chunk(5), *x[:0].chunk(4), *x.tensor_split(3), *x.hsplit(2)]
        return sum(p.sum() for p in (*parts, *torch.gradient(x), *x.dsplit([1, 2]), *x.split([3, 4])))

    torch.export.save(torch.export.export(Called(call), (torch.randn(7, 4, 3),)), tmp_path / "m.pt2")
    assert ir.capture(tmp_path / "m.pt2").nodes


@pytest.mark.parametrize("target", ["pow", "lshift"])
def test_a_power_of_two_sizes_is_not_computed(tmp_path, target):
    """The hints are the file's; literal numbers are refused where the node is read."""

    def edit(document):
        node(document, "_operator.mul")["target"] = f"_operator.{target}"
        pending = [document]
        while pending:
            found = pending.pop()
            if isinstance(found, dict) and found.get("hint") in ({"as_int": 5}, {"as_int": 6}):
                found["hint"] = {"as_int": 10**9}
            pending += found.values() if isinstance(found, dict) else found if isinstance(found, list) else []

    def call(x, y):
        return x.new_zeros(x.shape[0] * y.shape[0])

    shapes = {"args": ({0: torch.export.Dim("n", max=2**62)}, {0: torch.export.Dim("m", max=2**62)})}
    path = changed(tmp_path / "m.pt2", call, (torch.ones(5), torch.ones(6)), edit, dynamic_shapes=shapes)
    assert not refused(path)  # and does not take hours: what the size is in the example is not known


PADDED = {"parts": (b"[]," * (2 << 20), "JSON of more than 3000000 parts"),
          "length": (b'"' + b"x" * (65 << 20) + b'",', "JSON of more than 67108864 bytes")}  # fmt: skip


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("record", [pt2_files.MODEL, pt2_files.WEIGHTS, pt2_files.CONSTANTS])
def test_json_that_is_gigabytes_in_python(tmp_path, record, name):
    pad, said = PADDED[name]
    parts = pt2_files.members(tmp_path / "m.pt2")
    text = b'{"pad": [' + pad + b"0], " + parts[record].lstrip()[1:]
    path = pt2_files.write(tmp_path / "m.pt2", {**parts, record: text})
    assert f"m.pt2: the record {record} is {said}, which no program needs" in refused(path)


class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


class Loop(torch.nn.Module):
    def forward(self, x):
        return torch.ops.higher_order.while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (x,), ())


@pytest.mark.parametrize("model", [Branch(), Loop()], ids=["cond", "while_loop"])
def test_a_condition_of_several_elements_is_refused(tmp_path, model):
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(model, (torch.ones(3),)), path)
    assert ir.capture(path)

    def edit(document):
        for graph in [document["graph_module"]["graph"], *subgraphs(document)]:
            for made in graph["nodes"]:
                if made["target"].split(".")[-2:-1] in (["gt"], ["lt"]):
                    made["inputs"][0]["arg"] = {"as_tensor": {"name": graph["inputs"][0]["as_tensor"]["name"]}}
                    name = made["outputs"][0]["as_tensor"]["name"]
                    graph["tensor_values"][name]["sizes"] = [{"as_int": 3}]
                    graph["tensor_values"][name]["strides"] = [{"as_int": 1}]

    pt2_files.write(path, pt2_files.edited(pt2_files.parts(path), pt2_files.MODEL, edit))
    with pytest.raises(ir.CaptureError, match="for one truth value"):
        ir.capture(path)


def subgraphs(document):
    for made in document["graph_module"]["graph"]["nodes"]:
        for given_ in made["inputs"]:
            if "as_graph" in given_["arg"]:
                yield given_["arg"]["as_graph"]["graph"]


def of_old_states(document):
    """The states that an LSTM leaves, described as torch before 2.13 does."""
    graph = document["graph_module"]["graph"]
    for state in node(document, "lstm")["outputs"][1:]:
        told = graph["tensor_values"][state["as_tensor"]["name"]]
        if len(told["sizes"]) == 3:  # the torch that runs this does not
            told["sizes"].insert(1, {"as_int": 1})
            told["strides"].insert(1, dict(told["strides"][0]))


def test_states_of_an_lstm_that_older_torch_describes_with_an_axis_too_many(tmp_path):
    x = torch.randn(3, 4, 4)
    net = torch.nn.LSTM(4, 5, 2).eval()
    path = changed(tmp_path / "m.pt2", net, (x,), of_old_states)
    graph = ir.capture(path)
    assert [v.type.shape for v in graph.outputs] == [(3, 4, 5), (2, 4, 5), (2, 4, 5)]
    with torch.no_grad():
        expected = net(x)
    for given, wanted in zip(graph.context.reference(graph, (x,), {}), (expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(torch.as_tensor(given), wanted)
    path = changed(tmp_path / "last.pt2", lambda x: net(x)[1][0][-1], (x,), of_old_states)
    with pytest.raises(
        ir.CaptureError, match=r"of select, which is computed of them: save the program with torch 2\.13"
    ):
        ir.capture(path)
