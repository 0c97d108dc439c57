"""Which operands of an op are indices, and the bounds that torch's kernels hold them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ir import geometry
from ir.dims import Dim, Expr, product
from ir.graph import Value
from ir.types import DType

Args = Mapping[str, Any]
MASKS = (DType.bool, DType.uint8)


class Bound(NamedTuple):
    """Indices, the lowest that torch's kernel takes, the size that they are below, and one that it leaves out."""

    indices: Value
    lowest: Dim
    size: Dim
    ignored: int | None = None


def _axis(x: Value, dim: int) -> Dim:
    size: Dim = x.type.shape[geometry.axis(dim, x.type.rank)] if x.type.rank else 1
    return size


def _rows(args: Args) -> Iterator[Bound]:
    yield Bound(args["indices"], 0, args["weight"].type.shape[0])
    if isinstance(offsets := args.get("offsets"), Value):
        yield Bound(offsets, 0, args["indices"].type.shape[0] + 1)


def _along(args: Args) -> Iterator[Bound]:
    yield Bound(args["index"], 0, _axis(args["self"], args["dim"]))


def _filled(args: Args) -> Iterator[Bound]:
    size = _axis(args["self"], args["dim"])
    yield Bound(args["index"], -size, size)


def _flat(args: Args) -> Iterator[Bound]:
    size = product(args["self"].type.shape)
    yield Bound(args["index"], -size, size)


def _along_or_flat(args: Args) -> Iterator[Bound]:
    if args["dim"] is None:
        yield Bound(args["indices"], 0, product(args["self"].type.shape))
    else:
        size = _axis(args["self"], args["dim"])
        yield Bound(args["indices"], -size, size)


def _indexed(args: Args) -> Iterator[Bound]:
    """A mask stands for as many axes as it has."""
    axis, shape = 0, args["self"].type.shape
    for index in args["indices"]:
        is_mask = isinstance(index, Value) and index.type.dtype in MASKS
        if isinstance(index, Value) and not is_mask:
            yield Bound(index, -shape[axis], shape[axis])
        axis += index.type.rank if is_mask else 1


def _classes(args: Args) -> Iterator[Bound]:
    x, target = args["self"].type, args["target"]
    if target.type.dtype.is_integer:
        yield Bound(target, 0, x.shape[min(1, x.rank - 1)] if x.rank else 1, args.get("ignore_index"))


def _labels(args: Args) -> Iterator[Bound]:
    x = args["self"].type
    yield Bound(args["target"], -1, x.shape[-1] if x.rank else 1)  # -1 ends the labels of a sample


def _one_hot(args: Args) -> Iterator[Bound]:
    if isinstance(args["num_classes"], Expr) or args["num_classes"] > 0:
        yield Bound(args["self"], 0, args["num_classes"])


def _rules(rule: Callable[[Args], Iterator[Bound]], *names: str) -> dict[str, Callable[[Args], Iterator[Bound]]]:
    return dict.fromkeys([f"aten::{n}" for n in names], rule)


INDEXED: Mapping[str, Callable[[Args], Iterator[Bound]]] = {
    **_rules(_rows, "embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"),
    **_rules(_along, "gather", "scatter", "scatter_add", "scatter_reduce"),
    **_rules(_along, "index_select", "index_add", "index_copy", "index_reduce"),
    **_rules(_filled, "index_fill"),
    **_rules(_flat, "take", "put"),
    **_rules(_along_or_flat, "take_along_dim"),
    **_rules(_indexed, "index", "index_put", "_unsafe_index", "_unsafe_index_put"),
    **_rules(_classes, "nll_loss", "nll_loss_nd", "nll_loss2d", "cross_entropy_loss", "multi_margin_loss"),
    **_rules(_labels, "multilabel_margin_loss", "multilabel_margin_loss_forward"),
    **_rules(_one_hot, "one_hot"),
}
