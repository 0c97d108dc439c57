"""autograd.Function classes: one op of the graph each, where torch.export would trace what their `forward` does.

While a model is captured (`kept`), `Cls.apply` of a class with a static `symbolic`, or of one given to
`op_from_function`, calls an op of torch.library whose kernel is `Cls.apply` itself. Every other class is traced
through, as torch does. Aliases taken before (`my_add = MyAdd.apply`) are caught as well, at the class's `forward`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer.custom_ops import CustomOp, define, fake_skeleton
from ir.importer.schema import declared
from ir.importer.swapping import swapped
from ir.importer.torch_api import (
    FakeTensor,
    detect_fake_mode,
    disable_current_modes,
    disable_torch_function,
    pytree,
    version_of,
)

Fn = Callable[..., Any]
NAMESPACE = "autograd_function"
FUNCTIONS: dict[str, type] = {}  # op name -> the class that it stands for
_OPS: dict[tuple[type, tuple[str, ...] | None], CustomOp] = {}  # by class and argument types; None serves all types
_FUNCTION: Any = torch.autograd.Function
_APPLY: Any = vars(_FUNCTION)["apply"]
_CAPTURING: ContextVar[set[type] | None] = ContextVar("capturing", default=None)  # classes that became an op so far
_TYPES: tuple[tuple[type | tuple[type, ...], str], ...] = (  # the first that fits; bool is an int in Python
    (torch.Tensor, "Tensor"), (bool, "bool"), ((int, torch.SymInt), "SymInt"), ((float, torch.SymFloat), "float"),
    (str, "str"), (torch.dtype, "ScalarType"), (torch.device, "Device"), (torch.layout, "Layout"),
    (torch.memory_format, "MemoryFormat"),
)  # fmt: skip


def op_from_function(
    cls: type,
    name: str | None = None,
    *,
    schema: str | None = None,
    fake: Fn | None = None,
    mutates_args: tuple[str, ...] = (),
) -> CustomOp:
    """The custom op of an autograd.Function: `forward` is its kernel, `symbolic` (if any) its ONNX form.

    `cls.apply` in a captured model becomes one node of this op. It has a body where `forward` is made of torch
    functions; otherwise give it one with `.body`, or handlers. Gradients are the class's own.

    Args:
        cls: the class, with or without a static `symbolic`.
        name: "namespace::name"; by default "autograd_function::" and the class's name.
        schema: "(Tensor a, float eps=1e-5) -> Tensor". By default it is read off `forward`: annotations where there are
            any, otherwise the types of the default values, otherwise tensors; one tensor as the result.
        fake: `(*args) -> empty results`: shapes and dtypes, where `forward` cannot run on fake tensors.
        mutates_args: names of the arguments that `forward` writes to.

    Raises:
        ValueError: the class has an op already, or a parameter's type has no form in a schema.

    Examples:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ...         return 2 * x
        >>> op = ir.op_from_function(Double, "docs::double")
        >>> ir.export(Double.apply, args, target="onnx", verify=True)(*args).shape
        torch.Size([4, 3])
    """
    if (cls, None) in _OPS:
        raise ValueError(f"{cls.__qualname__} has the op {_OPS[cls, None].name} already")
    op = _register(cls, name or _free_name(cls), schema or _declared_schema(cls, mutates_args), fake)
    _OPS[cls, None] = op
    return op


@contextlib.contextmanager
def kept(met: set[type]) -> Iterator[None]:
    """Inside of the block, `apply` on fake tensors calls the class's op; outside, and on errors, all is as before.

    `met` receives the classes for which that happened. Who took `Cls.apply` before the block calls torch's own, which
    reads `forward` off the class: so the classes that exist have another `forward` as well.
    """
    made = [(cls, staticmethod(_op_or(cls, cls.forward))) for cls in _subclasses(_FUNCTION) if _is_known(cls)]
    token = _CAPTURING.set(met)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(swapped(_FUNCTION, "apply", classmethod(_apply)))
            for cls, forward in made:
                stack.enter_context(swapped(cls, "forward", forward))
            yield
    finally:
        _CAPTURING.reset(token)


def _subclasses(cls: Any) -> Iterator[Any]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _is_known(cls: type) -> bool:
    return (cls, None) in _OPS or callable(getattr(cls, "symbolic", None))


def _apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    op = _op(cls, args, kwargs)
    return _APPLY.__get__(None, cls)(*args, **kwargs) if op is None else op()


def _op_or(cls: type, forward: Fn) -> Fn:
    """`forward`, or the class's op while a model is captured."""
    contexts = 0 if _has_setup_context(cls) else 1

    def chosen(*args: Any, **kwargs: Any) -> Any:
        op = _op(cls, args[contexts:], kwargs)
        return forward(*args, **kwargs) if op is None else op()

    return functools.wraps(forward)(chosen)


def _op(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fn | None:
    """The call of the class's op with these arguments; None where the class is applied as torch does it."""
    met = _CAPTURING.get()
    fakes = any(isinstance(a, FakeTensor) for a in pytree.tree_leaves((args, kwargs)))
    if met is None or not fakes or not _is_known(cls):
        return None
    met.add(cls)
    op = _OPS.get((cls, None))
    if op is not None:
        return functools.partial(op, *args, **kwargs)
    args = tuple(tuple(a) if isinstance(a, list) else a for a in _positional(cls, args, kwargs))
    types = tuple(_schema_type(cls, i, a) for i, a in enumerate(args))
    if (cls, types) not in _OPS:
        _OPS[cls, types] = _infer(cls, types, args)
    return functools.partial(_OPS[cls, types], *args)


def _positional(cls: type, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
    if not kwargs:
        return args
    bound = _signature(cls).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def _signature(cls: type) -> inspect.Signature:
    """The arguments of `apply`: those of `forward`, without the context if it takes one."""
    signature = inspect.signature(cls.forward)  # type: ignore[attr-defined]
    if _has_setup_context(cls):
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _has_setup_context(cls: Any) -> bool:
    return cls.setup_context is not _FUNCTION.setup_context


# -- the op ------------------------------------------------------------------------------------------------------------


def _register(cls: type, name: str, schema: str, fake: Fn | None) -> CustomOp:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        token = _CAPTURING.set(None)  # what `forward` applies in turn is its own business
        try:
            with torch.no_grad():
                return cls.apply(*args, **kwargs)  # type: ignore[attr-defined]
        finally:
            _CAPTURING.reset(token)

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        return cls.apply(*args, **kwargs)  # type: ignore[attr-defined]

    kernel.__name__, kernel.__doc__, kernel.__module__ = cls.__name__, cls.__doc__, cls.__module__
    op = define(name, kernel, schema, fake=fake or _explained(cls, kernel), gradient=differentiable)
    FUNCTIONS[name] = cls
    return op


def _explained(cls: type, kernel: Fn) -> Fn:
    """The kernel on fake tensors, with an error that says what to do where it cannot run on them."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except Exception as error:
            raise CaptureError(_cannot_run(cls, error)) from error

    return fake


def _cannot_run(cls: type, error: Exception) -> str:
    return (
        f"{cls.__qualname__}.forward does not run on tensors without data, so the shapes of its results are unknown: "
        f"{str(error).splitlines()[0]}\n  say them, before the export:\n"
        f"    op = ir.op_from_function({cls.__name__}, fake={fake_skeleton(_signature(cls))})"
    )


def _infer(cls: type, types: tuple[str, ...], args: tuple[Any, ...]) -> CustomOp:
    """The op for arguments of these types; a run on fakes counts its results and finds writes to arguments."""
    names = _argument_names(cls, len(args))
    results, written = _probe(cls, args)
    flat = results if isinstance(results, (tuple, list)) else (results,)
    if not all(isinstance(r, torch.Tensor) for r in flat):
        raise CaptureError(
            f"{cls.__qualname__}.forward returns {[type(r).__name__ for r in flat]}: only tensors can be results"
        )
    returns = ", ".join("Tensor" for _ in flat)
    returns = returns if isinstance(results, torch.Tensor) else f"({returns})" if len(flat) > 1 else "Tensor[]"
    mutated = tuple(names[i] for i in written)
    formal = ", ".join(
        f"{_written(t, i) if n in mutated else t} {n}" for i, (t, n) in enumerate(zip(types, names, strict=True))
    )
    return _register(cls, _free_name(cls), f"({formal}) -> {returns}", None)


def _written(type: str, index: int) -> str:
    return type.replace("Tensor", f"Tensor(a{index}!)", 1)


def _probe(cls: type, args: tuple[Any, ...]) -> tuple[Any, list[int]]:
    """The results of `forward` on fake tensors, out of sight of the tracer, and the arguments that it wrote to."""
    mode: Any = detect_fake_mode(args)
    token = _CAPTURING.set(None)
    try:
        with disable_current_modes(), disable_torch_function(), torch.no_grad(), mode:
            fresh = (
                contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.ignore_fresh_unbacked_symbols()
            )
            with fresh:
                copies = pytree.tree_map_only(torch.Tensor, torch.clone, args)
                before = [version_of(a) if isinstance(a, torch.Tensor) else 0 for a in copies]
                results = cls.apply(*copies)  # type: ignore[attr-defined]
                after = [version_of(a) if isinstance(a, torch.Tensor) else 0 for a in copies]
    except Exception as error:
        raise CaptureError(_cannot_run(cls, error)) from error
    finally:
        _CAPTURING.reset(token)
    return results, [i for i, (b, a) in enumerate(zip(before, after, strict=True)) if a != b]


# -- names and types ---------------------------------------------------------------------------------------------------


def _free_name(cls: type) -> str:
    base = f"{NAMESPACE}::{cls.__name__}"
    name, n = base, 1
    while name in FUNCTIONS:
        n += 1
        name = f"{base}_{n}"
    return name


def _argument_names(cls: type, count: int) -> list[str]:
    """A schema's name for each argument of `apply`; those taken by *args are numbered."""
    names: list[str] = []
    for p in _signature(cls).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}_{i}" for i in range(count - len(names))]
        else:
            names.append(p.name)
    return names[:count]


def _schema_type(cls: type, index: int, arg: Any) -> str:
    """The type of a schema that holds this argument."""
    if arg is None:
        return "Tensor?"
    if isinstance(arg, (tuple, list)):
        if not arg:
            return "SymInt[]"
        inner = {_schema_type(cls, index, a) for a in arg}
        inner = {"float"} if inner == {"float", "SymInt"} else {"Tensor?"} if inner == {"Tensor", "Tensor?"} else inner
        if len(inner) == 1:
            return f"{inner.pop()}[]"
    for types, name in _TYPES:
        if isinstance(arg, types):
            return name
    names = _argument_names(cls, index + 1)
    raise CaptureError(
        f"the argument {names[index]!r} of {cls.__qualname__} is {arg!r:.80}, a {type(arg).__name__}, which no op can "
        f"hold; pass tensors, numbers, strings, dtypes or lists of one of them"
    )


def _declared_schema(cls: type, mutates: tuple[str, ...]) -> str:
    """The schema that `forward` declares by annotations and default values."""
    parameters = []
    try:
        hints = typing.get_type_hints(cls.forward)  # type: ignore[attr-defined]
    except NameError:  # names that exist for type checkers only
        hints = {}
    for p in _signature(cls).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise ValueError(f"{cls.__qualname__}.forward takes *{p.name}: give op_from_function a schema=")
        annotation = hints.get(p.name, Any)
        if annotation is Any:
            annotation = torch.Tensor if p.default is p.empty else _annotation(p.default)
        parameters.append(p.replace(annotation=annotation))
    returns = hints.get("return", Any)
    returns = torch.Tensor if returns is Any else returns

    def forward(*args: Any) -> Any: ...

    forward.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    return declared(forward, mutates)


def _annotation(default: Any) -> Any:
    if default is None:
        return torch.Tensor | None
    if isinstance(default, (tuple, list)):
        return list[float] if any(isinstance(d, float) for d in default) else list[int]
    return type(default)
