"""The reader of .pt2 files gives what the live program gives, maps its weights, and checks what it reads."""

import collections
import json
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
import torch.utils._pytree as pytree

import ir
from ir.errors import CaptureError
from ir.importer.pt2.consistency import numbers_for
from ir.importer.pt2.expressions import Size, torch_value
from ir.importer.pt2.trees import read_tree
from tests.cases import FAMILIES, TRACED
from tests.ir import pt2_files

SLICE = [c for family in sorted(FAMILIES) for c in FAMILIES[family][::12]]


def text(graph):
    """Without the conditions on sizes, which a file has more of."""
    return [line for line in str(graph).splitlines() if "_assert_scalar" not in line]


@pytest.mark.parametrize("case", SLICE, ids=lambda c: c.name)
def test_a_file_gives_the_live_graph(case, tmp_path):
    path = tmp_path / "case.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        live = ir.capture(case.module(), case.args(TRACED), dynamic_shapes=case.dynamic_shapes)
    try:
        torch.export.save(live.context.program, path)
    except Exception as error:
        pytest.skip(f"torch.export.save: {type(error).__name__}")
    read = ir.check(ir.capture(path, dynamic_shapes=case.dynamic_shapes))
    assert text(read) == text(live)
    assert read.output_names == live.output_names and list(read.updates) == list(live.updates)
    assert {n: r for n, r in read.symbols.items() if n in live.symbols} == live.symbols
    for (_, ours), (_, theirs) in zip(read.weights.items(), live.weights.items(), strict=True):
        assert ours.name == theirs.name and ours.tensor.stride() == theirs.tensor.stride()
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def test_numbers_that_json_has_no_word_for(tmp_path):
    def model(x):
        return x.masked_fill(x > 1, -torch.inf).masked_fill(x > 2, torch.inf).masked_fill(x > 3, torch.nan)

    class Filled(torch.nn.Module):
        forward = staticmethod(model)

    path = tmp_path / "numbers.pt2"
    torch.export.save(torch.export.export(Filled(), (torch.randn(3),)), path)
    values = [n.args["value"] for n in ir.capture(path).nodes if n.op == "aten::masked_fill"]
    assert list(map(str, values)) == ["-inf", "inf", "nan"]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(6, 4))
        self.register_buffer("part", self.table.detach()[1:3])

    def forward(self, x):
        return {"logits": x @ self.table.t(), "part": self.part + 1}


def saved(model, *args, path):
    torch.export.save(torch.export.export(model, args), path)
    return path


def test_weights_are_mapped_and_shared(tmp_path):
    path = saved(Tied(), torch.randn(2, 4), path=tmp_path / "m.pt2")
    by_name = {w.name: w.tensor for w in ir.capture(path).weights.values()}
    assert torch.equal(by_name["part"], by_name["table"][1:3])
    assert by_name["part"].untyped_storage().data_ptr() == by_name["table"].untyped_storage().data_ptr()
    maps = Path("/proc/self/maps").read_text() if sys.platform == "linux" else str(path)
    assert str(path) in maps


def test_every_flipped_bit_of_a_weight_is_noticed(tmp_path):
    path = saved(Tied(), torch.randn(2, 4), path=tmp_path / "m.pt2")
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        entry = next(e for e in archive.infolist() if e.filename.endswith("weight_0"))
        start = whole.index(archive.read(entry))
    for bit in range(0, entry.file_size * 8, 7):
        data = bytearray(whole)
        data[start + bit // 8] ^= 1 << bit % 8
        (tmp_path / "flipped.pt2").write_bytes(bytes(data))
        with pytest.raises(CaptureError, match="weight_0 is damaged"):
            ir.capture(tmp_path / "flipped.pt2")


Point = collections.namedtuple("Point", "left right")
pytree._register_namedtuple(Point, serialized_type_name="tests.Point")


@pytest.mark.parametrize("known", [True, False])
def test_classes_of_the_results(tmp_path, known):
    """One that this process does not know comes back as what it holds; names and order are the file's."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return Point(x + 1, {"b": x * 2, "a": None})

    path = saved(Model(), torch.ones(2), path=tmp_path / "m.pt2")
    if not known:
        with zipfile.ZipFile(path) as archive:
            parts = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
        data = parts[pt2_files.MODEL].replace(b"tests.Point", b"elsewhere.Point")
        path = pt2_files.write(tmp_path / "n.pt2", {**parts, pt2_files.MODEL: data})
    graph = ir.capture(path)
    assert graph.output_names == ("left", "right_b")
    result = graph.structure.restore([torch.ones(2), torch.zeros(2)])
    assert type(result) is (Point if known else tuple)
    assert list(result[1]) == ["b", "a"] and result[1]["a"] is None


class Held:
    def __init__(self, content):
        self.content = content


pytree.register_pytree_node(
    Held, lambda h: ([h.content], None), lambda parts, _: Held(*parts), serialized_type_name="tests.Held",
    to_dumpable_context=lambda _: "no JSON", from_dumpable_context=lambda _: None,
)  # fmt: skip


def test_a_class_that_writes_its_context_itself(tmp_path):
    """Code of its own would read that; the class becomes what it holds."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return Held(x + 1)

    graph = ir.capture(saved(Model(), torch.ones(2), path=tmp_path / "m.pt2"))
    assert graph.structure.restore([1]) == (1,)


class Counted(torch.nn.Module):
    def forward(self, x):
        return collections.defaultdict(list, {"b": x + 1, "a": x * 2})


def test_a_dict_with_a_default(tmp_path):
    graph = ir.capture(saved(Counted(), torch.ones(2), path=tmp_path / "m.pt2"))
    assert graph.output_names == ("b", "a")
    result = graph.structure.restore([1, 2])
    assert dict(result) == {"b": 1, "a": 2} and result.default_factory is list


def test_a_class_that_is_not_imported(tmp_path):
    """As Hugging Face's outputs are, which register themselves when transformers is imported."""
    path, script = tmp_path / "m.pt2", tmp_path / "make.py"
    script.write_text(
        "import dataclasses, sys, torch\n"
        "@dataclasses.dataclass\n"
        "class Output:\n    hidden: torch.Tensor\n    pooled: torch.Tensor\n"
        "torch.export.register_dataclass(Output, serialized_type_name='elsewhere.Output')\n"
        "class M(torch.nn.Module):\n    def forward(self, x): return Output(x + 1, x * 2)\n"
        "torch.export.save(torch.export.export(M(), (torch.ones(2),)), sys.argv[1])\n"
    )
    subprocess.run([sys.executable, str(script), str(path)], check=True, timeout=120)
    graph = ir.capture(path)
    assert graph.output_names == ("hidden", "pooled")
    assert list(graph.structure.restore([1, 2])) == ["hidden", "pooled"]


def _node(name, change):
    def edit(document):
        nodes = document["graph_module"]["graph"]["nodes"]
        change(next(n for n in nodes if n["target"].startswith(f"torch.ops.aten.{name}.")), document)

    return edit


def _argument(node, name, value):
    found = [i for i in node["inputs"] if i["name"] != name]
    node["inputs"] = [*found, {"name": name, "arg": value, "kind": 1}]


CHANGES = {
    "stride 0": ("conv2d", lambda n, d: _argument(n, "stride", {"as_ints": [0, 0]}), "no kernel can compute"),
    "dilation -1": ("conv2d", lambda n, d: _argument(n, "dilation", {"as_ints": [-1, 1]}), "no kernel can compute"),
    "no weight": ("conv2d", lambda n, d: n["inputs"].pop(1), "without weight"),
    "text": ("conv2d", lambda n, d: _argument(n, "groups", {"as_string": "1"}), "something else"),
    "shape": ("relu", lambda n, d: _size_of(d, "relu", 1, 9), "the file says"),
    "type": ("relu", lambda n, d: d["graph_module"]["graph"]["tensor_values"]["relu"].update(dtype=8), "the file says"),
    "two results": ("relu", lambda n, d: n["outputs"].append(n["outputs"][0]), "gives"),
    "one name twice": (
        "relu",
        lambda n, d: n["outputs"][0]["as_tensor"].update(name="conv2d"),
        "two values have the name conv2d",
    ),
    "operator": ("relu", lambda n, d: n.update(target="torch.ops.aten.sum.default"), "the file says"),
}


def _size_of(document, name, axis, size):
    document["graph_module"]["graph"]["tensor_values"][name]["sizes"][axis] = {"as_int": size}


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_that_contradicts_itself(tmp_path, name):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    path = saved(model, torch.randn(1, 3, 8, 8), path=tmp_path / "m.pt2")
    with zipfile.ZipFile(path) as archive:
        parts = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
    op, change, message = CHANGES[name]
    changed = pt2_files.edited(parts, pt2_files.MODEL, _node(op, change))
    with pytest.raises(CaptureError, match=message):
        ir.capture(pt2_files.write(tmp_path / "n.pt2", changed))


TREES = [{"b": 1, "a": (2, [3])}, collections.OrderedDict(b=1, a=2), collections.deque([1, 2], 3),
         collections.defaultdict(list, {"b": 1, "a": [2]})]  # fmt: skip


@pytest.mark.parametrize("tree", TREES, ids=lambda t: type(t).__name__)
def test_trees_are_read_as_torch_reads_them(tree):
    spec = pytree.tree_structure(tree)
    assert read_tree(pytree.treespec_dumps(spec), {}, results=False) == spec


def test_sizes_in_text():
    s = "Symbol('s0', positive=True, integer=True)"
    assert str(torch_value(Size(f"Add(Mul(Integer(64), {s}), Integer(-3))"))) == "64*s0 - 3"
    assert str(torch_value(Size(f"FloorDiv({s}, Integer(2))"))) == "s0//2"
    assert torch_value(Size("Rational(1, 2)")) == 0.5
    for wrong in ("open('x')", f"{s}.__class__", "Add(" * 500, "10**10", "Integer(1); Integer(2)", "lambda: 1", ""):
        with pytest.raises(CaptureError):
            torch_value(Size(wrong))


def test_a_power_is_refused_before_it_is_computed():
    for power in ("Pow(Integer(2), Integer(10000))", "Pow(Add(Symbol('a'), Symbol('b'), Symbol('c')), Integer(99))"):
        with pytest.raises(CaptureError, match="too large an expression"):
            torch_value(Size(power))


def test_autocast_out_of_a_file(tmp_path):
    """torch traces it anew, from source of its own making: names and texts of the file are held to a grammar."""

    class Cast(torch.nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.nn.functional.gelu(x @ x.t(), approximate="tanh")

    path = saved(Cast(), torch.randn(3, 3), path=tmp_path / "m.pt2")
    graph = ir.capture(path)
    assert [v.name for v in graph.inputs] == ["x"] and str(graph.outputs[0].type) == "bf16[3, 3]"
    with zipfile.ZipFile(path) as archive:
        parts = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
    code = json.dumps(f"tanh' + __import__('os').system('touch {tmp_path / 'p'}') + '").encode()
    parts[pt2_files.MODEL] = parts[pt2_files.MODEL].replace(b'"tanh"', code)
    with pytest.raises(CaptureError, match="no plain one"):
        ir.capture(pt2_files.write(tmp_path / "n.pt2", parts))
    assert not (tmp_path / "p").exists()


Pair = collections.namedtuple("Pair", "first second")


def test_guards_may_name_fields_and_bases(tmp_path):
    class Halves(torch.nn.Module):
        def forward(self, pair):
            return torch.cat([pair.first, pair.second])[: pair.first.shape[0] + 1].reshape(2, -1)

    rows = {0: torch.export.Dim.AUTO}
    pytree._register_namedtuple(Pair, serialized_type_name="tests.Pair")
    args = (Pair(torch.ones(3, 4), torch.ones(5, 4)),)
    program = torch.export.export(Halves(), args, dynamic_shapes=(Pair(rows, rows),))
    program._guards_code.append("L['pair']._base.size()[0] <= 96")
    torch.export.save(program, path := tmp_path / "fields.pt2")
    for known in (True, False):  # without its class a named tuple is a tuple
        if not known:
            pytree._deregister_pytree_node(Pair)
        checks = [str(n.args["self"]) for n in ir.capture(path).nodes if n.op == "aten::_assert_scalar"]
        assert any("s0 + 1" in check for check in checks), checks


@pytest.mark.parametrize(
    ("text", "held"),
    [("{0} == 1 or {0} == {0}", []), ("{0} > 2 and {0} == {0}", ["s0 > 2"]), ("{0} == 1 or {0} != {0}", ["s0 == 1"])],
)
def test_parts_of_a_guard_that_are_known(text, held, tmp_path):
    rows = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),), dynamic_shapes=(rows,))
    program._guards_code = [text.format("L['input'].size()[0]")]
    torch.export.save(program, path := tmp_path / "known.pt2")
    assert [str(n.args["self"]) for n in ir.capture(path).nodes if n.op == "aten::_assert_scalar"] == held


def test_guards_call_nothing_of_an_argument(tmp_path):
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    program._guards_code = ["L['input'].tofile('x') == 1"]
    torch.export.save(program, path := tmp_path / "call.pt2")
    with pytest.raises(CaptureError, match="no condition on sizes"):
        ir.capture(path)


SIZE = "L['input'].size()[0]"


@pytest.mark.parametrize(
    ("text", "taken"),
    [("{0} ** {0} >= 0", False), ("9 ** 9 ** 9 >= 0", False), ("1 << {0} > 0", False), ("'a' * {0} == 'b'", False),
     ("(1,) * {0} == {0}", False), ("L['input'].size() * {0} == {0}", False), ("len('a' * {0}) > 1", False),
     ("max('a', 'b') * {0} > 1", False), ("{0} ** 2 >= 0", True), ("{0} << 2 >= 0", True), ("{0} * {0} >= 0", True),
     ("L['input'].size() == (3,)", True), ("len(L['input'].size()) == 1", True), ("{0} ** -1 <= 1", True)],
)  # fmt: skip
def test_a_guard_is_arithmetic_that_ends(text, taken, tmp_path):
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    program._guards_code = [text.format(SIZE)]
    torch.export.save(program, path := tmp_path / "guard.pt2")
    if taken:
        graph = ir.capture(path)
        assert graph.context.reference(graph, (torch.ones(3),), {}, guarded=True)
        return
    with pytest.raises(CaptureError, match="no condition on sizes"):
        ir.capture(path).context.program.module()


def test_a_number_that_torch_leaves_to_data(tmp_path):
    class Combined(torch.nn.Module):
        def forward(self, x):
            return torch.combinations(x, r=1)

    torch.export.save(torch.export.export(Combined(), (torch.ones(1),)), path := tmp_path / "combined.pt2")
    program = ir.capture(path)
    assert [n.op for n in program.nodes if n.op == "aten::combinations"]
    torch.export.save(torch.export.export(Combined(), (torch.ones(7),)), path)
    assert len(ir.capture(path).results) == 1


def test_an_index_that_data_decides_is_trusted(tmp_path):
    class Picked(torch.nn.Module):
        def forward(self, x, i):
            return x[i.clamp(0, 1).item()] + torch.median(torch.median(x, dim=1).values)

    args = (torch.randn(2, 3), torch.tensor(1))
    torch.export.save(torch.export.export(Picked(), args), path := tmp_path / "picked.pt2")
    ir.check(ir.capture(path))


def test_nothing_is_upsampled(tmp_path):
    """torch's shape rule asks for a truth value there, and gives `_check` a size."""

    class Nothing(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.interpolate(x[:0], scale_factor=2)

    torch.export.save(torch.export.export(Nothing(), (torch.ones(1, 3, 2),)), path := tmp_path / "m.pt2")
    assert [v.type.shape for v in ir.capture(path).outputs] == [(0, 3, 4)]


def _pairs(x, y):
    return x[x > 0].reshape(2, -1)


def _triples(x, y):
    return x[x > 0].reshape(3, -1)[0], y[y > 0].reshape(-1, 4)


def _joined(x, y):
    return x[x > 0] + torch.cat([y[y > 0], y[y < 0]])


def _sevens(x, y):
    return x[x > 0].reshape(7, -1)


@pytest.mark.parametrize("function", [_pairs, _triples, _joined, _sevens])
def test_sizes_that_data_decides_are_those_that_the_graph_asserts(function, tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, y):
            return function(x, y)

    x, y = torch.ones(84), torch.cat([torch.ones(80), -torch.ones(4)])
    torch.export.save(torch.export.export(Model(), (x, y)), path := tmp_path / "m.pt2")
    graph = ir.capture(path)
    made, expected = graph.context.reference(graph, (x, y), {}), function(x, y)
    for one, other in zip(made, expected if isinstance(expected, tuple) else [expected], strict=True):
        assert torch.equal(torch.as_tensor(one), other)


def test_numbers_for_sizes_that_data_decides():
    u0, u1 = (f"Symbol('u{i}', integer=True)" for i in range(2))
    both = [Size(f"Equality({u0}, Mul(Integer(2), {u1}))"), Size(f"Equality(Mod({u1}, Integer(3)), Integer(0))")]
    assert numbers_for(both, {}, {}) == {"u0": 6, "u1": 3}
    assert numbers_for([Size(f"Equality({u0}, Symbol('s0', integer=True))")], {"s0": 7}, {}) == {"u0": 7}
    assert numbers_for([Size(f"Equality({u0}, Integer(11))")], {}, {"u0": (0, None)}) == {}
    endless = [Size(f"Equality(Symbol('u{i}', integer=True), Integer(11))") for i in reversed(range(12))]
    free = [Size(f"LessThan(Symbol('u{i}', integer=True), Integer(500))") for i in range(12)]
    assert numbers_for(free + endless[:1], {}, {}) == {}


def test_a_slice_whose_start_depends_on_data(tmp_path):
    """Its size is a symbol of its own, of which nothing is known."""

    class Rest(torch.nn.Module):
        def forward(self, x, y):
            return y[torch.masked_select(x, x != x).numel() - 1 :] + 1

    torch.export.save(torch.export.export(Rest(), (torch.ones(2), torch.zeros(4, 5))), tmp_path / "m.pt2")
    (added,) = ir.capture(tmp_path / "m.pt2").outputs
    assert str(added.type) == "f32[u1, 5]"


def test_a_file_that_was_read_is_closed(tmp_path):
    torch.export.save(torch.export.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),)), tmp_path / "m.pt2")
    code = f"import gc, ir; ir.capture({str(tmp_path / 'm.pt2')!r}); gc.collect()"
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "m.pt2" not in done.stderr, done.stderr


def test_operators_that_run_make_no_symbol_of_the_file_anew(tmp_path):
    """Under its name the new one has no range, for torch has noted that range before."""

    class Model(torch.nn.Module):
        def forward(self, x):
            left, right = torch.tensor_split(x, 2, 1)
            few = (left < 3)[1:, :-1]
            rows = torch.stack([few, few, few], -1)
            torch.tensor(0) + few
            few.view(-1)[:2] = 0
            rows = torch.stack([rows, rows])
            chosen = (right >= right).to(torch.float32)
            torch.masked_fill(chosen, chosen < 7, float("-inf"))
            return rows[rows > 100].sum()

    x = torch.tensor([[3, 3, 4], [6, 3, 5], [5, 3, 6]], dtype=torch.uint8)
    shapes = ({1: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(Model(), (x,), dynamic_shapes=shapes), tmp_path / "m.pt2")
    graph = ir.check(ir.capture(tmp_path / "m.pt2"))
    assert [str(n.outputs[0].type) for n in graph.nodes if n.op == "aten::index"] == ["bool[u0]"]
