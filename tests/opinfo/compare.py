"""When a result of a target equals torch's.

float32: `|a - e| <= 1e-3 |e| + 1e-4`, float64: `1e-9 |e| + 1e-10`. Halves: 4 units in the last place, of the magnitude
and of 1 for what cancels. `e` is torch's own result in that type, or else what torch computes from the same numbers in
the next wider type, rounded: torch rounds after each of its kernels, another runtime elsewhere, and where that shows in
the result, the one nearer to the truth is right. Integers and bools are equal.
Results that their definition leaves open (signs of eigenvectors, places of equal elements in an unstable order) are
held to the definition: the properties below. Random numbers have the right dtype and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ir.importer.context import Capture
from ir.verify import Report
from ir.verify import compare as verify
from tests.opinfo.samples import Sample

BOUNDS = {  # relative and absolute
    torch.float16: (4 * 2.0**-10, 4 * 2.0**-10),
    torch.bfloat16: (4 * 2.0**-7, 4 * 2.0**-7),
    torch.float64: (1e-9, 1e-10),
    torch.complex128: (1e-9, 1e-10),
}
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def results_of(sample: Sample, inputs: Sequence[Tensor]) -> tuple[list[Any], list[Tensor]]:
    """What the operator gives, flat, and its inputs afterwards."""
    given = [t.clone() for t in inputs]
    torch.manual_seed(0)
    with torch.no_grad():
        return pytree.tree_leaves(sample(*given)), given


def in_wider_type(sample: Sample, inputs: Sequence[Tensor]) -> tuple[list[Any], list[Tensor]] | None:
    """The same in the next wider type of each tensor and dtype in the sample; None where torch cannot."""

    def widen(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to(WIDER.get(x.dtype, x.dtype))
        return WIDER.get(x, x) if isinstance(x, torch.dtype) else x

    args, kwargs = pytree.tree_map(widen, sample.call(*inputs))
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            results = pytree.tree_leaves(sample.op(*args, **kwargs))
    except Exception:
        return None
    return results, [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]


def _one(name: str, actual: Tensor, expected: Tensor, wide: Tensor | None, values: bool) -> Report:
    rtol, atol = BOUNDS.get(expected.dtype, (1e-3, 1e-4))

    def against(e: Tensor) -> Report:
        return verify([name], Capture.arrays([actual]), Capture.arrays([e]), rtol=rtol, atol=atol, values=values)

    report = against(expected)
    if not report.ok and wide is not None and wide.shape == expected.shape:
        rounded = against(wide.to(expected.dtype))
        return rounded if rounded.ok else report
    return report


def difference(
    name: str, sample: Sample, inputs: Sequence[Tensor], names: Sequence[str], actual: Sequence[Tensor],
    expected: Sequence[Tensor], wide: Sequence[Any] | None, values: bool = True,
) -> str:  # fmt: skip
    """Empty if every result is right, else what differs. `name` is the entry's, `names` are the results'."""
    wides = wide if wide is not None and len(wide) == len(expected) else [None] * len(expected)
    reports = [
        _one(n, a, e, w if isinstance(w, Tensor) else None, values)
        for n, a, e, w in zip(names, actual, expected, wides, strict=True)
    ]
    wrong = [str(r) for r in reports if not r.ok]
    if wrong and name in PROPERTIES and all("elements differ" in w for w in wrong):
        args, kwargs = sample.call(*inputs)
        return PROPERTIES[name](args, kwargs, reports, actual, expected)
    return wrong[0] if wrong else ""


# -- results by their definition ---------------------------------------------------------------------------------------

Property = Callable[[list[Any], dict[str, Any], Sequence[Report], Sequence[Tensor], Sequence[Tensor]], str]


def _near(what: str, a: Tensor, e: Tensor) -> str:
    report = verify([what], Capture.arrays([a]), Capture.arrays([e]), rtol=1e-3, atol=1e-4 * max(1, e.shape[-1]))
    return "" if report.ok else str(report)


def _orthonormal(what: str, q: Tensor) -> str:
    return _near(f"{what}^H {what}", q.mH @ q, torch.eye(q.shape[-1], dtype=q.dtype).expand(*q.shape[:-2], -1, -1))


def eigh(args: Any, kwargs: Any, reports: Any, actual: Any, expected: Any) -> str:
    """Eigenvalues as torch's; orthonormal vectors V with A V = V diag(w)."""
    (w, v), a = actual, args[0]
    lower = kwargs.get("UPLO", args[1] if len(args) > 1 else "L").upper() == "L"
    half = a.tril(-1) if lower else a.triu(1)
    a = half + half.mH + torch.diag_embed(a.diagonal(dim1=-2, dim2=-1).real).to(a.dtype)
    same = "" if reports[0].ok else str(reports[0])
    return same or _orthonormal("V", v) or _near("A V", a @ v, v * w[..., None, :].to(v.dtype))


def svd(args: Any, kwargs: Any, reports: Any, actual: Any, expected: Any) -> str:
    """Singular values as torch's; orthonormal U and V with U S V^H = A."""
    u, s, v = actual
    v = v.mH if args and kwargs.get("some") is None and v.shape != expected[2].shape else v
    k = s.shape[-1]
    again = (expected[0][..., :k] * s[..., None, :].to(u.dtype)) @ _rows_of_v(expected[2], k)
    ours = (u[..., :k] * s[..., None, :].to(u.dtype)) @ _rows_of_v(v, k)
    same = "" if reports[1].ok else str(reports[1])
    return same or _orthonormal("U", u) or _near("U S V", ours, again)


def _rows_of_v(v: Tensor, k: int) -> Tensor:
    return v[..., :k, :]


def qr(args: Any, kwargs: Any, reports: Any, actual: Any, expected: Any) -> str:
    """Orthonormal Q and upper triangular R with Q R = A."""
    q, r = actual
    return _orthonormal("Q", q) or _near("R", r, r.triu()) or _near("Q R", q @ r, args[0])


def lstsq(args: Any, kwargs: Any, reports: Any, actual: Any, expected: Any) -> str:
    """A X as torch's: of a matrix without full rank X is open."""
    return _near("A X", args[0] @ actual[0], args[0] @ expected[0])


def places(position: int, of: int = 1, ordered: bool = False) -> Property:
    """Places of equal elements are open: what lies there must be what lies at torch's places.

    `position` is where the operator takes `dim`, `of` which result holds the places; a sort's are all different.
    """

    def check(args: Any, kwargs: Any, reports: Any, actual: Any, expected: Any) -> str:
        if kwargs.get("stable") or any(not r.ok for i, r in enumerate(reports) if i != of):
            return next(str(r) for r in reports if not r.ok)
        x, dim = args[0], kwargs.get("dim", args[position] if len(args) > position else -1)
        ours, theirs = (i if i.dim() == x.dim() else i.unsqueeze(dim) for i in (actual[of], expected[of]))
        if ordered and not torch.equal(ours.sort(dim)[0], theirs.sort(dim)[0]):
            return f"{reports[of]!s}: the places are no permutation"
        return _near("what lies at the places", x.gather(dim, ours), x.gather(dim, theirs))

    return check


PROPERTIES: dict[str, Property] = {
    "linalg.eigh": eigh,
    "linalg.svd": svd,
    "linalg.qr": qr,
    "qr": qr,
    "linalg.lstsq": lstsq,
    "linalg.lstsq.grad_oriented": lstsq,
    "sort": places(1, ordered=True),
    "argsort": places(1, of=0, ordered=True),
    "topk": places(2),
    "kthvalue": places(2),
    "median": places(1),
    "nanmedian": places(1),
    "mode": places(1),
}
