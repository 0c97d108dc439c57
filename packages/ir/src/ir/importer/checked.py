"""Which of torch's kernels may run on numbers that are anyone's: those of a .pt2 file.

Many kernels trust what they are given: `max_pool2d_with_indices_backward` writes to wherever its indices say, and an
integer division of the least number by -1 ends the process. What a file asks for is run by kernels alone that look at
what they read, and by torch's own Python and composite functions over these. Verification runs the functions that
torch documents besides: whoever calls them gives them any numbers.
"""

from __future__ import annotations

import contextlib
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import cache, partial, wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ir.errors import RefusedError
from ir.importer.memory_bound import check_memory
from ir.importer.schema import op_schema
from ir.importer.torch_api import (
    DispatchKey,
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    decompositions,
    has_kernel,
    overload_name,
    pytree,
    run_kernel,
    schema_of,
)
from ir.importer.unchecked_numbers import LOOPS, base_name, check_numbers, is_division, is_looked_into
from ir.importer.without_storage import UncheckedError as UncheckedError
from ir.importer.without_storage import is_composite, run_with_storage, run_without_storage

# These look at no bounds: each with the op that gives the same view, and does (tests/ir/test_checked.py runs them all).
CHECKED_VIEWS = {"aten::_reshape_alias": "as_strided", "aten::_reshape_alias_copy": "as_strided_copy"}
# Kernels behind a public function, which checks for them, and that check all the same.
PRIVATE = frozenset({"_to_copy", "_softmax", "_log_softmax", "_local_scalar_dense"})
# Documented, and they trust their operands all the same: lengths, labels, what LAPACK gets, the size of a window, a
# scale, the memory of other layouts and of quantised tensors.
_TRUSTING = (
    "segment_reduce", "ctc_loss", "linalg_eigvals", "lu_solve", "linalg_lu_solve", "linalg_ldl_solve", "im2col",
    "*upsample_*", "*sparse*", "*mkldnn*", "*quantize*",
)  # fmt: skip
# Documented by another name: torch.unique, torch.nn.functional.grid_sample, torch.Tensor.as_strided_, the minus sign.
_OTHER_NAMES = frozenset({"_unique2", "unique_dim", "grid_sampler_3d", "as_strided", "rsub"})
_DOCUMENTED = (
    (torch, ""), (torch.Tensor, ""), (torch.nn.functional, ""), (torch.linalg, "linalg_"), (torch.fft, "fft_"),
    (torch.special, "special_"),
)  # fmt: skip
_FUSED = frozenset({"mkldnn", "mkl"})  # namespaces of what the eager target's passes write
_NO_MEMORY = "bad_alloc", "can't allocate memory", "not enough memory"  # torch's words
_FLAGS = threading.RLock()  # torch.backends' are those of the process
_MOST_ROUNDS = 100_000  # of all loops of a program together: where one ends data says
_MOST_SECONDS = 60  # of all loops of a program together, beyond their first rounds


@cache
def is_checked(overload: OpOverload) -> bool:
    """True for kernels that read and write nothing but their tensors' elements, whatever numbers are in them.

    torch's tags tell: what is pointwise moves nothing, and the core operators check; so do its views, and what takes
    no tensor has none to read beside. Private kernels leave that to the function in front of them, backward ones
    trust the indices of the forward ones, and some functions loop as often as an operand says.
    """
    schema, name = schema_of(overload), base_name(overload)
    if not schema.name.startswith("aten::") or name.endswith("_backward") or any(w in name for w in LOOPS):
        return False
    if torch.Tag.pointwise in overload.tags or is_division(overload):
        return True  # floor_divide has no tag
    if (name.startswith("_") and name not in PRIVATE) or torch.Tag.inplace_view in overload.tags:
        return False
    known = op_schema(overload)
    if known.functional is not None:
        return is_checked(known.functional.target)
    if not {torch.Tag.core, torch.Tag.view_copy}.isdisjoint(overload.tags):  # the second: lift_fresh_copy
        return True
    return not known.writes and (bool(known.views) or not any("Tensor" in str(a.type) for a in schema.arguments))


@cache
def is_documented(overload: Any) -> bool:
    """True for a function of torch's that has a documentation: it looks at its arguments, or its kernels do.

    tests/ir/test_checked.py runs them all on arguments of chance, and has found most of _TRUSTING.
    """
    if not isinstance(overload, OpOverload) or not schema_of(overload).name.startswith("aten::"):
        return False
    known, name = op_schema(overload), base_name(overload)
    if name in _OTHER_NAMES:
        return True
    if (
        torch.Tag.nondeterministic_seeded in overload.tags
        and known.writes == known.names[:1]
        and len(known.tensors) == 1
    ):
        return True  # fills a tensor: those are methods
    if any(fnmatchcase(name, pattern) for pattern in _TRUSTING):
        return False
    if known.writes:
        functional = known.functional is not None and is_documented(known.functional.target)
        method = known.writes == known.names[:1] and torch.Tag.inplace_view not in overload.tags  # as resize_ has it
        return functional or (method and _has_documentation(getattr(torch.Tensor, f"{name}_", None)))
    found = [getattr(m, name.removeprefix(p), None) for m, p in _DOCUMENTED if name.startswith(p)]
    return name in _called_by_functional() or any(map(_has_documentation, found))


def _has_documentation(function: Any) -> bool:
    return callable(function) and bool(function.__doc__)


@cache
def _called_by_functional() -> frozenset[str]:
    """The names by which the functions of torch.nn.functional call torch: "log_sigmoid" for logsigmoid."""
    named: set[str] = set()
    for function in vars(torch.nn.functional).values():
        if callable(function) and function.__doc__:
            named |= {getattr(function, "__name__", ""), *getattr(getattr(function, "__code__", None), "co_names", ())}
    return frozenset(name for name in named if not name.startswith("_"))


class Checked(TorchDispatchMode):
    """Inside of the block torch runs no kernel but checked ones.

    A composite op, and one that torch's table decomposes, is run by its parts, each of them in turn. Branches and loops
    run their graphs in the same way.

    Args:
        documented: documented functions are run as well.
        fused: and what targets write for them.
        decomposed: what torch's table decomposes is. Decompositions may choose other strides than the kernels do.

    Raises:
        UncheckedError: in the place of running another.
    """

    supports_higher_order_operators = True

    def __init__(self, documented: bool = False, fused: bool = False, decomposed: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._open: list[Any] = []  # whose parts are run; one that is a part of itself has none
        self._documented, self._fused, self._decomposed = documented, fused, decomposed
        self.trusted = False  # within a documented function
        self._guards: list[Any] = []  # of the blocks in which this mode is on
        self._rounds = 0  # that loops have begun
        self._seconds, self._since = 0.0, 0.0  # that they took; when the outermost began, 0 outside of all

    def __enter__(self) -> Any:
        guard: Any = contextlib.nullcontext() if self._open else _Called(self)
        self._guards.append(guard)
        guard.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._guards.pop().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*self._guarded(func, args), **self._guarded(func, kwargs))
        check_numbers(func, args, kwargs)
        check_memory(func, args, kwargs)
        if is_checked(func) or (self._documented and (self.trusted or is_documented(func))):
            return func(*args, **kwargs)
        if self._fused and isinstance(func, OpOverload) and func.namespace in _FUSED:
            return func(*args, **kwargs)
        parts = _parts(func, self._decomposed) if func not in self._open else None
        made = NotImplemented if parts is None else self._run(func, parts, args, kwargs)
        if made is NotImplemented:  # by some decompositions of torch's, of some arguments
            raise UncheckedError(f"{func} is not run on these numbers")
        return made

    def _run(self, func: Any, parts: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._open.append(func)
        try:
            with self:
                return _run(parts, func, args, kwargs)
        finally:
            self._open.pop()

    def _guarded(self, func: HigherOrderOperator, arguments: Any) -> Any:
        """The arguments of a branch or a loop, whose graphs are run within this mode."""

        def guarded(graph: Any) -> Any:
            again = False

            def run(*args: Any, **kwargs: Any) -> Any:
                nonlocal again
                with self._round(func) if again else contextlib.nullcontext():
                    again = True
                    with self:
                        return graph(*args, **kwargs)

            return run

        graphs = torch.fx.GraphModule, types.FunctionType, types.MethodType
        return pytree.tree_map(lambda a: guarded(a) if isinstance(a, graphs) else a, arguments)

    @contextlib.contextmanager
    def _round(self, func: HigherOrderOperator) -> Iterator[None]:
        """One more round of a loop, which may be one of an outer one's: all of them together have an end."""
        self._rounds += 1
        now, outermost = time.monotonic(), not self._since
        if self._rounds > _MOST_ROUNDS:
            raise UncheckedError(f"{func} is not run any more after {_MOST_ROUNDS} rounds of loops")
        if self._seconds + (0 if outermost else now - self._since) > _MOST_SECONDS:
            raise UncheckedError(f"{func} is not run any more after {_MOST_SECONDS} seconds of loops")
        self._since = now if outermost else self._since
        try:
            yield
        finally:
            if outermost:
                self._seconds, self._since = self._seconds + time.monotonic() - self._since, 0.0


def kernels_of_file() -> Checked:
    """The mode in which a file's program shows where its kernels give views: decompositions may choose other strides.

    Documented functions run in it, as in `verifying`.
    """
    return Checked(documented=True, decomposed=False)


class _Called(TorchFunctionMode):
    """Tells the mode of what a program calls by its name: there, the kernels behind a documented function may run."""

    def __init__(self, mode: Checked) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.max_pool1d.default:  # whose own kernel, which no mode sees, trusts the window
            return torch.ops.aten.max_pool1d_with_indices.default(*args, **(kwargs or {}))[0]
        if isinstance(func, OpOverload) and is_looked_into(func):
            check_numbers(func, args, kwargs or {})
        before, name = self._mode.trusted, str(getattr(func, "__name__", ""))
        self._mode.trusted = is_documented(func)
        try:
            with _without_mkldnn() if name.startswith("lstm") else contextlib.nullcontext():
                return _run(func, func, args, kwargs or {})
        finally:
            self._mode.trusted = before


@cache
def reads_unchecked(overload: Any) -> bool:
    """True for a function that may read its operands itself, past all kernels that look at them."""
    return is_composite(overload) and not is_checked(overload) and not is_documented(overload)


def _run(call: Any, overload: Any, args: Any, kwargs: Any) -> Any:
    if reads_unchecked(overload):
        return run_without_storage(call, overload, args, kwargs)
    return call(*args, **kwargs)


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    """A block in which torch computes an LSTM by its own parts: that of mkldnn trusts the shapes of its weights."""
    with _FLAGS, torch.backends.mkldnn.flags(enabled=False):
        yield


_verifying: ContextVar[bool] = ContextVar("verifying", default=False)


@contextlib.contextmanager
def verifying(fused: bool = False) -> Iterator[None]:
    """Inside of the block a file's program is run: by checked kernels and by documented functions.

    An artifact of it may use `fused` ones: its passes put them in the place of ops that have run on the same operands.

    Raises:
        UncheckedError: it calls something else.
    """
    if _verifying.get():
        yield
        return
    token = _verifying.set(True)
    try:
        with Checked(documented=True, fused=fused):
            yield
    except UncheckedError as error:
        raise UncheckedError(
            f"a file is verified by torch's kernels that look at their operands alone, and {error}; if you trust the "
            "file, load it with torch.export.load and pass the ExportedProgram, or do not verify it"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or any(said in str(error) for said in _NO_MEMORY):
            raise RefusedError("what the file computes takes more memory than there is; do not verify it") from error
        raise
    finally:
        _verifying.reset(token)


def _parts(overload: OpOverload, decomposed: bool) -> Callable[..., Any] | None:
    """The function that computes the op by others, None if there is none."""
    if schema_of(overload).name in CHECKED_VIEWS:
        return checked_view(overload)  # type: ignore[no-any-return]
    if has_kernel(overload.name(), DispatchKey.CompositeImplicitAutograd.name):
        return _kernel(overload, DispatchKey.CompositeImplicitAutograd)
    if decomposed and overload in decompositions():
        return decompositions()[overload]
    key = DispatchKey.CompositeExplicitAutograd
    own = decomposed or not has_kernel(overload.name(), DispatchKey.CPU.name)  # else torch runs another
    return _kernel(overload, key) if own and has_kernel(overload.name(), key.name) else None


def _kernel(overload: OpOverload, key: DispatchKey) -> Callable[..., Any]:
    kernel = overload.py_kernels.get(key) or partial(run_kernel, overload, key)
    return kernel if key is DispatchKey.CompositeImplicitAutograd else partial(run_with_storage, kernel)


def checked_view(overload: Any) -> Any:
    """The op that gives the same view and looks at its bounds, where this one looks at none; else this one."""
    if not isinstance(overload, OpOverload):
        return overload
    other = CHECKED_VIEWS.get(schema_of(overload).name)
    return overload if other is None else getattr(getattr(torch.ops.aten, other), overload_name(overload))


def checking(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with no kernels in it but checked ones."""

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        with Checked():
            return fn(*args, **kwargs)

    return run
