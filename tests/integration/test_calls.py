"""Calls of a program with other arguments than those of its capture: what torch gives, or one sentence."""

from __future__ import annotations

import collections
import pickle

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ir

TARGETS = ("eager", "onnx", "nnef")
A, B = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])


class Difference(torch.nn.Module):
    def forward(self, a, b):
        return a - 2 * b


class First(torch.nn.Module):
    def forward(self, values):
        return values[0] * 2


class Chosen(torch.nn.Module):
    def forward(self, x, mask):
        return x.masked_fill(~mask.bool(), -1.0)


class Times(torch.nn.Module):
    def forward(self, x, n):
        return x * n


class Nested(torch.nn.Module):
    def forward(self, pair, *, extra):
        return {"sum": [pair[0] + pair[1]["y"], extra], "none": None, "named": collections.OrderedDict(a=extra * 2)}


def test_arguments_captured_by_name_are_not_taken_by_position():
    """Their order is that of the capture, and need not be the model's."""
    program = ir.export(Difference(), (), {"b": B, "a": A}, target="eager")
    assert torch.equal(program(a=A, b=B), Difference()(A, B)) and torch.equal(program(b=B, a=A), Difference()(A, B))
    with pytest.raises(ir.ExportError, match=r"made for \(b=\*, a=\*\) and is called with \(\*, \*\)"):
        program(A, B)


def test_a_tensor_is_no_list_of_tensors():
    program = ir.export(First(), ([A],), target="eager")
    for given in (A, (A,), [A, A]):
        with pytest.raises(ir.ExportError, match=r"made for \(\[\*\]\) and is called with"):
            program(given)


@pytest.mark.parametrize(
    "given", [True, 1.0, np.float64(1), np.True_, np.array([1]), np.array([1, 2]), torch.tensor(1)]
)
def test_a_constant_of_another_type_is_another_program(given):
    """`x * 1` of a bool is an int64, `x * 1.0` a float."""
    program = ir.export(Times(), (torch.tensor([True, False]), 1), target="eager")
    with pytest.raises(ir.ExportError, match="the constant argument 1, not"):
        program(torch.tensor([True, True]), given)


@pytest.mark.parametrize(
    ("captured", "given"), [(2, np.int64(2)), (2.5, np.float64(2.5)), (True, np.True_), (float("nan"), float("nan"))]
)
def test_a_scalar_of_numpy_is_the_constant_that_it_equals(captured, given):
    program = ir.export(Times(), (A, captured), target="eager")
    assert torch.equal(program(A, given).isnan(), (A * captured).isnan())
    assert np.allclose(program(A, given), A * captured, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
def test_nested_arguments_and_results(target):
    program = ir.export(Nested(), ((A, {"y": B, "z": A}),), {"extra": B}, target=target)
    for made in (program, pickle.loads(pickle.dumps(program))):
        given, wanted = made((A, {"y": B, "z": A}), extra=A), Nested()((A, {"y": B, "z": A}), extra=A)
        assert str(given) == str(wanted) and type(given["named"]) is collections.OrderedDict
        for other in (
            (A, {"y": B}),
            [A, {"y": B, "z": A}],
            (A, collections.OrderedDict(y=B, z=A)),
        ):
            with pytest.raises(ir.ExportError, match="is called with"):
                made(other, extra=A)
        with pytest.raises(ir.ExportError, match="is called with"):
            made((A, {"y": B, "z": A}), other=A)


@pytest.mark.parametrize("target", TARGETS)
def test_axes_of_one_size_differ(target):
    """A runtime broadcasts the 1, where torch's own program refuses it."""
    shapes = ({0: "n"}, {0: "n"})
    program = ir.export(Difference(), (torch.randn(4, 3), torch.randn(4, 3)), dynamic_shapes=shapes, target=target)
    assert program(torch.randn(5, 3), torch.randn(5, 3)).shape == (5, 3)
    with pytest.raises(ir.RefusedError, match="the input b is float32"):
        program(torch.randn(5, 3), torch.randn(1, 3))


def odd_tensors():
    x = torch.randn(2, 3)
    yield "sparse_coo tensor", x.to_sparse()
    yield "sparse_csr tensor", x.to_sparse_csr()
    yield "_mkldnn tensor", x.to_mkldnn()
    yield "meta tensor", x.to("meta")
    yield "FakeTensor", FakeTensorMode().from_tensor(x)
    yield "nested tensor", torch.nested.nested_tensor([x, x])


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_a_tensor_without_elements_in_memory_is_refused(target):
    """A fake tensor ended the process: onnxruntime read at its null pointer."""
    program = ir.export(torch.nn.Linear(3, 3), (torch.randn(2, 3),), target=target)
    program(torch.randn(2, 3))
    for kind, given in odd_tensors():
        for call in (program, program.run, lambda x: program.verify((x,))):
            with pytest.raises(ir.RefusedError, match=f"the input input is a {kind}, the program was made for a plain"):
                call(given)


def test_what_torch_does_not_read_is_refused_by_the_eager_program():
    program = ir.export(Difference(), (torch.randn(2, 3), torch.randn(3)), target="eager")
    for kind, given in odd_tensors():
        if kind != "meta tensor":  # of which torch makes another
            with pytest.raises(ir.RefusedError, match=f"the input a is a {kind}, the program was made for a plain"):
                program(given, torch.ones(3))


@pytest.mark.parametrize("target", [*TARGETS, "khronos"])
def test_a_sign_that_torch_has_not_written_yet(target):
    """The imaginary part of a conjugate is a view with a sign of its own, which a pointer to it does not tell."""
    given = torch.tensor([1 + 2j]).conj().imag
    assert given.is_neg() and given.is_contiguous()
    program = ir.export(torch.nn.Identity(), (torch.randn(1),), target=target)
    assert program(given).tolist() == [-2.0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.uint8, torch.int64])
@pytest.mark.parametrize("target", TARGETS)
def test_strides_of_an_input_are_read_in_every_element_type(target, dtype):
    """A mask is often a transposed or an expanded one; of bools onnxruntime once read a copy that was freed."""
    given = (torch.arange(18).reshape(3, 6) % 4 == 0).to(dtype)
    program = ir.export(Chosen(), (torch.zeros(3, 6), given), target=target)
    x = torch.randn(3, 6)
    for strided in (
        given.T.contiguous().T,
        given.repeat_interleave(2, 1)[:, ::2],
        given[:1].expand(3, 6),
        given.flip(0),
    ):
        assert torch.equal(program(x, strided), Chosen()(x, strided))


def test_a_number_that_the_model_writes_is_not_taken_for_what_it_was():
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor(3))

        def forward(self, x):
            self.count += 1
            return x[: int(self.count.item())]

    program = ir.export(Counting(), (torch.ones(8),), target="eager")
    assert program.graph.context.rung.name.startswith("strict")
    assert [len(program(torch.ones(8))) for _ in range(3)] == [4, 5, 6]


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_keys_of_a_dict_come_in_any_order(target):
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 6.0])
    model = lambda held: held["a"] * 2 - held["in"]["b"]  # noqa: E731
    program = ir.export(model, ({"a": first, "in": {"b": second, "c": first}},), target=target)
    turned = {"in": {"c": first, "b": second}, "a": first}
    assert torch.equal(program(turned), model(turned))
    with pytest.raises(ir.ExportError, match="is called with"):
        program({"a": first, "in": {"b": second}})


def test_a_model_that_reads_the_order_of_keys_is_noted():
    given = {"a": torch.ones(2), "b": torch.zeros(2)}
    by_order = ir.export(lambda held: torch.cat(list(held.values())), (given,), target="eager", verify=True).report
    by_key = ir.export(lambda held: held["a"] - held["b"], (given,), target="eager", verify=True).report
    assert by_order.ok and "reads the order of a dict's keys" in by_order.notes[-1]
    assert by_key.ok and len(by_key.notes) == len(by_order.notes) - 1


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_the_input_that_decides_a_size_is_named(target):
    half = torch.export.Dim("half")
    shapes = ({0: 2 * half, 1: "w"}, {0: half, 1: "w"})
    program = ir.export(
        lambda x, y: x[:2] + y[:2], (torch.ones(6, 4), torch.ones(3, 4)), target=target, dynamic_shapes=shapes
    )
    with pytest.raises(ir.ExportError, match=r"made for .* where w is 4, by axis 1 of the input x; capture"):
        program(torch.ones(6, 4), torch.ones(3, 5))
    with pytest.raises(ir.ExportError, match=r"made for f32\[2\*half, w\], where half is 4, by axis 0 of the input y;"):
        program(torch.ones(6, 4), torch.ones(4, 4))
