"""Einstein summation: onnxruntime's own operator, and products of matrices where an operand may be empty."""

from __future__ import annotations

import string

from ir.dims import product as prod
from onnx_backend.handlers.matmul import product
from onnx_backend.registry import register as op


@op("aten::einsum")
def einsum(h, equation, tensors, path=None):
    """The order of contraction (`path`) is onnxruntime's own business."""
    dtype = tensors[0].type.dtype
    if not (dtype.is_float or (dtype.is_integer and dtype.bits >= 32)):
        h.refuse(f"onnxruntime has no Einsum of {dtype}")
    equation = equation.replace(" ", "")
    dots = {_ellipsis(t, part) for t, part in zip(tensors, equation.split("->")[0].split(","))}
    if any(h.may_be_empty(s) for t in tensors for s in t.type.shape):  # where its Einsum ends the process
        return _by_products(h, *_labels(h, equation, tensors), tensors)
    if "..." in equation and len(dots) > 1:
        h.refuse("onnxruntime's Einsum does not broadcast what the ellipsis stands for")
    return h.emit("Einsum", *tensors, equation=equation, shape=h.out.shape)


def _ellipsis(x, part):
    """The sizes that an operand's ellipsis stands for."""
    before, dots, after = part.partition("...")
    return x.type.shape[len(before) : x.type.rank - len(after)] if dots else ()


def _labels(h, equation, tensors):
    """A letter for each axis of each operand, and for each of the result."""
    left, arrow, right = equation.partition("->")
    parts = left.split(",")
    if not arrow:  # in alphabetical order what stands once, as torch has it
        right = ("..." if "..." in left else "") + "".join(
            sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        )
    free = iter(c for c in string.ascii_letters if c not in equation)
    dots = [next(free) for _ in range(max(len(_ellipsis(t, p)) for t, p in zip(tensors, parts)))]
    spelled = [p.replace("...", "".join(dots[len(dots) - len(_ellipsis(t, p)) :])) for t, p in zip(tensors, parts)]
    if any(len(set(p)) < len(p) for p in spelled):
        h.refuse("onnxruntime's Einsum ends the process where an operand is empty, and a letter twice is a diagonal")
    return spelled, right.replace("...", "".join(dots))


def _by_products(h, terms, result, tensors):
    x, labels = tensors[0], terms[0]
    for i, (y, more) in enumerate(zip(tensors[1:], terms[1:]), 2):
        x, labels = _pair(h, x, labels, y, more, set("".join([result, *terms[i:]])))
    x, labels = _summed(h, x, labels, set(result))
    return h.transpose(x, [labels.index(c) for c in result])


def _pair(h, x, a, y, b, kept):
    """The product of two operands, and its letters: those of both, of the first, of the second."""
    x, a = _summed(h, x, a, kept | set(b))
    y, b = _summed(h, y, b, kept | set(a))
    sizes = dict(zip(a, x.type.shape))
    sizes |= {c: s for c, s in zip(b, y.type.shape) if sizes.get(c, 1) == 1}  # a size of 1 is broadcast
    both, inner = [c for c in a if c in b and c in kept], [c for c in a if c in b and c not in kept]
    first, second = [c for c in a if c not in b], [c for c in b if c not in a]

    def laid(t, labels, groups):
        t = h.transpose(t, [labels.index(c) for group in groups for c in group])
        t = h.expand(t, [sizes[c] for group in groups for c in group])
        head, *tail = groups
        return h.reshape(t, [*(sizes[c] for c in head), *(prod(sizes[c] for c in group) for group in tail)])

    made = product(h, laid(x, a, (both, first, inner)), laid(y, b, (both, inner, second)))
    letters = [*both, *first, *second]
    return h.reshape(made, [sizes[c] for c in letters]), "".join(letters)


def _summed(h, x, labels, kept):
    """An operand less the axes that nothing else has."""
    axes = [i for i, c in enumerate(labels) if c not in kept]
    return (h.reduce("ReduceSum", x, axes), "".join(c for c in labels if c in kept)) if axes else (x, labels)
