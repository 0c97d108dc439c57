"""Products; half precision sums in float32."""

from ir import geometry
from ir.types import DType
from stablehlo_backend.handlers.elementwise import wide
from stablehlo_backend.registry import register as op


def product(h, a, b, batch, contracted):
    if a.type.dtype is DType.bool:
        h.refuse("a product of bool tensors; cast them to integers")
    return h.cast(h.reshape(h.dot(wide(h, a), wide(h, b), batch, contracted), h.out.shape), h.out.dtype)


@op("aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot")
def matmul(h, self, other=None, mat2=None, vec=None, tensor=None):
    a, b = self, next(x for x in (other, mat2, vec, tensor) if x is not None)
    rank = a.type.rank
    if b.type.rank <= 2:
        return product(h, a, b, ((), ()), ((rank - 1,), (0,)))
    a = a if rank > 1 else h.unsqueeze(a, [0])
    lead = geometry.broadcast(a.type.shape[:-2], b.type.shape[:-2])
    a, b = (h.broadcast(x, (*lead, *x.type.shape[-2:])) for x in (a, b))
    n = len(lead)
    return product(h, a, b, (range(n), range(n)), ((n + 1,), (n,)))


@op("aten::linear")
def linear(h, input, weight, bias=None):
    made = h.dot(wide(h, input), wide(h, weight), ((), ()), ((input.type.rank - 1,), (weight.type.rank - 1,)))
    return h.cast(made if bias is None else h.emit("add", made, wide(h, bias)), h.out.dtype)
