"""What ops.py says of operators beyond their schemas, against torch: all operators of torch's own database run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from ir import ops
from ir.graph import Node, Origin
from ir.importer.schema import op_schema
from ir.importer.torch_api import OpOverloadPacket, operator_names, schema_of
from tests.threads import on_short_stack

aten = torch.ops.aten
X, ROW, EDGES = torch.randn(4, 4), torch.randn(4), torch.arange(4.0)

# Calls of ops whose results lie in their arguments; torch's database has the others or calls them by Python functions.
VIEWS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "alpha_dropout": lambda: (X, aten.alpha_dropout(X, 0.5, False)),
    "dropout": lambda: (X, aten.dropout(X, 0.5, False)),
    "feature_alpha_dropout": lambda: (X, aten.feature_alpha_dropout(X, 0.5, False)),
    "feature_dropout": lambda: (X, aten.feature_dropout(X, 0.5, False)),
    "atleast_1d": lambda: (X, aten.atleast_1d(X)),
    "atleast_2d": lambda: (X, aten.atleast_2d(X)),
    "atleast_3d": lambda: (X, aten.atleast_3d(X)),
    "broadcast_tensors": lambda: (X, aten.broadcast_tensors([X, ROW])),
    "cartesian_prod": lambda: (ROW, aten.cartesian_prod([ROW])),
    "conj_physical": lambda: (X, aten.conj_physical(X)),
    "data": lambda: (X, aten.data(X)),
    "einsum": lambda: (X, aten.einsum("ij->ji", [X])),
    "histogramdd": lambda: (EDGES, aten.histogramdd(X[:, :1], [EDGES])),
    "lift": lambda: (X, aten.lift(X)),
    "meshgrid": lambda: (ROW, aten.meshgrid([ROW, ROW])),
    "sum_to_size": lambda: (X, aten.sum_to_size(X, [4, 4])),
    "type_as": lambda: (X, aten.type_as(X, X)),
    "unsafe_chunk": lambda: (X, aten.unsafe_chunk(X, 2)),
    "unsafe_split": lambda: (X, aten.unsafe_split(X, 2)),
    "unsafe_split_with_sizes": lambda: (X, aten.unsafe_split_with_sizes(X, [1, 3])),
    "_unsafe_view": lambda: (X, aten._unsafe_view(X, [16])),
}


PACKETS = [p for p in (getattr(aten, name) for name in dir(aten)) if isinstance(p, OpOverloadPacket)]
OVERLOADS = [getattr(p, name) for p in PACKETS for name in p.overloads()]


def packets(names: Iterable[str]) -> list[Any]:
    """torch's operators of these names, those of other namespaces left out."""
    return [getattr(aten, n.removeprefix("aten::")) for n in sorted(names) if n.startswith("aten::")]


def share(given: Any, made: Any) -> bool:
    """True if a result lies in the memory of an argument."""
    memory = [{t.untyped_storage()._cdata for t in tree_leaves(x) if isinstance(t, Tensor)} for x in (given, made)]
    return not memory[0].isdisjoint(memory[1])


@pytest.mark.parametrize("name", sorted(op.removeprefix("aten::") for op in ops.UNANNOTATED_VIEWS))
def test_views_that_no_schema_tells(name: str) -> None:
    packet = getattr(aten, name)
    schemas = [op_schema(getattr(packet, overload)) for overload in packet.overloads()]
    assert any(not s.views and not s.writes for s in schemas), "its schema tells"
    given, made = VIEWS[name]()
    assert share(given, made), "it is no view"


@on_short_stack
def test_no_other_view_of_torch_goes_untold() -> None:
    """Each entry of torch's database, called as the operator of its name."""
    from torch.testing._internal.common_methods_invocations import op_db

    untold, ran = set(), 0
    for entry in op_db:
        packet = getattr(aten, entry.aten_name or entry.name, None)
        if packet is None or torch.float32 not in entry.dtypes:
            continue
        told = any(ops.may_be_view(op_schema(getattr(packet, overload))) for overload in packet.overloads())
        if told or f"aten::{entry.aten_name or entry.name}" in ops.UNANNOTATED_VIEWS:
            continue
        for sample in itertools.islice(entry.sample_inputs("cpu", torch.float32), 6):
            given = sample.input, *sample.args
            try:
                made = packet(*tree_map_only(Tensor, Tensor.detach, given), **sample.kwargs)
                ran += 1
                if share((given, sample.kwargs), made):
                    untold.add(packet)
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                break
    assert ran > 150 and not untold


@pytest.mark.parametrize("name", sorted(ops.COPIES - {"aten::pin_memory", "aten::native_dropout"}))
def test_copies_hold_what_they_are_made_of(name: str) -> None:
    namespace, op = name.split("::")
    arguments = {
        "repeat": [[1, 1]], "tile": [[1, 1]], "view_copy": [[4, 4]], "expand_copy": [[4, 4]], "_reshape_copy": [[4, 4]],
        "squeeze_copy": [], "unsqueeze_copy": [0], "convert_element_type": [torch.float32],
    }  # fmt: skip
    made = getattr(getattr(torch.ops, namespace), op)(X, *arguments.get(op, []))
    assert torch.equal(made.view(X.shape), X) and (op == "_lazy_clone" or not share(X, made))


@pytest.mark.parametrize(("op", "twin"), {
    "add_.Tensor": "add.Tensor", "gt_.Scalar": "gt.Scalar", "_foreach_add_.Scalar": "_foreach_add.Scalar",
    "add.out": "add.Tensor", "max.dim_max": "max.dim", "arange.out": "arange.default",
    "__ior__.Tensor": "__or__.Tensor",
    "polygamma_.default": "polygamma.default", "dropout_.default": "dropout.default", "t_.default": "t.default",
    "normal_.default": "normal_functional.default", "bernoulli_.float": "bernoulli.p", "fill_diagonal_.default": None,
    "rrelu_with_noise_.default": "rrelu_with_noise_functional.default",
}.items())  # fmt: skip
def test_functional_twins(op: str, twin: str | None) -> None:
    packet, _, overload = op.partition(".")
    found = op_schema(getattr(getattr(aten, packet), overload)).functional
    assert (found and str(found.target)) == (twin and f"aten.{twin}")


def test_most_ops_that_write_have_a_twin() -> None:
    """By signature, as torch generates them; what has none stands in the graph itself."""
    packets = [getattr(aten, name) for name in dir(aten) if name.endswith("_") and not name.startswith("_")]
    packets = [p for p in packets if isinstance(p, torch._ops.OpOverloadPacket)]
    schemas = [op_schema(getattr(p, overload)) for p in packets for overload in p.overloads()]
    without = {s.op for s in schemas if s.writes and s.tensors and s.functional is None and not s.moves}
    known = {
        "aten::fill_diagonal_",
        "aten::requires_grad_",
        "aten::copy_",  # has an overload for scripts
        "aten::shallow_copy_data_",  # since 2.14: `x.data = y`
    }
    assert without <= known


# -- over every overload -----------------------------------------------------------------------------------------------


def test_the_tables_name_operators_of_torch() -> None:
    tables = [t for t in vars(ops).values() if isinstance(t, frozenset | dict) and t and "aten::" in str(t)]
    assert len(tables) >= 12
    assert all(isinstance(p, OpOverloadPacket) for t in tables for p in packets(t))


def test_views_are_those_of_the_schemas() -> None:
    """`OpOverload.is_view` is torch's own reading of a schema; the table is for what that does not see."""
    assert len(OVERLOADS) > 2000
    for overload in OVERLOADS:
        schema = op_schema(overload)
        told = ops.may_be_view(schema)
        assert told or not overload.is_view, overload
        assert overload.is_view or not told or schema.writes or schema.op in ops.UNANNOTATED_VIEWS, overload
        assert not schema.op.endswith("_copy") or not told or schema.writes or schema.op == "aten::_to_copy", overload


def test_what_takes_a_generator_is_random_and_what_writes_is_not_pure() -> None:
    for overload in OVERLOADS:
        schema = schema_of(overload)
        node = Node(schema.name, {}, (), Origin(schema.overload_name))
        if any(a.name == "generator" for a in schema.arguments):
            assert ops.is_random(node), overload
        if schema.is_mutable or ops.is_random(node):
            assert not ops.is_pure(node), overload


def test_a_node_of_a_pass_is_told_by_all_overloads_of_its_op() -> None:
    assert ops.is_pointwise(Node("aten::add", {}, ())) and ops.is_view(Node("aten::transpose", {}, ()))
    assert not ops.is_pointwise(Node("aten::cat", {}, ())) and not ops.is_view(Node("aten::add", {}, ()))
    assert not ops.is_pointwise(Node("mylib::unknown", {}, ()))


# -- the other tables --------------------------------------------------------------------------------------------------

SHAPES: dict[str, list[Any]] = {
    "view": [[2, 8]], "reshape": [[2, 8]], "_unsafe_view": [[2, 8]], "unflatten": [0, [2, 2]], "unsqueeze": [1],
    "view_as": [X.view(2, 8)], "reshape_as": [X.view(2, 8)], "_reshape_alias": [[2, 8], [8, 1]],
    "permute": [[1, 0]], "transpose": [0, 1], "swapaxes": [0, 1], "swapdims": [0, 1], "movedim": [0, 1],
    "moveaxis": [0, 1],
}  # fmt: skip


@pytest.mark.parametrize("packet", packets(ops.RESHAPES), ids=str)
def test_reshapes_keep_the_order_of_rows(packet: Any) -> None:
    made = packet(X, *SHAPES.get(packet.__name__, []))
    assert torch.equal(made.flatten(), X.flatten())


@pytest.mark.parametrize("packet", packets(ops.MOVES), ids=str)
def test_permutations_keep_the_axes(packet: Any) -> None:
    made = packet(X, *SHAPES.get(packet.__name__, []))
    assert torch.equal(made, X.mT) and sorted(made.stride()) == sorted(X.stride())


def test_no_other_view_moves_two_axes() -> None:
    """Of all operators that take a tensor, alone or with axes."""
    found = set()
    for name in operator_names():
        packet = getattr(aten, name.removeprefix("aten::"), None) if name.startswith("aten::") else None
        if not isinstance(packet, OpOverloadPacket) or name.endswith("_") or not ops.is_view(Node(name, {}, ())):
            continue
        for args in ((), (0, 1), ([1, 0],), ([0], [1])):
            with contextlib.suppress(RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
                made = packet(given := X.clone(), *args)
                if isinstance(made, Tensor) and share(given, made) and torch.equal(made, X.mT):
                    found.add(name)
    assert found == ops.MOVES


@pytest.mark.parametrize("name", sorted(ops.SUMS_OF_PRODUCTS))
def test_sums_of_products_are_what_torch_counts_as_such(name: str) -> None:
    """By the ops that torch's own counter of floating-point operations knows; a norm is one product and one sum."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    if "batch_norm" in name:
        return
    images = {n: torch.ones((1, 4) + (5,) * n) for n in (1, 2, 3)}
    kernels = {n: torch.ones((4, 4) + (3,) * n) for n in (1, 2, 3)}
    matrix, batch = torch.ones(4, 4), torch.ones(2, 4, 4)
    calls: dict[str, tuple[Any, ...]] = {
        **{f"conv{n}d": (images[n], kernels[n]) for n in images},
        **{f"conv_transpose{n}d": (images[n], kernels[n]) for n in images},
        "convolution": (images[2], kernels[2], None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        "linear": (matrix, matrix), "matmul": (matrix, matrix), "mm": (matrix, matrix), "bmm": (batch, batch),
        "addmm": (matrix, matrix, matrix), "baddbmm": (batch, batch, batch),
        "scaled_dot_product_attention": (batch, batch, batch),
    }  # fmt: skip
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        getattr(aten, name.removeprefix("aten::"))(*calls[name.removeprefix("aten::")])
    assert counter.get_total_flops() > 0


def test_what_fills_and_what_does_not() -> None:
    """torch fills what is not initialised with NaN where it is told to be deterministic."""
    sizes = {
        "empty_strided": [[2, 3], [3, 1]],
        "new_empty_strided": [[2, 3], [3, 1]],
        "empty_permuted": [[2, 3], [0, 1]],
    }
    torch.use_deterministic_algorithms(True)
    try:
        for packet in packets({*ops.FILLS, *ops.UNINITIALIZED}):
            name = packet.__name__
            first = [X] if name.endswith("_like") or name.startswith("new_") else []
            size = [] if name.endswith("_like") else sizes.get(name, [[2, 3]])
            number = ops.FILLS.get(f"aten::{name}", float("nan"))
            made = packet(*first, *size, *([] if number is not None else [7.0]))
            expected = torch.full_like(made, 7.0 if number is None else number)
            assert torch.equal(made.nan_to_num(5), expected.nan_to_num(5)), name
    finally:
        torch.use_deterministic_algorithms(False)


def test_checks_return_and_write_nothing() -> None:
    for packet in packets(ops.CHECKS):
        schemas = [schema_of(getattr(packet, name)) for name in packet.overloads()]
        assert schemas and not any(s.returns or s.is_mutable for s in schemas)


def test_numbers_in_other_types_are_casts() -> None:
    for packet in packets(ops.CASTS):
        assert torch.equal(packet(torch.tensor([1.5, -2.5]), dtype=torch.int64), torch.tensor([1, -2]))


@on_short_stack
def test_element_wise_ops_give_the_same_of_operands_cast_before() -> None:
    """What ir.passes.promote takes of the tag: operands in the element type of the result give that result."""
    from torch.testing._internal.common_methods_invocations import op_db

    ran = 0
    for entry in op_db:
        packet = getattr(aten, entry.aten_name or entry.name, None)
        pointwise = packet is not None and ops.is_pointwise(Node(f"aten::{packet.__name__}", {}, ()))
        if not pointwise or torch.int32 not in entry.dtypes:
            continue
        for sample in itertools.islice(entry.sample_inputs("cpu", torch.int32), 3):
            made = entry.op(sample.input, *sample.args, **sample.kwargs)
            if isinstance(made, Tensor) and made.dtype is not torch.bool and not sample.kwargs:
                cast = lambda t, to=made.dtype: t if t.dtype is torch.bool else t.to(to)  # noqa: E731
                given, args = tree_map_only(Tensor, cast, (sample.input, sample.args))
                torch.testing.assert_close(entry.op(given, *args), made, equal_nan=True, msg=str(packet))
                ran += 1
    assert ran > 100


UNSET = {op.removeprefix("aten::") for op in ops.UNINITIALIZED}

# -- the tables of passes ----------------------------------------------------------------------------------------------


@on_short_stack
def test_what_is_applied_to_both_parts_of_complex_numbers_is_linear() -> None:
    """`ir.passes.split_complex`: a part of the result is the op's result on that part of the operands."""
    from torch.testing._internal.common_methods_invocations import op_db

    from ir.passes.split_complex import PARTWISE

    ran = set()
    for entry in op_db:
        name = entry.aten_name or entry.name
        numbers = {"value", "fill_value"}.intersection(PARTWISE.get(name, ("value",)))  # whose parts are others'
        if numbers or name in UNSET or torch.complex64 not in entry.dtypes or torch.float32 not in entry.dtypes:
            continue
        for sample in itertools.islice(entry.sample_inputs("cpu", torch.complex64), 3):
            given = sample.input, sample.args, {k: v for k, v in sample.kwargs.items() if k != "dtype"}
            made = tree_leaves(entry.op(given[0], *given[1], **given[2]))
            for part in ("real", "imag") if all(t.is_complex() for t in made) else ():
                x, args, kwargs = tree_map(partial(_part, part), given)
                for whole, own in zip(made, tree_leaves(entry.op(x, *args, **kwargs)), strict=True):
                    torch.testing.assert_close(getattr(whole, part), own, msg=name, check_dtype=False)
            ran.add(name)
    assert len(ran) > 60


def _part(part: str, arg: Any) -> Any:
    """A part of an argument; the imaginary one of real numbers is zero, and of masks and indices there are none."""
    if isinstance(arg, complex) or (isinstance(arg, Tensor) and arg.is_complex()):
        return getattr(arg, part)
    return arg * (part == "real") if isinstance(arg, Tensor) and arg.is_floating_point() else arg


def test_ops_whose_axes_or_pieces_sizes_decide() -> None:
    """`ir.importer.conditions`: an axis of size 1 goes, and a size decides how many pieces there are."""
    from ir.importer.conditions import PIECES, SQUEEZES

    for packet in packets(SQUEEZES):
        assert [packet(torch.ones(n, 2)).dim() for n in (1, 3)] == [1, 2]
    for packet in packets(PIECES):
        assert [len(packet(torch.ones(n), 2)) for n in (1, 5)] == [1, 2 if "chunk" in packet.__name__ else 3]


def test_which_kernels_read_a_number_in_float32() -> None:
    """Observed where an export asks; these are so in every version that the packages admit."""
    exact = ("mul", "multiply", "div", "divide", "true_divide", "floor_divide", "float_power", "softplus", "elu")
    rounding = ("add", "sub", "rsub", "remainder", "fmod", "pow", "gt", "eq", "xlogy", "hardshrink", "clamp")
    asked = {name: ops.reads_numbers_in_float32(f"aten::{name}") for name in (*exact, *rounding)}
    assert asked == dict.fromkeys(exact, True) | dict.fromkeys(rounding, False)


def test_kernels_are_not_run_for_a_number_that_they_do_not_take() -> None:
    assert not any(map(ops.reads_numbers_in_float32, ("aten::dropout", "aten::relu", "aten::bernoulli", "own::mul")))
