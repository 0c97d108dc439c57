"""The weights of a .pt2 file: they are what their descriptions say, and no more than the file holds."""

import pytest
import torch

import ir
from ir.errors import CaptureError
from ir.importer.pt2 import pickles
from tests.ir import pt2_files

OUT_OF_RANGE = torch.sparse_coo_tensor(torch.tensor([[1 << 40]]), torch.ones(1), (8,), check_invariants=False)
NO_WEIGHTS = {
    "indices out of range": (OUT_OF_RANGE, "refuses it"),
    "sparse": (torch.ones(8).to_sparse(), r"the pickled tensor bias is no plain one \(torch.sparse_coo\)"),
    "no data": (torch.ones(8, device="meta"), r"no plain one \(without data\)"),
    "quantised": (torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.qint8), r"no plain one \(quantised\)"),
    "another shape": (torch.ones(9), "another one than its description"),
    "another type": (torch.ones(8).double(), "another one than its description"),
    "repeated": (torch.zeros(1).expand(8), "another one than its description"),
    "other strides": (torch.ones(16)[::2], "another one than its description"),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return pt2_files.members(tmp_path_factory.mktemp("pt2") / "whole.pt2")


def pickled(parts, tensor):
    """The members with the buffer in a pickle, as torch.export.save writes those of other classes."""
    changed = pt2_files.edited(
        parts, pt2_files.WEIGHTS, lambda d: d["config"]["bias"].update(use_pickle=True, path_name="pickled")
    )
    return {**changed, "data/weights/pickled": pt2_files.saved(tensor)}


@pytest.mark.parametrize("name", NO_WEIGHTS)
def test_a_pickled_weight_is_what_its_description_says(parts, tmp_path, name):
    tensor, said = NO_WEIGHTS[name]
    with pytest.raises(CaptureError, match=said):
        ir.capture(pt2_files.write(tmp_path / "m.pt2", pickled(parts, tensor)))


def test_a_pickled_weight_is_read(parts, tmp_path):
    graph = ir.capture(pt2_files.write(tmp_path / "m.pt2", pickled(parts, torch.full((8,), 5.0))))
    assert [w.tensor.tolist() for w in graph.weights.values() if w.name == "bias"] == [[5.0] * 8]


class Marked(torch.Tensor):
    """A class of tensors that torch.export.save writes as a pickle."""


@pytest.mark.parametrize("tensor", [torch.ones(3, 4).t(), torch.ones(1, 4).expand(3, 4), torch.ones(2, 2).bool()])
def test_a_weight_of_a_class_that_the_caller_lets_in(tmp_path, tensor):
    model = torch.nn.Module()
    model.register_buffer("b", tensor.as_subclass(Marked))
    model.forward = lambda x: x + model.b
    torch.export.save(torch.export.export(model, (torch.ones(tensor.shape),)), tmp_path / "m.pt2")
    with torch.serialization.safe_globals([Marked]):
        (weight,) = ir.capture(tmp_path / "m.pt2").weights.values()
    assert type(weight.tensor) is Marked and torch.equal(weight.tensor.as_subclass(torch.Tensor), tensor)


def test_a_weight_of_another_layout_than_the_graph_says(parts, tmp_path):
    def edit(document):
        (name,) = (i["buffer"]["arg"]["name"] for i in document["graph_module"]["signature"]["input_specs"]
                   if "buffer" in i)  # fmt: skip
        document["graph_module"]["graph"]["tensor_values"][name]["layout"] = 1

    changed = pt2_files.edited(parts, pt2_files.MODEL, edit)
    with pytest.raises(CaptureError, match=r"the graph was made for float32\[8\] \(sparse_coo\)"):
        ir.capture(pt2_files.write(tmp_path / "m.pt2", changed))


@pytest.mark.parametrize(
    "other", [torch.ones(4, 8).to_sparse(), torch.ones(4, 8, device="meta")], ids=["sparse", "meta"]
)
def test_example_inputs_of_another_kind(parts, tmp_path, other):
    data = pt2_files.saved(((other,), {}))
    path = pt2_files.write(tmp_path / "m.pt2", {**parts, pt2_files.SAMPLES: data})
    with pytest.raises(CaptureError, match="not those of its graph"):
        ir.capture(path).context.example()


def test_indices_of_sparse_tensors_are_checked():
    rows = torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([1 << 40]), torch.ones(1), (1, 4),
                                   check_invariants=False)  # fmt: skip
    for wrong in (OUT_OF_RANGE, rows):
        with pytest.raises(CaptureError, match="refuses it"):
            pickles.load(pt2_files.saved(wrong))


def strided(parts, name, sizes, strides):
    """The members with a weight of other sizes and strides, over the bytes that it has."""

    def edit(document):
        described = [p["tensor_meta"] for n, p in document.get("config", {}).items() if n == name]
        if "graph_module" in document:
            (node,) = (v["arg"]["name"] for i in document["graph_module"]["signature"]["input_specs"]
                       for v in i.values() if v.get("buffer_name") == name)  # fmt: skip
            described = [document["graph_module"]["graph"]["tensor_values"][node]]
        for meta in described:
            meta.update(sizes=[{"as_int": n} for n in sizes], strides=[{"as_int": n} for n in strides])

    return pt2_files.edited(pt2_files.edited(parts, pt2_files.WEIGHTS, edit), pt2_files.MODEL, edit)


@pytest.mark.parametrize(("sizes", "strides"), [((1 << 27, 8), (0, 1)), ((1 << 40, 1), (0, 0))])
def test_a_weight_that_repeats_few_bytes_without_end(parts, tmp_path, sizes, strides):
    with pytest.raises(CaptureError, match=r"the tensor bias .* repeat the .* bytes of the file too often"):
        ir.capture(pt2_files.write(tmp_path / "m.pt2", strided(parts, "bias", sizes, strides)))


def test_many_weights_that_repeat_few_bytes(parts, tmp_path):
    def edit(document):
        one = document["config"]["bias"]
        for i in range(40):
            meta = {**one["tensor_meta"], "sizes": [{"as_int": 1 << 21}, {"as_int": 8 - i % 8}], "strides": [
                {"as_int": 0}, {"as_int": 1}], "storage_offset": {"as_int": 0}}  # fmt: skip
            document["config"][f"more{i}"] = {**one, "tensor_meta": meta}

    changed = pt2_files.edited(parts, pt2_files.WEIGHTS, edit)
    with pytest.raises(CaptureError, match=r"the tensor more.* too often"):
        ir.capture(pt2_files.write(tmp_path / "m.pt2", changed))


def test_weights_that_were_expanded(tmp_path):
    """torch.export.save writes the bytes once, with strides of 0 or such that rows overlap."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.arange(4.0).expand(300, 4))
            self.register_buffer("windows", torch.arange(303.0).as_strided((300, 4), (1, 1)))

        def forward(self, x):
            return x + self.rows * self.windows

    model = Model()
    torch.export.save(torch.export.export(model, (torch.ones(4),)), tmp_path / "m.pt2")
    found = {w.name: w.tensor for w in ir.capture(tmp_path / "m.pt2").weights.values()}
    assert torch.equal(found["rows"], model.rows) and torch.equal(found["windows"], model.windows)


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x, chosen):
        return torch.where(self.mask & chosen, x, -x)


def test_truth_values_that_are_neither_0_nor_1(tmp_path):
    args = (torch.ones(4), torch.tensor([True, True, False, True]))
    torch.export.save(torch.export.export(Masked(), args), tmp_path / "m.pt2")
    parts = pt2_files.parts(tmp_path / "m.pt2")
    weight = "data/weights/weight_0"
    assert parts[weight][:4] == b"\1\0\1\1"
    path = pt2_files.write(tmp_path / "m.pt2", {**parts, weight: b"\1\0\x80\1" + parts[weight][4:]})
    with pytest.raises(CaptureError, match="the tensor mask has truth values that are neither 0 nor 1"):
        ir.capture(path)
    data = pt2_files.saved(((args[0], torch.tensor([1, 1, 0, 2], dtype=torch.uint8).view(torch.bool)), {}))
    path = pt2_files.write(tmp_path / "m.pt2", {**parts, pt2_files.SAMPLES: data})
    with pytest.raises(CaptureError, match="its example inputs have truth values"):
        ir.capture(path).context.example()
