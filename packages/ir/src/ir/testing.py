"""Checking a custom op: its fake, its body, torch's own opcheck, and every target, against its kernel.

>>> from ir.testing import check_op
>>> report = check_op("docs::swish", [(torch.randn(2, 3),), (torch.randn(5, 3),)], targets=["onnx"])
>>> report.ok
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Union

import torch

from ir import plugins
from ir.errors import CaptureError, ExportError, MismatchError
from ir.export import export
from ir.graph import Graph
from ir.importer.bodies import KERNELS, given_body
from ir.importer.capture import arguments, capture
from ir.importer.context import Capture
from ir.importer.custom_ops import CustomOp
from ir.importer.schema import packet_of
from ir.importer.torch_api import (
    FakeTensorMode,
    OpOverload,
    definition_name,
    overload_name,
    packet_name,
    pytree,
    schema_of,
    shape_env,
)
from ir.target import Target
from ir.target_names import KNOWN
from ir.verify import compare

OPCHECK = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@dataclass(frozen=True)
class Sample:
    """The arguments of one call of the op."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    name: str = ""

    def copy(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with tensors of their own, for ops that write to them."""
        copied: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(
            torch.Tensor, torch.clone, (self.args, dict(self.kwargs or {}))
        )
        return copied


@dataclass(frozen=True)
class Check:
    """One row of the table: what was compared with the kernel, on which sample, and how it went."""

    what: str
    sample: str
    problem: str = ""
    error: float | None = None

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class OpReport:
    """All checks of one op."""

    op: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.checks)

    def __str__(self) -> str:
        rows = [("check", "sample", "result")]
        for c in self.checks:
            found = "ok" if c.error is None or math.isnan(c.error) else f"ok, max error {c.error:.2g}"
            rows.append((c.what, c.sample, c.problem.replace("\n", "\n    ") if c.problem else found))
        widths = [max(len(r[i]) for r in rows) for i in (0, 1)]
        return "\n".join([self.op, *(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)])

    def check(self) -> OpReport:
        """The report itself.

        Raises:
            MismatchError: a check failed; the message is the whole table.
        """
        if not self.ok:
            raise MismatchError(f"{sum(not c.ok for c in self.checks)} checks failed for {self}")
        return self


def check_op(
    op: Any,
    samples: Sequence[Union[Sample, tuple[Any, ...]]],
    *,
    targets: Sequence[str | Target] | None = None,
    opcheck: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    raise_exception: bool = True,
) -> OpReport:
    """Compare everything that is known of an op with its kernel, over samples.

    Each sample is exported on its own (static). Samples that differ in nothing but values and sizes are one program
    more (dynamic), whose dimensions are dynamic where the sizes differ, run on each of them: give at least two.

    Args:
        op: an ir.CustomOp, an op of torch.ops (packet or overload), or its name.
        samples: the arguments of calls: tuples of positional arguments, a tensor alone, or `Sample(args, kwargs)`.
        targets: target names or Target objects; None takes those of this project that are installed, without "khronos".
        opcheck: run torch.library.opcheck on each sample as well.
        rtol, atol: as for Exported.verify.
        raise_exception: raise if a check fails; False only returns the report.

    Raises:
        MismatchError: a check failed; its message is the table.
        ValueError: torch knows no such op, or there are no samples.
    """
    name, called, fn = _resolve(op)
    if not samples:
        raise ValueError(f"{name}: give at least one sample")
    given = [s if isinstance(s, Sample) else Sample(arguments(s)[0]) for s in samples]
    named = [(s.name or _describe(s), s) for s in given]
    if targets is None:
        targets = [t for t in plugins.targets() if t in KNOWN and t != "khronos"]
    checks: list[Check] = []
    for label, sample in named:
        checks.append(_check("fake", label, partial(_fake, fn, sample)))
        body = given_body(name, called) or KERNELS.get(name)
        if body is not None:
            checks.append(_check("body", label, partial(_body, fn, body, sample, rtol, atol)))
        if opcheck:
            overload = getattr(fn, "default", fn)
            checks += [_check(f"opcheck {t}", label, partial(_opcheck, overload, sample, t)) for t in OPCHECK]
    groups = [g for g in _groups(named) if len(g) > 1]
    alone = [cache(partial(_static, fn, sample)) for sample in given]  # captured once for all targets
    together = [cache(partial(_dynamic, fn, group)) for group in groups]
    for target in targets:
        title = target if isinstance(target, str) else target.name
        for (label, _), graph in zip(named, alone, strict=True):
            checks.append(_check(title, label, partial(_on_target, graph, target, rtol, atol)))
        for group, graph in zip(groups, together, strict=True):
            checks += _on_every_sample(graph, group, target, f"{title}, dynamic", rtol, atol)
    report = OpReport(name, tuple(checks))
    return report.check() if raise_exception else report


def _resolve(op: Any) -> tuple[str, str, Callable[..., Any]]:
    """The op's name, that of the overload, and what to call."""
    if isinstance(op, CustomOp):
        op = op.name
    elif hasattr(op, "register_fake"):  # what torch.library.custom_op returned
        op = definition_name(op)
    if isinstance(op, str):
        base, _, overload = op.partition(".")
        packet = packet_of(base)
        if packet is None:
            raise ValueError(f"torch.library knows no op {op!r}; import what defines it first")
        return base, op, getattr(packet, overload) if overload else packet
    if isinstance(op, OpOverload):
        return schema_of(op).name, f"{schema_of(op).name}.{overload_name(op)}", op
    return packet_name(op), packet_name(op), op


def _describe(sample: Sample) -> str:
    leaves = pytree.tree_leaves((sample.args, dict(sample.kwargs or {})))
    return ", ".join("x".join(map(str, a.shape)) or "0-d" if isinstance(a, torch.Tensor) else repr(a) for a in leaves)


def _check(what: str, label: str, run: Callable[[], float | None]) -> Check:
    try:
        return Check(what, label, error=run())
    except (ExportError, AssertionError) as error:
        return Check(what, label, str(error))
    except Exception as error:
        return Check(what, label, f"{type(error).__name__}: {error}")


# -- without a target --------------------------------------------------------------------------------------------------


def _leaves(results: Any) -> list[Any]:
    return [r for r in pytree.tree_leaves(results) if r is not None]


def _kernel(fn: Callable[..., Any], sample: Sample) -> tuple[list[Any], list[torch.Tensor]]:
    """The kernel's results and what it left in its arguments."""
    args, kwargs = sample.copy()
    results = _leaves(fn(*args, **kwargs))
    return results, [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]


def _fake(fn: Callable[..., Any], sample: Sample) -> None:
    """The fake's dtypes, ranks and sizes; a size that depends on data may be anything."""
    expected, _ = _kernel(fn, sample)
    mode = FakeTensorMode(shape_env=shape_env())
    args, kwargs = pytree.tree_map_only(torch.Tensor, partial(mode.from_tensor, static_shapes=True), sample.copy())
    with mode:
        actual = _leaves(fn(*args, **kwargs))
    if len(actual) != len(expected):
        raise AssertionError(f"the fake gives {len(actual)} results, the kernel {len(expected)}")
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(e, torch.Tensor):
            continue
        sizes = [s if isinstance(s, int) else None for s in a.shape]
        fits = len(sizes) == e.ndim and all(s is None or s == t for s, t in zip(sizes, e.shape, strict=True))
        if a.dtype != e.dtype or not fits:
            raise AssertionError(f"result {i}: the fake says {a.dtype}{sizes}, the kernel {e.dtype}{list(e.shape)}")


def _body(
    fn: Callable[..., Any], body: Callable[..., Any], sample: Sample, rtol: float | None, atol: float | None
) -> float:
    expected, written = _kernel(fn, sample)
    actual, left = _kernel(body, sample)
    return _compare([*actual, *left], [*expected, *written], rtol, atol)


def _opcheck(overload: Any, sample: Sample, test: str) -> None:
    args, kwargs = sample.copy()
    found = torch.library.opcheck(overload, args, kwargs, test_utils=test, raise_exception=False)[test]
    if found != "SUCCESS":
        text = str(found).strip().splitlines()
        raise AssertionError(text[0] if text else type(found).__name__) from (
            found if isinstance(found, BaseException) else None
        )


def _compare(actual: list[Any], expected: list[Any], rtol: float | None, atol: float | None) -> float:
    if len(actual) != len(expected):
        raise AssertionError(f"{len(actual)} results, the kernel has {len(expected)}")
    names = [f"result {i}" for i in range(len(expected))]
    report = compare(names, Capture.arrays(actual), Capture.arrays(expected), rtol=rtol, atol=atol)
    return report.check().error


# -- on a target -------------------------------------------------------------------------------------------------------


class _Call(torch.nn.Module):
    """The op with everything but its tensors fixed."""

    def __init__(self, fn: Callable[..., Any], sample: Sample) -> None:
        super().__init__()
        self.fn = fn
        flat, self.spec = pytree.tree_flatten((sample.args, dict(sample.kwargs or {})))
        self.fixed = [None if isinstance(a, torch.Tensor) else a for a in flat]
        self.places = [i for i, a in enumerate(flat) if isinstance(a, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        flat = list(self.fixed)
        for place, tensor in zip(self.places, tensors, strict=True):
            flat[place] = tensor
        args, kwargs = pytree.tree_unflatten(flat, self.spec)
        return self.fn(*args, **kwargs)


def _tensors(sample: Sample) -> tuple[torch.Tensor, ...]:
    return tuple(a for a in pytree.tree_leaves(sample.copy()) if isinstance(a, torch.Tensor))


def _static(fn: Callable[..., Any], sample: Sample) -> Graph:
    return capture(_Call(fn, sample), _tensors(sample))


def _on_target(graph: Callable[[], Graph], target: str | Target, rtol: float | None, atol: float | None) -> float:
    program = export(graph(), target=target)
    try:
        return program.verify(rtol=rtol, atol=atol).error
    finally:
        _close(program)


def _largest(inputs: Sequence[tuple[torch.Tensor, ...]]) -> int:
    """torch.export takes a size of 0 or 1 for a constant: trace where the sizes are largest."""
    return max(range(len(inputs)), key=lambda i: sum(t.numel() for t in inputs[i]))


def _dynamic(fn: Callable[..., Any], group: Sequence[tuple[str, Sample]]) -> Graph:
    """One graph with dynamic sizes for every sample of the group."""
    inputs = [_tensors(s) for _, s in group]
    first = _largest(inputs)
    call = _Call(fn, group[first][1])
    try:
        return capture(call, inputs[first], dynamic_shapes=(_dimensions(inputs, first, shared=True),))
    except CaptureError:  # sizes that agree by chance, or depend on each other
        return capture(call, inputs[first], dynamic_shapes=(_dimensions(inputs, first, shared=False),))


def _on_every_sample(
    graph: Callable[[], Graph],
    group: Sequence[tuple[str, Sample]],
    target: str | Target,
    title: str,
    rtol: float | None,
    atol: float | None,
) -> Iterator[Check]:
    """One program with dynamic sizes, run on every sample of the group."""
    inputs = [_tensors(s) for _, s in group]
    try:
        program = export(graph(), target=target)
    except Exception as error:
        yield Check(title, group[_largest(inputs)][0], f"{type(error).__name__}: {error}")
        return
    for (label, _), tensors in zip(group, inputs, strict=True):
        yield _check(title, label, partial(_verify, program, tensors, rtol, atol))
    _close(program)


def _dimensions(inputs: Sequence[tuple[torch.Tensor, ...]], first: int, shared: bool) -> Any:
    """The sizes that differ between samples; those that agree in each sample are one dimension if `shared`."""
    names: dict[tuple[int, ...], Any] = {}
    shapes = []
    for i, tensor in enumerate(inputs[first]):
        found: dict[int, Any] = {}
        for axis in range(tensor.ndim):
            sizes = tuple(other[i].shape[axis] for other in inputs)
            if len(set(sizes)) > 1:
                new = torch.export.Dim(f"d{len(names)}", min=min(sizes))
                found[axis] = names.setdefault(sizes, new) if shared else torch.export.Dim.AUTO
        shapes.append(found)
    return tuple(shapes)


def _verify(program: Any, tensors: Any, rtol: float | None, atol: float | None) -> float:
    error: float = program.verify(tensors, rtol=rtol, atol=atol).error
    return error


def _close(program: Any) -> None:
    close = getattr(program.__dict__.get("runner"), "close", None)
    if close is not None:
        close()


def _groups(named: Sequence[tuple[str, Sample]]) -> list[list[tuple[str, Sample]]]:
    """Samples that one program can serve: equal but for the sizes and contents of their tensors, not all alike."""
    groups: dict[Any, list[tuple[str, Sample]]] = {}
    for label, sample in named:
        flat, spec = pytree.tree_flatten((sample.args, dict(sample.kwargs or {})))
        kinds = tuple((a.dtype, a.ndim) if isinstance(a, torch.Tensor) else repr(a) for a in flat)
        groups.setdefault((kinds, str(spec)), []).append((label, sample))
    return [g for g in groups.values() if len({tuple(t.shape for t in _tensors(s)) for _, s in g}) > 1]


__all__ = ["Check", "OpReport", "Sample", "check_op"]
