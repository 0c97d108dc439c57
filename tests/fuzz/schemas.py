"""Steps read off torch's schemas: any aten operator that its namespaces offer, with arguments by their types."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.builder import Builder, Reject, Slots

# prefixes of those whose results are open: uninitialised memory, signs of vectors, a backend's own algorithm or packing
OPEN = tuple((Path(__file__).parent / "templates" / "open.txt").read_text().split())
PLAIN = {"Tensor", "number", "int", "float", "bool", "int[]", "Optional[int]", "List[int]", "List[Tensor]"}


@cache
def operators() -> list[tuple[str, Any]]:
    """(how it is called, schema) of each operator that a program can use."""
    found: dict[str, Any] = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space != "aten" or name.startswith("_") or name.endswith("_") or "out" in schema.overload_name:
            continue
        if any(name.startswith(o) for o in OPEN) or "backward" in name or name.endswith("_copy"):
            continue
        if not schema.arguments or not any(str(a.type) in ("Tensor", "List[Tensor]") for a in schema.arguments):
            continue
        if schema.overload_name.startswith("prim_"):  # of TorchScript's: `to` without a type reads what is not there
            continue
        if any("Tensor" not in str(r.type) for r in schema.returns) or not schema.returns:
            continue
        if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
            continue
        if any(str(a.type) not in PLAIN and a.default_value is None and not str(a.type).startswith("Optional")
               for a in schema.arguments):  # fmt: skip
            continue
        call = _call(name, schema.overload_name)
        if call and not _random(name, schema.overload_name):
            found[f"{name}.{schema.overload_name}"] = (call, schema)
    return [found[k] for k in sorted(found)]


def _call(name: str, overload: str) -> str:
    """By its overload where torch offers no function: given the packet, `to` takes a tensor for an element type."""
    if name.startswith("special_") and hasattr(torch.special, name[8:]):
        return f"torch.special.{name[8:]}"
    if hasattr(torch, name):
        return f"torch.{name}"
    known = hasattr(torch.Tensor, name) or hasattr(torch._C._nn, name)
    return f"torch.ops.aten.{name}.{overload or 'default'}" if known else ""


def _random(name: str, overload: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    found = getattr(packet, overload or "default", None)
    return found is None or torch.Tag.nondeterministic_seeded in found.tags


def candidate(builder: Builder) -> str:
    """A call of one of them."""
    call, schema = builder.random.choice(operators())
    slots = Slots(builder)
    parts = []
    for number, argument in enumerate(schema.arguments):
        given = argument.default_value is None and not str(argument.type).startswith("Optional")
        if not given and builder.random.random() < 0.6:
            continue
        text = _argument(builder, slots, argument, number)
        parts.append(f"{argument.name}={text}" if argument.kwarg_only or not given or "=" in "".join(parts) else text)
    if any(p.startswith("self=") for p in parts):
        raise Reject
    return f"{call}({', '.join(parts)})"


def _argument(builder: Builder, slots: Slots, argument: Any, number: int) -> str:
    kind, r = str(argument.type), builder.random
    optional = kind.startswith("Optional[")
    kind = kind[9:-1] if optional else kind
    if kind == "Tensor":
        return slots.get("n" if not slots.first else f"{'t~' if r.random() < 0.5 else 'n='}{'abcdef'[number % 6]}")
    if kind == "List[Tensor]":
        return f"[{slots.get('t')}, {slots.get('t=')}]"
    if kind == "number":
        return slots.get(f"s{number}")
    if kind == "float":
        return slots.get(f"p{number}")
    if kind == "bool":
        return r.choice(("True", "False"))
    if kind == "int":
        if argument.name.startswith("dim") or argument.name == "axis":
            return slots.get("d" if "d" not in slots.known else "e") if slots.first else "0"
        if argument.name == "memory_format":  # channels_last of a tensor without them ends the process
            return r.choice("01")
        return str(r.randint(0, 2 if argument.name == "reduction" else 3))  # at::Reduction ends with 2
    if kind in ("List[int]", "int[]") and slots.first:
        return slots.get("dims") if "dim" in argument.name else str([r.randint(1, 3) for _ in range(r.randint(1, 2))])
    raise Reject
