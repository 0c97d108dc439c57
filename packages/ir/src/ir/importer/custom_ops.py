"""Custom ops: one definition for torch and for every target."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ir.errors import note
from ir.graph import Node, Value, leaves
from ir.importer.bodies import BODIES, KERNELS, writes_of
from ir.importer.schema import declared, op_name, overload_of, packet_of
from ir.importer.size_arguments import Sizes
from ir.importer.torch_api import (
    OPDEFS,
    QUANTIZED_DECOMPOSED,
    OpOverload,
    defined_by,
    detect_fake_mode,
    parse_schema,
    pytree,
    schema_of,
    storage_key,
)
from ir.registry import forget, place_of, put, registry
from ir.target_names import refuse_misspelt

Fn = Callable[..., Any]
_OF_SCHEMA = re.compile(r"infer_schema\(func\): (.*?)\.? Got func with signature.*", re.DOTALL)  # what torch says


class WrongResults(TypeError):
    """A function gave other results than its annotation declares."""


class CustomOp:
    """A handle of one op of torch.library: call it, give it a body, handlers, a fake and kernels."""

    def __init__(self, name: str, definition: Any = None, fn: Fn | None = None) -> None:
        self.name = name
        self._definition = definition
        self._packet = packet_of(name.split(".")[0])
        if self._packet is None:
            raise ValueError(f"torch.library knows no op {name!r}; import what defines it first")
        if fn is not None:
            self.__doc__, self.__name__, self.__wrapped__ = fn.__doc__, fn.__name__, fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._packet(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<custom op {self.name}>"

    def body(self, fn: Fn) -> Fn:
        """Decorator: `fn` computes the op from torch functions or other custom ops; every target can lower it."""
        put(BODIES, self.name, fn)
        return fn

    def handler(self, target: str, *, since_version: int = 0, override: bool = False) -> Callable[[Fn], Fn]:
        """Decorator: the op's native form `(h, *args) -> result` on one target, which need not be installed.

        Raises:
            UnknownName: no target has the name, and one has nearly this name: it is misspelt.
        """
        refuse_misspelt(target, f"a handler of {self.name}")
        return registry(target).register(self.name, since_version=since_version, override=override)

    def register_fake(self, fn: Fn) -> Fn:
        """Decorator: shapes and dtypes of the results, as torch.library.register_fake."""
        if self._definition is not None:
            self._definition.register_fake(fn)
        else:
            torch.library.register_fake(self.name, fn)
        return fn

    def register_kernel(self, device_types: str | Sequence[str], fn: Fn | None = None) -> Any:
        """Decorator: the kernel of some devices, as torch.library.register_kernel."""
        owner = self._definition
        if owner is not None:
            return owner.register_kernel(device_types, fn)
        return torch.library.register_kernel(self.name, device_types, fn)

    kernel = register_kernel

    def register_autograd(self, backward: Fn, *, setup_context: Fn | None = None) -> None:
        """The op's gradient, as torch.library.register_autograd; replaces the one derived from the body."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context)


def custom_op(
    name: str,
    fn: Fn | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
) -> Any:
    """Decorator: an opaque torch op whose function is its kernel, its fake and its portable body.

    The op works in plain torch at once: eager calls, torch.compile, torch.export, and autograd by differentiating the
    body. Arguments as for torch.library.custom_op. Defined once more, an op loses the handlers and the body it had.

    Args:
        name: "namespace::name".
        fn: the function, where it is not decorated. Its annotations say what is a tensor, a number or a list.
        mutates_args: names of the arguments that the function writes to.
        device_types: devices that the function is a kernel for; None is all.
        schema: the op's schema, if it cannot be read off the annotations.

    Raises:
        ValueError: the name has no namespace, or the annotations make no schema.

    Examples:
        >>> @ir.custom_op("docs::scaled")
        ... def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        ...     return x * by
        >>> scaled(torch.ones(2))
        tensor([2., 2.])
    """

    mutated = mutates_args if isinstance(mutates_args, str) else tuple(mutates_args)
    if not all(part.isidentifier() for part in str(name).split("::")) or str(name).count("::") != 1:
        raise ValueError(f"ir.custom_op({name!r:.80}): write 'namespace::name', such as 'mine::swish'")

    def decorate(fn: Fn) -> CustomOp:
        try:
            written = schema or declared(fn, mutated)
        except ValueError as error:
            reason = _OF_SCHEMA.sub(r"\1", str(error))
            raise ValueError(f"ir.custom_op({name!r}) of the function at {place_of(fn)}: {reason}") from error
        if name in KERNELS:  # as in a cell of a notebook that is run again: its handlers say what it was
            forget(name)
            BODIES.pop(name, None)
        return define(name, fn, written, device_types=device_types)

    return decorate if fn is None else decorate(fn)


def define(
    name: str,
    fn: Fn,
    schema: str,
    *,
    device_types: str | Sequence[str] | None = None,
    fake: Fn | None = None,
    gradient: Fn | None = None,
) -> CustomOp:
    """Register an op of this schema: `fn` is its kernel and its body, `gradient` what is differentiated for it."""
    parsed = parse_schema(f"{name}{schema}")
    fn = _declared_results(name, fn, [str(r.type) for r in parsed.returns])
    kernel = _fresh_results(fn)
    mutates = [a.name for a in parsed.arguments if a.alias_info is not None and a.alias_info.is_write]
    definition = torch.library.custom_op(name, kernel, mutates_args=mutates, device_types=device_types, schema=schema)
    definition.register_fake(_sized_by_results(_fresh_results(fake or _with_advice(name, fn))))
    op = CustomOp(name, definition, fn)
    if parsed.returns and not mutates:
        _derive_autograd(op, gradient or fn)
    put(KERNELS, name, fn)
    return op


def op(name: Any) -> CustomOp:
    """The handle of an op that somebody else registered with torch.library, such as "torchvision::nms".

    Args:
        name: its name, what torch.library.custom_op returned, or an op of torch.ops.

    Raises:
        ValueError: torch knows no such op; what defines it must be imported first.
        TypeError: this is no op.

    Examples:
        >>> ir.op("aten::relu").name
        'aten::relu'
    """
    if (named := op_name(name)) is None:
        raise TypeError(f"ir.op({name!r:.80}): give an op of torch.ops, or its name as 'aten::relu'")
    return CustomOp(named)


def _declared_results(name: str, fn: Fn, types: Sequence[str]) -> Fn:
    """The function, whose results are those that the schema declares: torch's own call ends the process otherwise."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        many = result if isinstance(result, (tuple, list)) and len(types) != 1 else [result]
        if types and len(many) != len(types):
            raise WrongResults(f"{name} returned {len(many)} results, its annotation declares {len(types)}")
        for r, t in zip(many, types, strict=False):
            if t == "Tensor" and not isinstance(r, torch.Tensor):
                what = "None" if r is None else f"a {type(r).__name__}"
                raise WrongResults(
                    f"{name} returned {what}, its annotation declares a Tensor: return one, or annotate it"
                )
        return result

    return functools.wraps(fn)(checked)


def _fresh_results(fn: Fn) -> Fn:
    """The kernel: as the function, but a result that is an argument itself is copied, as torch.library demands."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]

        def fresh(r: Any) -> Any:
            return r.clone() if isinstance(r, torch.Tensor) and any(_shares(r, a) for a in given) else r

        if isinstance(result, (tuple, list)):
            return type(result)(fresh(r) for r in result)
        return fresh(result)

    return functools.wraps(fn)(kernel)


def _with_advice(name: str, fn: Fn) -> Fn:
    """The function as its own fake; where it cannot run without data, the error notes what to write."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except WrongResults:
            raise
        except Exception as error:
            note(
                error,
                f"the function of {name} was run on tensors without data, which tell the shapes of its results; if it "
                f"needs data, say these shapes, and write a body or handlers for targets other than eager:\n"
                f'    ir.op("{name}").register_fake({fake_skeleton(inspect.signature(fn))})',
            )
            raise

    return functools.wraps(fn)(fake)


def fake_skeleton(signature: inspect.Signature) -> str:
    """A fake for a function of this signature; torch leaves arguments out that have their default value."""
    formals = signature.replace(
        parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
        return_annotation=signature.empty,
    )
    return f"lambda {str(formals)[1:-1]}: torch.empty_like({next(iter(signature.parameters), 'x')})"


def _sized_by_results(fake: Fn) -> Fn:
    """The fake without sizes that data decides on the way, which torch wants to see in a result: `x[x > 0].mean()`.

    A result whose size is made of such ones, as of `x[x > 0][:3]`, gets a size of its own.
    """

    def sized(*args: Any, **kwargs: Any) -> Any:
        mode: Any = detect_fake_mode((args, kwargs))
        env = mode.shape_env if mode is not None else None
        pending: list[Any] = env.pending_fresh_unbacked_symbols if env is not None else []
        before = set(pending)
        with Sizes():
            results = fake(*args, **kwargs)
        made = set(pending) - before
        if not made:
            return results
        tensors = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor)]
        sizes: set[Any] = {s.node.expr for r in tensors for s in list[Any](r.shape) if isinstance(s, torch.SymInt)}
        told = {e / e.as_coeff_Mul()[0] for e in sizes}  # u0 and 4 * u0 tell u0
        pending[:] = [s for s in pending if s not in made or s in told]
        hidden = made - told
        own = {e: torch.library.get_ctx().new_dynamic_size() for e in sizes if e.free_symbols & hidden}

        def resized(r: Any) -> Any:
            shape = [own.get(s.node.expr, s) if isinstance(s, torch.SymInt) else s for s in r.shape]
            return r.new_empty(shape) if any(a is not b for a, b in zip(shape, r.shape, strict=True)) else r

        return pytree.tree_map_only(torch.Tensor, resized, results) if own else results

    return functools.wraps(fake)(sized)


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or storage_key(a) == storage_key(b)


def _derive_autograd(op: CustomOp, fn: Fn) -> None:
    """The gradient of the body: recomputed from the saved arguments when it is asked for."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any = None, output: Any = None) -> None:
        flat, spec = pytree.tree_flatten((inputs, keyword_only_inputs or {}))
        ctx.spec = spec
        ctx.places = [i for i, a in enumerate(flat) if isinstance(a, torch.Tensor)]
        ctx.rest = [None if isinstance(a, torch.Tensor) else a for a in flat]
        ctx.save_for_backward(*(flat[i] for i in ctx.places))

    def backward(ctx: Any, *gradients: Any) -> Any:
        flat = list(ctx.rest)
        tensors = [t.detach().requires_grad_(t.is_floating_point() or t.is_complex()) for t in ctx.saved_tensors]
        for place, tensor in zip(ctx.places, tensors, strict=True):
            flat[place] = tensor
        args, kwargs = pytree.tree_unflatten(flat, ctx.spec)
        with torch.enable_grad():
            results = pytree.tree_leaves(fn(*args, **kwargs))
        given = pytree.tree_leaves(list(gradients))
        pairs = [(r, g) for r, g in zip(results, given, strict=False) if g is not None and r.requires_grad]
        leaves = [t for t in tensors if t.requires_grad]
        outputs, weights = [r for r, _ in pairs], [g for _, g in pairs]
        found = torch.autograd.grad(outputs, leaves, weights, allow_unused=True) if pairs else [None] * len(leaves)
        by_leaf = iter(found)
        answer: list[Any] = [None] * len(flat)
        for place, tensor in zip(ctx.places, tensors, strict=True):
            answer[place] = next(by_leaf) if tensor.requires_grad else None
        positional, _ = pytree.tree_unflatten(answer, ctx.spec)
        gradients = tuple(p if _holds_tensor(a) else None for p, a in zip(positional, args, strict=True))
        gradients = gradients[: _passed(op, args)]
        return gradients if len(gradients) != 1 else gradients[0]

    op.register_autograd(backward, setup_context=setup_context)


def _passed(op: CustomOp, args: Sequence[Any]) -> int:
    """How many gradients torch asks for.

    With lists of tensors among the arguments it wants the very structure that the dispatcher passed, which leaves out
    trailing arguments that have their default value, although it fills them in for `setup_context`.
    """
    schema = schema_of(op._packet.default)
    count = len(args)
    if not any(isinstance(a, (list, tuple)) and _holds_tensor(a) for a in args):
        return count
    formals = [a for a in schema.arguments if not a.kwarg_only]
    while count and formals[count - 1].has_default_value() and args[count - 1] == formals[count - 1].default_value:
        count -= 1
    return count


def _holds_tensor(arg: Any) -> bool:
    """True for a tensor or a list with one: what a gradient belongs to."""
    return any(isinstance(a, torch.Tensor) for a in pytree.tree_leaves(arg))


def skeleton(node: Node, target: str) -> str:
    """The lines that would add this op, with its own arguments, and which of the two to write."""
    overload = overload_of(node.op, node.origin.overload)
    schema = schema_of(overload) if isinstance(overload, OpOverload) else None
    keyword_only = {a.name for a in schema.arguments if a.kwarg_only} if schema is not None else set()
    renamed = {k: f"{k}_" if keyword.iskeyword(k) else k for k in node.args}
    names = list(renamed.values())
    body = [n for k, n in renamed.items() if k not in keyword_only]
    body += ["*", *(renamed[k] for k in renamed if k in keyword_only)] if keyword_only else []
    listed = {k: isinstance(a, tuple) for k, a in node.args.items() if any(isinstance(v, Value) for v in leaves(a))}
    tensors = ", ".join(f"*{renamed[k]}" if many else renamed[k] for k, many in listed.items()) or "..."
    returned = f"  # the new contents of {', '.join(written)} last" if (written := writes_of(node)) else ""
    return (
        f"# a body, if torch functions can say it: it serves every target\n"
        f'@ir.op("{node.overload}").body\n'
        f"def _({', '.join(body)}): ...\n"
        f"# else a handler, in the words of {target!r} alone\n"
        f'@ir.op("{node.overload}").handler("{target}")\n'
        f'def _({", ".join(["h", *names])}): return h.emit("...", {tensors}){returned}'
    )


def defining_module(op: str, own: bool) -> str:
    """The module whose import defines an op of torch.library: a package of the namespace's name, or, with `own`, the
    one that the function of a custom op stands in; empty where there is none."""
    space = op.partition("::")[0]
    if space == "quantized_decomposed":
        return QUANTIZED_DECOMPOSED
    if importlib.util.find_spec(space) is not None:
        return space
    fn = BODIES.get(op) or KERNELS.get(op) or (defined_by(OPDEFS[op]) if op in OPDEFS else None)
    module = getattr(fn, "__module__", "") if own else ""
    return "" if module == "__main__" else module
