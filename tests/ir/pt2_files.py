"""A small .pt2 archive, taken apart and put together again with something changed."""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ir
from ir.errors import CaptureError

MODEL = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Small(torch.nn.Module):
    """A weight, a buffer, a derived size and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("bias", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)[: x.shape[0] - 1] + self.bias
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (torch.cat([y, x * 2]),))


def members(path: Path) -> dict[str, bytes]:
    """The small model saved to `path`, as what the archive holds by name."""
    shapes = ({0: torch.export.Dim("n", min=3)},)
    torch.export.save(torch.export.export(Small(), (torch.randn(4, 8),), dynamic_shapes=shapes), path)
    with zipfile.ZipFile(path) as archive:
        return {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}


def write(path: Path, parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """An archive of these members below one folder."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(f"m/{name}", data)
    return path


def edited(parts: dict[str, bytes], name: str, edit: Callable[[Any], Any]) -> dict[str, bytes]:
    """The members with one JSON document changed."""
    document = json.loads(parts[name])
    edit(document)
    return {**parts, name: json.dumps(document).encode()}


class Touch:
    """A pickle of this makes a file when it is loaded."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return open, (str(self.sentinel), "w")


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _size(code: str) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        values = document["graph_module"]["graph"]["sym_int_values"]
        next(iter(values.values()))["as_expr"]["expr_str"] = code

    return edit


def _target(target: str, argument: str) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        node = document["graph_module"]["graph"]["nodes"][1]
        node["target"] = target
        node["inputs"] = [{"name": "filename", "arg": {"as_string": argument}, "kind": 1}]

    return edit


def _tree(context: dict[str, Any], kind: str = "builtins.dict") -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        call = document["graph_module"]["module_call_graph"][0]
        leaf = {"type": None, "context": None, "children_spec": []}
        signature = call["signature"]
        spec = json.loads(signature["out_spec"])
        spec[1] = {"type": kind, "context": json.dumps(context), "children_spec": [leaf]}
        signature["out_spec"] = json.dumps(spec).replace("__enum__", "\\u005f_enum__")

    return edit


def _payload(**changes: Any) -> Callable[[Any], None]:
    return lambda document: next(iter(document["config"].values())).update(changes)


def attacks(parts: dict[str, bytes], sentinel: Path) -> dict[str, dict[str, bytes]]:
    """Archives that would run code, read or write a file, or take all memory."""
    code = f"open({str(sentinel)!r}, 'w')"
    touch = Touch(sentinel)
    enum = {"__enum__": True, "fqn": "antigravity:x", "name": "y"}
    factory = {"default_factory_module": "os", "default_factory_name": "getcwd", "dict_context": ["a"]}
    guards = f"__import__('os').system('touch {sentinel}')"
    opaque = {
        "config": {"c": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}}
    }
    named: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "size": (MODEL, _size(code)),
        "size attribute": (MODEL, _size("Integer(1).__class__")),
        "guards": (MODEL, lambda d: d.update(guards_code=[guards])),
        "enum": (MODEL, _tree(enum)),
        "factory": (MODEL, _tree(factory, "collections.defaultdict")),
        "hub": (MODEL, _target("torch.hub.load", "x/y")),
        "library": (MODEL, _target("torch.ops.load_library", "/tmp/x.so")),
        "library method": (MODEL, _target("torch.ops.load_library.__call__", "/tmp/x.so")),
        "file": (MODEL, _target("torch.ops.aten.from_file.default", str(sentinel))),
        "save": (MODEL, _target("torch.ops.aten.save.default", str(sentinel))),
        "dunder": (MODEL, _target("torch.ops.aten.add.__init__", "x")),
        "path": (WEIGHTS, _payload(path_name="../../etc/passwd")),
        "no data": (WEIGHTS, _payload(path_name="empty")),
        "weight pickle": (WEIGHTS, _payload(path_name="weight_0", use_pickle=True)),
        "opaque": (CONSTANTS, lambda d: d.update(opaque)),
    }
    made = {name: edited(parts, file, edit) for name, (file, edit) in named.items()}
    made["no data"]["data/weights/empty"] = b""
    made["weight pickle"]["data/weights/weight_0"] = saved(touch)
    made["opaque"]["data/constants/opaque_obj_0"] = pickle.dumps(touch)
    made["samples"] = {**parts, SAMPLES: saved(((touch,), {}))}
    made["compiled"] = {**parts, "data/aotinductor/model/x.so": b"\x7fELF"}
    made["older weights"] = {**parts, "data/weights/model.pt": saved({"w": touch})}
    made["member"] = {**parts, "../../escape": b"x"}
    made["older format"] = {"version": b"8.1", "serialized_state_dict.pt": saved(touch)}
    return made


# -- mutations ---------------------------------------------------------------------------------------------------------

_LEAVES: tuple[Any, ...] = (
    None, -1, 2**63, 1e308, "", "x", "../x", "torch.ops.aten.relu.default", [], {}, True, [[[]]], "Symbol('s0')",
    10**30,
)  # fmt: skip


def _mutate_json(rng: random.Random, data: bytes) -> bytes:
    document = json.loads(data)
    places: list[tuple[Any, Any]] = []
    stack = [document]
    while stack:
        at = stack.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        places += [(at, k) for k in keys]
        stack += [at[k] for k in keys]
    for at, key in rng.sample(places, k=min(len(places), rng.choice((1, 1, 2, 5)))):
        if isinstance(at, dict) and rng.random() < 0.3:
            at.pop(key, None)
        else:
            at[key] = rng.choice(_LEAVES)
    return json.dumps(document).encode()


def mutant(rng: random.Random, parts: dict[str, bytes], whole: bytes, path: Path) -> Path:
    """One damaged archive: cut, with bytes turned over, a document changed, a member lost, swapped or made noise."""
    kind = rng.randrange(6)
    if kind == 0:
        path.write_bytes(whole[: rng.randrange(len(whole))])
    elif kind == 1:
        data = bytearray(whole)
        for _ in range(rng.choice((1, 4, 64))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data))
    elif kind in (2, 3):
        name = rng.choice([n for n in parts if n.endswith(".json")])
        write(path, {**parts, name: _mutate_json(rng, parts[name])})
    elif kind == 4:
        name, other = rng.sample(list(parts), 2)
        rest = {k: v for k, v in parts.items() if k != name}
        write(path, rng.choice((rest, {**rest, name: parts[other]}, {**rest, name: parts[name][:-3]})))
    else:
        name = rng.choice(list(parts))
        write(path, {**parts, name: rng.randbytes(rng.randrange(1, 400))})
    return path


def fuzz(folder: Path, seed: int, count: int) -> dict[str, int]:
    """Load this many damaged archives: each is refused with a CaptureError, or is a graph that can be read."""
    rng = random.Random(seed)
    parts = members(folder / "whole.pt2")
    whole = (folder / "whole.pt2").read_bytes()
    outcome = {"refused": 0, "loaded": 0}
    for index in range(count):
        path = mutant(rng, parts, whole, folder / "mutant.pt2")
        try:
            str(ir.capture(path))
            outcome["loaded"] += 1
        except CaptureError:
            outcome["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"archive {index} of seed {seed} ended in {type(error).__name__}: {error}") from error
    return outcome


if __name__ == "__main__":
    import logging
    import sys

    logging.disable(logging.CRITICAL)
    torch.manual_seed(0)
    print(json.dumps(fuzz(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
