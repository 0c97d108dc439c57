"""The driver: handlers, bodies, refusals, and what is missing, all at once."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import ir
from ir.bounds import Range
from ir.dims import minimum, symbol
from ir.graph import Graph, Node, Value
from ir.lower import lower
from ir.passes.promote import promote
from ir.registry import loading
from ir.types import DType, TensorType
from tests.ir.toy import Line, Toy


def lowered(fn, args, handlers, **options):
    target = Toy()
    for op, handler in handlers.items():
        target.registry.add(op, handler)
    return ir.export(fn, args, target=target, **options).artifact


X = torch.ones(2, 3)


def test_arguments_reach_the_handler_by_name():
    def softmax(h, self, dim, dtype=None):
        return h.emit("softmax", self, axis=h.axis(dim, self))

    assert lowered(lambda x: x.softmax(-1), (X,), {"aten::softmax": softmax}) == ["softmax(x, axis=1)"]


def test_an_argument_that_a_handler_does_not_know_is_refused_by_name():
    def add(h, self, other):
        return h.emit("add", self, other)

    assert lowered(lambda x: x + x, (X,), {"aten::add": add}) == ["add(x, x)"]
    with pytest.raises(ir.RefusedError, match=r"alpha=2.*test_driver.py"):
        lowered(lambda x: torch.add(x, x, alpha=2), (X,), {"aten::add": add})


def test_handlers_of_a_call_come_first():
    target = Toy()
    target.registry.add("aten::sin", lambda h, self: h.emit("sin", self))
    mine = {"aten::sin": lambda h, self: h.emit("mine", self)}
    assert ir.export(lambda x: torch.sin(x), (X,), target=target, handlers=mine).artifact == ["mine(x)"]
    assert ir.export(lambda x: torch.sin(x), (X,), target=target).artifact == ["sin(x)"]


def test_the_op_of_a_handler_of_a_call_may_be_torchs_own():
    for op in (torch.ops.aten.sin, torch.ops.aten.sin.default, ir.op("aten::sin")):
        made = ir.export(
            lambda x: torch.sin(x), (X,), target=Toy(), handlers={op: lambda h, self: h.emit("mine", self)}
        )
        assert made.artifact == ["mine(x)"]
    for handlers, told in (([1], "handlers is a list"), ({torch.sin: print}, "handlers has the key <built-in")):
        with pytest.raises(TypeError, match=told):
            ir.export(lambda x: torch.sin(x), (X,), target=Toy(), handlers=handlers)
    with pytest.raises(TypeError, match=r"ir.op\(1\): give an op of torch.ops"):
        ir.op(1)


def test_a_handler_of_a_call_that_no_node_is_of_is_told(recwarn):
    emit = dict.fromkeys(("aten::sin", "aten::add_", "aten::silu"), lambda h, self: h.emit("mine", self))
    target = Toy()
    target.registry.add("aten::add", lambda h, self, other: h.emit("add", self))
    target.registry.add("aten::mul", lambda h, self, other: h.emit("mul", self))
    with pytest.warns(UserWarning) as told:
        ir.export(lambda x: (x + 1) * 2, (X,), target=target, handlers=emit)
    found = sorted(str(w.message) for w in told)
    what = "was not used: no node of the model is of this op"
    assert [m.partition(what)[0] for m in found] == [f"handlers['aten::{n}'] " for n in ("add_", "silu", "sin")]
    assert found[0].endswith("; the model has aten::add.Tensor")
    recwarn.clear()
    ir.export(lambda x: torch.sin(x), (X,), target=target, handlers={"aten::sin": emit["aten::sin"]})
    body = {"aten::sigmoid": lambda h, self: h.emit("mine", self)}  # in the decomposition of silu
    ir.export(lambda x: torch.nn.functional.silu(x), (X,), target=target, handlers=body)
    assert not recwarn.list


def test_only_a_handler_of_the_backend_is_spared_operands_of_several_types():
    class Promoting(Toy):
        passes = (promote,)

    target = Promoting()
    target.registry.add("aten::mul", lambda h, self, other: h.emit("mul", self, other))
    target.registry.add("aten::as_strided", lambda h, self, **kwargs: h.emit("column", self))
    with loading("builtin"):
        target.registry.add("aten::outer", lambda h, self, vec2: h.emit("outer", self, vec2))

    def outer(a, b):
        return torch.outer(a, b)

    x, n = torch.ones(2), torch.ones(3, dtype=torch.int64)
    assert ir.export(outer, (x, x), target=target).artifact == ["outer(a, b)"]
    assert len(ir.export(outer, (x, n), target=target).artifact) > 1
    mine = {"aten::outer": lambda h, self, vec2: h.emit("mine", self, vec2)}
    assert ir.export(outer, (x, n), target=target, handlers=mine).artifact == ["mine(a, b)"]


def test_a_decomposition_is_inlined_where_there_is_no_handler():
    lines = lowered(lambda x: nn.functional.silu(x), (X,), {
        "aten::sigmoid": lambda h, self: h.emit("sigmoid", self),
        "aten::mul": lambda h, self, other: h.emit("mul", self, other),
    })  # fmt: skip
    assert lines == ["sigmoid(x)", "mul(x, sigmoid(x))"]


def test_a_refusal_falls_back_to_the_decomposition_or_says_both_reasons():
    def silu(h, self):
        h.refuse("it does not like silu")

    parts = {
        "aten::sigmoid": lambda h, self: h.emit("sigmoid", self),
        "aten::mul": lambda h, self, other: h.emit("mul", self, other),
    }
    assert len(lowered(nn.functional.silu, (X,), {"aten::silu": silu, **parts})) == 2

    def sigmoid(h, self):
        h.refuse("nor sigmoid")

    with pytest.raises(ir.RefusedError, match=r"(?s)does not like silu.*nor sigmoid"):
        lowered(nn.functional.silu, (X,), {"aten::silu": silu, **parts, "aten::sigmoid": sigmoid})


def test_sparse_tensors_are_refused_by_name_where_a_target_has_none():
    handlers = {"aten::to_sparse": lambda h, self: h.emit("to_sparse", self)}
    with pytest.raises(ir.RefusedError, match=r"(?s)to_sparse.*sparse_coo.*to_dense"):
        lowered(lambda x: x.to_sparse(), (X,), handlers)
    with pytest.raises(ir.RefusedError, match=r"aten::_sparse_mm: %x is a tensor of layout sparse_csr"):
        lowered(lambda x: torch.sparse.mm(x, X.T), (X.to_sparse_csr(),), {})
    with pytest.raises(ir.RefusedError, match="sparse_coo"):
        lowered(lambda x: x, (X.to_sparse(),), {})


def test_a_handler_with_the_wrong_dtype_is_a_defect_that_is_found():
    with pytest.raises(ir.ExportError, match="cast"):
        lowered(lambda x: x > 0, (X,), {"aten::gt": lambda h, self, other: self})


def test_a_handler_with_the_wrong_shape_is_a_defect_that_is_found():
    def shaped(make):
        return lambda h, self: Line("sin", self.type.with_shape(make(self.type.shape)))

    dynamic = {"dynamic_shapes": ({0: "n"},)}
    for make, options in (
        (lambda s: (3, 2), {}),
        (lambda s: s[:1], {}),
        (lambda s: (s[0] + 1, s[1]), dynamic),
        (lambda s: (s[0], 4), dynamic),
        (lambda s: (2 * s[0], 3), dynamic),
        (lambda s: (1, 3), dynamic),
    ):
        with pytest.raises(ir.ExportError, match=r"(?s)aten::sin at .*test_driver.py.*the shape \[.*\[.*3\] in torch"):
            lowered(lambda x: torch.sin(x), (X,), {"aten::sin": shaped(make)}, **options)
    # what may be the same at run time is no mistake: another expression, a size that the target does not know
    for make in (lambda s: (s[0] * symbol("m"), 3), lambda s: (minimum(s[0], 8), 3), lambda s: (-1, 3)):
        lowered(lambda x: torch.sin(x), (X,), {"aten::sin": shaped(make)}, **dynamic)


def test_operands_that_meet_at_the_sizes_of_the_example_alone_are_refused():
    n = symbol("n")
    x, y, made = (Value(name, TensorType(DType.float32, (s,))) for name, s in (("x", n - 1), ("y", n), ("z", n)))
    node = Node("aten::ne", {"self": x, "other": y}, (made,))
    graph = Graph((x, y), (node,), (made,), ("z",), symbols={"n": Range(2, 2)})
    target = Toy()
    target.registry.add("aten::ne", lambda h, self, other: self)
    with pytest.raises(ir.RefusedError, match=r"takes \[n - 1\] and \[n\] together"):
        lower(graph, target)


def test_a_decomposition_with_another_shape_than_the_op_is_refused_where_it_is_read():
    made = {"aten::sin": lambda h, self: Line("sin", self.type), "aten::cos": lambda h, self: self}
    ops = torch.library.Library("shapes", "DEF")
    ops.define("pair(Tensor x) -> (Tensor, Tensor)")
    ops.impl("pair", lambda x: (x.sin(), x[0].clone()), "CPU")
    ops.impl("pair", lambda x: (torch.empty_like(x), x.new_empty(3)), "Meta")
    ir.op("shapes::pair").body(lambda x: (x.sin(), x.cos()))
    assert lowered(lambda x: torch.ops.shapes.pair(x)[0], (X,), made)
    with pytest.raises(ir.RefusedError, match=r"its function or body, .* returned the shape \[2, 3\].*\[3\] in torch"):
        lowered(lambda x: torch.ops.shapes.pair(x)[1], (X,), made)


def test_the_number_of_results_is_checked():
    for count in (1, 3):
        made = {"aten::max": lambda h, self, dim, keepdim, count=count: [self] * count}
        with pytest.raises(ir.ExportError, match=rf"aten::max.dim at .* returned {count} results for 2"):
            lowered(lambda x: x.max(0)[0], (X,), made)


def test_an_unused_result_may_be_left_out_a_used_one_may_not():
    handlers = {"aten::max": lambda h, self, dim, keepdim: (h.emit("max", self), None)}
    assert lowered(lambda x: x.max(0)[0], (X,), handlers) == ["max(x)"]
    told = r"handler of aten::max.dim at .*test_driver.py:\d+ returned None for %max_1_1: return what h.emit gave"
    with pytest.raises(ir.ExportError, match=told):
        lowered(lambda x: x.max(0)[1], (X,), handlers)


for _name in ("first", "second", "third"):
    torch.library.define(f"unknown::{_name}", "(Tensor x, float a=1.0) -> Tensor")
    torch.library.impl(f"unknown::{_name}", "CPU")(lambda x, a=1.0: x.clone())
    torch.library.register_fake(f"unknown::{_name}")(lambda x, a=1.0: torch.empty_like(x))


class Unknown(nn.Module):
    def forward(self, x):
        x = torch.ops.unknown.first(x)
        x = torch.ops.unknown.second(x) + torch.ops.unknown.second(x)
        return torch.ops.unknown.third(x, 2.0)


def test_everything_missing_is_one_error_before_any_work(tmp_path):
    path = tmp_path / "model.toy"
    path.write_text("older")
    called = []
    handlers = {"aten::add": lambda h, self, other, alpha=1: called.append(1) or self,
                "unknown::thirds": lambda h, x: x}  # fmt: skip
    with pytest.raises(ir.UnsupportedOpsError) as caught:
        lowered(Unknown(), (X,), handlers, path=path)
    assert [(m.op, m.count) for m in caught.value.missing] == [
        ("unknown::first", 1), ("unknown::second", 2), ("unknown::third", 1),
    ]  # fmt: skip
    text = str(caught.value)
    assert "test_driver.py" in text and "torch.ops.unknown.first(x)" in text
    assert "unknown::thirds" in text and '@ir.op("unknown::third").handler("toy")' in text and "def _(h, x, a)" in text
    assert not called and path.read_text() == "older" and list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_older_file(tmp_path):
    class Broken(Toy):
        def write(self, artifact, path):
            path.write_text("half")
            raise OSError("disk full")

    path = tmp_path / "model.toy"
    path.write_text("older")
    target = Broken()
    target.registry.add("aten::sin", lambda h, self: h.emit("sin", self))
    with pytest.raises(OSError, match="disk full"):
        ir.export(lambda x: torch.sin(x), (X,), target=target, path=path)
    assert path.read_text() == "older" and list(tmp_path.iterdir()) == [path]
    ir.export(lambda x: torch.sin(x), (X,), target=Toy_with_sin(), path=path)
    assert path.read_text() == "sin(x)" and list(tmp_path.iterdir()) == [path]


def Toy_with_sin():
    target = Toy()
    target.registry.add("aten::sin", lambda h, self: h.emit("sin", self))
    return target


def test_a_target_that_is_not_installed_names_its_package():
    with pytest.raises(ir.PluginError, match=r"there is no target .nonsense."):
        ir.export(lambda x: torch.sin(x), (X,), target="nonsense")
    with pytest.raises(TypeError, match="opset"):
        ir.export(lambda x: torch.sin(x), (X,), target=Toy(), opset=3)


def test_arguments_are_a_tuple_or_one_tensor():
    sin = {"aten::sin": lambda h, self: h.emit("sin", self)}
    with pytest.raises(TypeError, match=r"kwargs is 'model.onnx'.*path="):
        lowered(lambda x: torch.sin(x), X, sin, kwargs="model.onnx")
    for args in ("x", {"x": X}, 3):
        with pytest.raises(TypeError, match="give a tensor, or the arguments as a tuple"):
            lowered(lambda x: torch.sin(x), args, sin)


def test_an_error_leaves_no_marks_at_the_arguments():
    """torch notes dynamic sizes at the tensors; left there, the next export would fail as well."""
    x = torch.ones(4, 3)
    relu = {"aten::view": lambda h, self, size: h.emit("view", self)}
    with pytest.raises(ir.CaptureError):
        lowered(lambda x: x.view(4, 3, 1), x, relu, dynamic_shapes=({0: "n"},))
    assert not vars(x)
    lowered(lambda x: x.view(4, 3, 1), x, relu)


def test_the_source_line_is_known_in_a_plain_function_too():
    def model(x, *, scale=2):
        y = x * scale
        return torch.sin(y)

    with pytest.raises(ir.UnsupportedOpsError, match=r"test_driver.py:\d+  `return torch.sin\(y\)`"):
        lowered(model, X, {"aten::mul": lambda h, self, other: h.emit("mul", self, other)})


def test_a_result_that_is_no_value_is_told():
    with pytest.raises(ir.ExportError, match=r"aten::sin at .* returned 1.0 for %sin, which is no value of 'toy'"):
        lowered(lambda x: torch.sin(x), X, {"aten::sin": lambda h, self: 1.0})
    with pytest.raises(ValueError, match="no op 'sin'"):
        ir.op("sin")


def _fails(error):
    def handler(h, self):
        raise error  # the line that is told

    return handler


RAISED = [
    KeyError("k"),
    TypeError("no"),
    SystemExit(3),
    UnicodeDecodeError("a", b"", 0, 1, "r"),
    type("Own", (BaseException,), {})(),
]


@pytest.mark.parametrize("error", RAISED)
def test_what_a_handler_raises_is_told_with_its_line_and_the_models(error):
    with pytest.raises(ir.HandlerError) as caught:
        lowered(lambda x: torch.sin(x), X, {"aten::sin": _fails(error)})
    line = _fails.__code__.co_firstlineno + 2
    assert f"the handler of aten::sin at {__file__}:{line} failed with {type(error).__name__}" in str(caught.value)
    assert "`lowered(lambda x: torch.sin(x)" in str(caught.value) and caught.value.__cause__ is error
    assert isinstance(caught.value, type(error)) is isinstance(error, (KeyError, TypeError))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_error_in_a_body_has_the_models_line():
    said = r"\n  in the body of aten::silu\n  at .*test_driver.py:\d+  `lowered\(lambda x: torch.nn.functional.silu"
    for handler in (_fails(KeyError("k")), lambda h, self: h.refuse("no"), lambda h, self: [self, self]):
        with pytest.raises(ir.ExportError, match=said):
            lowered(lambda x: torch.nn.functional.silu(x), X, {"aten::sigmoid": handler, "aten::mul": handler})


def test_an_interrupt_in_a_handler_is_one():
    with pytest.raises(KeyboardInterrupt):
        lowered(lambda x: torch.sin(x), X, {"aten::sin": _fails(KeyboardInterrupt())})
