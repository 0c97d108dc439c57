"""Hand-written fragments: found by name, shipped when used, checked before tract sees them."""

from __future__ import annotations

import pytest
import torch

import ir
import nnef_backend
from nnef_backend import Khronos, Tract
from nnef_backend.errors import DocumentError
from nnef_backend.format.grammar import fragments_of

SWISH = """
# x times its own gate
fragment gate(x: tensor<scalar>, beta: scalar = 1.0) -> (y: tensor<scalar>)
{
    y = sigmoid(x * beta);
}

fragment swish(x: tensor<scalar>, beta: scalar = 1.0) -> (y: tensor<scalar>)
{
    g = gate(x, beta = beta);
    y = mul(x, g);  # the product
}

fragment both(x: tensor<scalar>) -> (low: tensor<scalar>, high: tensor<scalar>)
{
    low = min(x, 0.0);
    high = max(x, 0.0);
}

fragment unused(x: tensor<scalar>) -> (y: tensor<scalar>) { y = tract_core_erf(x); }
"""
X = torch.randn(3, 5)


def swish(h, self):
    return h.emit("swish", self, beta=2.0)


def silu_of_double(x):
    return torch.nn.functional.silu(x)


def doubled(h, self):
    """silu(x) = swish(2 x, 0.5) / 2 by the fragments."""
    return h.emit("mul", h.emit("swish", h.emit("mul", self, 2.0), beta=0.5), 0.5)


@pytest.mark.parametrize("target", ["nnef", "khronos"])
def test_only_what_is_used_is_shipped(target):
    program = ir.export(
        silu_of_double, (X,), target=target, fragments=[SWISH], handlers={"aten::silu": doubled}, verify=True
    )
    assert [f.name for f in program.artifact.fragments] == ["gate", "swish"]
    assert "tract_core_erf" not in program.artifact.to_text()


def test_files_strings_and_registration(tmp_path):
    file = tmp_path / "swish.nnef"
    file.write_text("version 1.0;\nextension tract_registry tract_core;\n" + SWISH)
    handlers = {"aten::silu": doubled}
    dynamic = ({0: "batch"},)
    program = ir.export(
        silu_of_double, (X,), target=Tract(fragments=[file]), handlers=handlers, dynamic_shapes=dynamic, verify=True
    )
    program.verify((torch.randn(7, 5),))
    assert nnef_backend.add_fragments(file) == ["gate", "swish", "both", "unused"]
    try:
        ir.export(silu_of_double, (X,), target="nnef", handlers=handlers, verify=True)
        nnef_backend.add_fragments(file)  # the same text again is no conflict
        other = "fragment gate(x: tensor<scalar>) -> (y: tensor<scalar>) { y = neg(x); }"
        with pytest.raises(ir.DuplicateHandlerError, match=r"swish.nnef:5 already; override=True"):
            nnef_backend.add_fragments(other)
        nnef_backend.add_fragments(other, override=True)
        mine = Tract(fragments=[SWISH])  # the target's own come first
        assert ir.export(silu_of_double, (X,), target=mine, handlers=handlers, verify=True).artifact.fragments
    finally:
        for name in ("gate", "swish", "both", "unused"):
            nnef_backend.remove_fragment(name)


def test_several_results():
    def handler(h, self):
        low, high = h.emit("both", self, dtype=[self.type.dtype] * 2, shape=[self.type.shape] * 2)
        return h.emit("sub", high, low)

    ir.export(torch.abs, (X,), target="nnef", fragments=[SWISH], handlers={"aten::abs": handler}, verify=True)


def test_what_the_target_lacks_leaves_it_to_the_decomposition():
    erf = "fragment swish(x: tensor<scalar>, beta: scalar) -> (y: tensor<scalar>) { y = tract_core_erf(x); }"
    program = ir.export(
        silu_of_double, (X,), target=Khronos(fragments=[erf]), handlers={"aten::silu": doubled}, verify=True
    )
    assert not program.artifact.fragments


def test_a_fragment_inside_the_body_of_a_custom_op():
    def model(x):
        return fragmenttests(x) + 1

    ir.export(model, (X,), target="nnef", fragments=[SWISH], handlers={"aten::silu": doubled}, verify=True)


@ir.custom_op("fragmenttests::twice")
def fragmenttests(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(torch.nn.functional.silu(x))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>)\n{\n  y = neg(z);\n}", r"t:3: z is neither a parameter"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>)\n{\n  z = neg(x);\n}", r"t:1: .* its result y"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>)\n{\n\n  y = neg(x)\n}", r"t:5: expected ';'"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = -x; }", r"no unary minus: write neg"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = x if x > 0.0 else x; }", r"select\(c, a, b\)"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = neg(x); y = neg(x); }", r"y is assigned twice"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = neg(x);", r"does not end"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>);", r"needs a body in braces"),
        ("fragment f(x: number) -> (y: tensor<scalar>) { y = neg(x); }", r"found 'number'"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = neg(x) @ x; }", r"'@' is no part of NNEF"),
        ("fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) { y = neg(info); }", r"beginning of info for a literal"),
        ("graph g(x) -> (y) { y = neg(x); }", r"expected 'fragment', found 'graph'"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(text, message):
    with pytest.raises(DocumentError, match=message) as caught:
        fragments_of(text, "t")
    assert str(caught.value).startswith("t:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y = sigmoidd(x);", r"fragment:1: sigmoidd is neither .*near to it: sigmoid"),
        ("y = swish(x);", r"swish calls itself"),
        ("y = both(x, k = 1);", r"both has no parameter k; there are x"),
        ("y = neg(x, x);", r"neg takes x and no more"),
    ],
)
def test_wrong_calls_are_refused_before_tract_sees_them(text, message):
    body = f"fragment swish(x: tensor<scalar>, beta: scalar = 1.0) -> (y: tensor<scalar>) {{ {text} }}"
    both = "fragment both(x: tensor<scalar>) -> (y: tensor<scalar>) { y = neg(x); }"
    with pytest.raises(ir.RefusedError, match=message):
        ir.export(silu_of_double, (X,), target="nnef", fragments=[body, both], handlers={"aten::silu": doubled})


def test_names_of_operations_and_what_the_target_lacks():
    with pytest.raises(DocumentError, match="sigmoid is the name of an operation"):
        Tract(fragments=["fragment sigmoid(x: tensor<scalar>) -> (y: tensor<scalar>) { y = neg(x); }"])
    erf = "fragment swish(x: tensor<scalar>, beta: scalar = 1.0) -> (y: tensor<scalar>) {\n y = tract_core_erf(x); }"
    with pytest.raises(ir.RefusedError, match=r"swish \(fragment:2\) needs tract_core_erf: standard NNEF lacks it"):
        ir.export(torch.erf, (X,), target=Khronos(fragments=[erf]), handlers={"aten::erf": swish})
    with pytest.raises(ir.RefusedError, match="there is no fragment 'nowhere'"):
        ir.export(torch.abs, (X,), target="nnef", handlers={"aten::abs": lambda h, self: h.apply("nowhere", self)})


@ir.custom_op("tests_fragments::discounted")
def discounted(x: torch.Tensor, rates: torch.Tensor) -> torch.Tensor:
    def step(state, inputs):
        state = state * inputs[1] + inputs[0]
        return state, state.clone()

    return torch._higher_order_ops.scan(step, torch.zeros_like(x[0]), [x, rates], dim=0)[1]


def test_a_constant_reaches_a_loop_through_a_call():
    """tract reads a constant that it scans wrongly; whether a fragment's operand is one is known at the call."""
    rates = torch.tensor([0.5, 2.0, 3.0])

    def model(x, y):
        return discounted(x, rates) + discounted(x, y) + discounted(rates.clone() * 2, rates) + discounted(y, x)

    program = ir.export(model, (torch.randn(3), torch.randn(3)), target="nnef", verify=True)
    scans = [o for f in program.artifact.fragments for o in f.operations if o.name == "tract_core_scan"]
    assert sorted(len(o.attributes["scan"]) for o in scans) == [1, 1, 2]
