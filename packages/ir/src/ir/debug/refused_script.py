"""A module that torch.export refuses as Python: what makes it, its inputs, torch.export.export."""

from __future__ import annotations

import io
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from ir.debug.calls import Call, Described
from ir.debug.search import Verdict
from ir.debug.shrink import seed_of
from ir.files import staged
from ir.importer.torch_api import pytree

_PLAIN = (int, float, bool, str, type(None), torch.dtype)


def write_script(
    model: nn.Module,
    name: str,
    call: Call,
    verdict: Verdict,
    code: Sequence[str],
    is_function: bool,
    path: Path,
) -> tuple[str, tuple[Path, ...]]:
    """The script as text and the files that were written: itself, and what it loads where no `code` makes the model."""
    module = model.get_submodule(name)
    dims = {dim.__name__: dim for d in call.described for dim in d.axes.values() if isinstance(dim, Dim)}
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    plain = all(isinstance(a, (Described, *_PLAIN)) for a in leaves) and _is_built_in((call.args, call.kwargs))
    kept: dict[str, Any] = {} if code or not _is_saved(module) else {"module": module}
    kept |= {} if plain else {"call": call.given}
    file = path.with_name(f"{path.stem}.pt")
    lines = list(_head(verdict))
    lines += ["import torch", *(_loaded(code, name, is_function) if code else [])]
    if kept:
        lines.append(f'kept = torch.load("{file.name}", weights_only=False)  # beside this script')
    if not code:
        what = f"{type(module).__name__}: put what makes it here, it cannot be saved"
        lines.append('module = kept["module"]' if "module" in kept else f"module = ...  # {what}")
    lines += [f'{n} = torch.export.Dim("{n}"{_range(dim)})' for n, dim in dims.items()]
    lines += _arguments(call) if plain else ['args, kwargs = kept["call"]']
    shapes = call.dynamic_shapes(module)
    lines += [] if shapes is None else [f"dynamic_shapes = {_text(shapes)}"]
    lines.append('print("torch", torch.__version__)')
    lines.append(
        f"torch.export.export(module, args, kwargs{'' if shapes is None else ', dynamic_shapes=dynamic_shapes'})"
    )
    text = "\n".join([*lines, ""]).replace(f'"{file.name}"', f'__file__.replace("{path.name}", "{file.name}")')
    with staged(path) as temporary:
        temporary.write_text(text)
    if kept:
        with staged(file) as temporary:
            torch.save(kept, temporary)
    return text, (path, file) if kept else (path,)


def _is_saved(module: nn.Module) -> bool:
    """Whether another process can load it: its classes and functions have a place in a file that can be imported."""
    try:
        text = io.BytesIO()
        torch.save(module, text)
    except Exception:  # pickle's own of many kinds
        return False
    return b"__main__" not in text.getvalue()


def _head(verdict: Verdict) -> Iterator[str]:
    yield f"# torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
    said = re.sub(r"\s+", " ", verdict.text.strip().partition("\n")[0])
    yield f"# expected: {said[:200]}"


def _loaded(code: Sequence[str], name: str, is_function: bool) -> Iterator[str]:
    yield from code
    if is_function:
        yield "module = torch.nn.Module()"
        yield "module.forward = model"
    else:
        yield f'module = model.get_submodule("{name}")' if name else "module = model"


def _range(dim: Any) -> str:
    low, high = getattr(dim, "min", 0), getattr(dim, "max", None)
    said = [f"min={low}"] if isinstance(low, int) and low > 0 else []
    said += [f"max={high}"] if isinstance(high, int) and high < 2**31 else []
    return "".join(f", {s}" for s in said)


def _arguments(call: Call) -> list[str]:
    lines = []
    names = iter(f"x{i}" for i in range(len(call.described)))

    def named(d: Described) -> _Name:
        name = next(names)
        lines.append(f"{name} = (torch.manual_seed({seed_of(name)}), {d.text})[1]")
        return _Name(name)

    called = call.changed(named)
    return [*lines, f"args, kwargs = {_text(called.args)}, {_text(called.kwargs)}"]


class _Name(str):
    """A name, which stands for itself."""


def _text(arg: Any) -> str:
    if isinstance(arg, Mapping):
        return f"{{{', '.join(f'{k!r}: {_text(v)}' for k, v in arg.items())}}}"
    if isinstance(arg, (tuple, list)):
        inner = ", ".join(map(_text, arg))
        return f"[{inner}]" if isinstance(arg, list) else f"({inner}{',' if len(arg) == 1 else ''})"
    if isinstance(arg, _Name):
        return str(arg)
    if isinstance(arg, Dim):
        return str(arg.__name__)
    if arg is Dim.DYNAMIC or arg is Dim.AUTO:
        return f"torch.export.Dim.{'DYNAMIC' if arg is Dim.DYNAMIC else 'AUTO'}"
    if isinstance(arg, float) and arg - arg != 0:
        return f'float("{arg}")'
    return repr(arg)


def _is_built_in(arg: Any) -> bool:
    """Whether all containers are Python's own, which have a text."""
    if type(arg) is dict:
        return all(map(_is_built_in, arg.values()))
    if type(arg) in (tuple, list):
        return all(map(_is_built_in, arg))
    return isinstance(arg, (Described, *_PLAIN))
