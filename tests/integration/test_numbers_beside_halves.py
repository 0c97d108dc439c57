"""Numbers that float16 has not, or few digits of, beside tensors of halves: torch computes with them in float32."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ir
from ir.importer.torch_api import OpOverloadPacket, operator_names, schema_of
from ir.passes.promote import IN_SINGLE

X = torch.tensor([0.0, -0.0, 1, -1, 0.5, -3.25, 10, 20, -20, 65504, -65504, 6.1e-5, 6e-8, torch.inf, -torch.inf, 3.1])
M = X[2:6].view(2, 2)
OPS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "mul": lambda x, m, n: x * n,
    "div": lambda x, m, n: x / n,
    "addcmul": lambda x, m, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, m, n: torch.addcdiv(x, x, x + 1, value=n),
    "leaky_relu": lambda x, m, n: F.leaky_relu(x, n),
    "softplus": lambda x, m, n: F.softplus(x, n),
    "addmm": lambda x, m, n: torch.addmm(m, m, m, beta=n, alpha=n),
    "addbmm": lambda x, m, n: torch.addbmm(m, m[None], m[None], beta=n, alpha=n),
    "baddbmm": lambda x, m, n: torch.baddbmm(m[None], m[None], m[None], beta=n, alpha=n),
    "add": lambda x, m, n: torch.add(x, x, alpha=n),
    "sub": lambda x, m, n: torch.sub(x - n, x, alpha=n),
    "rsub": lambda x, m, n: torch.rsub(x, x, alpha=n),
    "multiply": lambda x, m, n: torch.multiply(x, n),
    "divide": lambda x, m, n: torch.divide(x, n),
    "true_divide": lambda x, m, n: torch.true_divide(x, n),
    "subtract": lambda x, m, n: torch.subtract(x - n, x, alpha=n),
}


def test_each_op_is_tried() -> None:
    assert list(OPS) == list(IN_SINGLE)


# Ops in which such a number counts as well, and that need no entry.
OTHERWISE = {
    "normal", "normal_functional", "cauchy", "exponential", "geometric", "log_normal", "uniform", "rrelu",  # random
    "celu", "elu", "softshrink", "floor_divide",  # their forms compute so
    "linalg_vector_norm", "norm", "pairwise_distance",  # powers of sums, in float32
    "_sparse_addmm", "_test_serialization_subcmul", "_addmm_activation",  # of no dense model
}  # fmt: skip
# Written as other ops, and with the number as float16 has it.
NOT_YET = {"lerp", "trapezoid", "trapz", "cumulative_trapezoid", "threshold"}


def counts(overload: Any) -> bool:
    """Whether the digits that float16 has not of some number change a result in float16."""
    formal = schema_of(overload).arguments
    kinds = {a.name: str(a.type) for a in formal}
    numbers = [name for name, kind in kinds.items() if kind in ("number", "Optional[number]", "float")]
    if any(not a.has_default_value() for a in formal if kinds[a.name] != "Tensor" and a.name not in numbers):
        return False
    given = {a.name: 1.0 for a in formal if a.name in numbers and not a.has_default_value()}
    for x in (X[2:], M, M[None]):
        given |= {name: x.half() for name, kind in kinds.items() if kind == "Tensor"}
        for name, number in itertools.product(numbers, (1e-6 / 3, 3e-6, 1 / 3, 3e5)):
            made = []
            with contextlib.suppress(RuntimeError, NotImplementedError, ValueError, IndexError):
                for taken in (number, float(torch.tensor(number).half())):
                    torch.manual_seed(0)
                    made.append(overload(**{**given, name: taken}))
            halves = len(made) == 2 and isinstance(made[0], Tensor) and made[0].dtype is torch.float16
            if halves and not torch.equal(*(t.nan_to_num(7) for t in made)):
                return True
    return False


def test_ops_in_which_such_numbers_count() -> None:
    """Of all that take tensors and numbers."""
    found = set()
    for op in operator_names():
        name = op.removeprefix("aten::")
        packet = getattr(torch.ops.aten, name, None) if op != name else None
        if not isinstance(packet, OpOverloadPacket) or name.endswith("_") or "backward" in name:
            continue
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        if any(counts(o) for o in overloads if not schema_of(o).is_mutable and "Tensor" in str(schema_of(o))):
            found.add(name)
    assert found >= {"mul", "div", "addcmul", "addmm"}
    assert found - OTHERWISE - NOT_YET <= {*IN_SINGLE}
    assert found >= OTHERWISE | NOT_YET
    # in sums it is the factor that overflows; the operands of addbmm are of unequal ranks
    assert {*IN_SINGLE} - found == {"add", "sub", "subtract", "rsub", "addbmm"}


@pytest.mark.parametrize("target", ["onnx", "nnef"])
@pytest.mark.parametrize("number", [1e-6, 1e6, 3.0, -3.0])
@pytest.mark.parametrize("name", OPS)
def test_a_number_beside_halves_has_all_its_digits(name: str, number: float, target: str) -> None:
    args, op = (X.half(), M.half()), OPS[name]
    try:
        wanted = op(*args, number)
    except RuntimeError:
        pytest.skip("torch takes no such number here")
    found = ir.export(lambda x, m: op(x, m, number), args, target=target)(*args)
    torch.testing.assert_close(found, wanted, rtol=4e-3, atol=1.2e-7, equal_nan=True)
