"""A small .pt2 archive, taken apart and put together again with something changed."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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
    return parts(path)


def parts(path: Path) -> dict[str, bytes]:
    """What an archive of torch.export.save holds by name."""
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


_SUM = "Add(Symbol('a'), Symbol('b'), Symbol('c'), Symbol('d'), Integer(1))"


def _signature(document: Any) -> Any:
    return document["graph_module"]["module_call_graph"][0]["signature"]


def _longer(document: Any) -> None:
    """Every stride is 1000: the tensors reach over the end of their records."""
    for payload in document["config"].values():
        meta = payload["tensor_meta"]
        meta["strides"] = [{"as_int": 1000}] * len(meta["strides"])


def harmless(parts: dict[str, bytes], sentinel: Path) -> dict[str, dict[str, bytes]]:
    """Archives whose code only torch.export.load would run: nothing here reads it, or only as a name."""
    shell = f"layer.weight\"]; __import__('os').system('touch {sentinel}')  #"
    renamed = {n: d.replace(b'"layer.weight"', json.dumps(shell).encode()) for n, d in parts.items()}
    return {"samples": {**parts, SAMPLES: saved(((Touch(sentinel),), {}))}, "parameter name": renamed}


def _payload(**changes: Any) -> Callable[[Any], None]:
    return lambda document: next(iter(document["config"].values())).update(changes)


def attacks(parts: dict[str, bytes], sentinel: Path) -> dict[str, dict[str, bytes]]:
    """Archives that would run code, read or write a file, or take all memory."""
    code = f"open({str(sentinel)!r}, 'w')"
    touch = Touch(sentinel)
    enum = {"__enum__": True, "fqn": "antigravity:x", "name": "y"}
    factory = {"default_factory_module": "os", "default_factory_name": "getcwd", "dict_context": ["a"]}
    shell = f"__import__('os').system('touch {sentinel}')"
    opaque = {
        "config": {"c": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}}
    }
    named: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "size": (MODEL, _size(code)),
        "size attribute": (MODEL, _size("Integer(1).__class__")),
        "guards": (MODEL, lambda d: d.update(guards_code=[shell])),
        "enum": (MODEL, _tree(enum)),
        "factory": (MODEL, _tree(factory, "collections.defaultdict")),
        "prefix": (MODEL, _target("torchx.os.system", f"touch {sentinel}")),
        "globals": (MODEL, _target("torch.ops.aten.add.__globals__", "x")),
        "argument name": (MODEL, lambda d: _signature(d).update(forward_arg_names=[f"x={shell}"])),
        "guard text": (MODEL, lambda d: d.update(guards_code=[f"L['x'] == {shell}"])),
        "guard quotes": (MODEL, lambda d: d.update(guards_code=[f"L['x'] == \"' or {shell} or '\""])),
        "power": (MODEL, _size("Pow(Integer(10), Pow(Integer(10), Integer(10)))")),
        "tower": (MODEL, _size("Pow(Integer(9), Pow(Integer(9), Integer(99)))")),
        "python power": (MODEL, _size("10**10**10")),
        "deep size": (MODEL, _size("Add(" * 5000 + "Integer(1)" + ")" * 5000)),
        "many terms": (MODEL, _size(f"Mul({', '.join([_SUM] * 12)})")),
        "version": (MODEL, lambda d: d.update(schema_version={"major": 9, "minor": 0})),
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
    made["placeholder name"] = {**parts, MODEL: parts[MODEL].replace(b'"x"', json.dumps(f"x={shell}").encode())}
    made["nested"] = {**parts, MODEL: b"[" * 100_000 + b"]" * 100_000}
    made["no data"]["data/weights/empty"] = b""
    made["weight pickle"]["data/weights/weight_0"] = saved(touch)
    made["opaque"]["data/constants/opaque_obj_0"] = pickle.dumps(touch)
    made["compiled"] = {**parts, "data/aotinductor/model/x.so": b"\x7fELF"}
    made["older weights"] = {**parts, "data/weights/model.pt": saved({"w": touch})}
    made["member"] = {**parts, "../../escape": b"x"}
    made["overlong weight"] = edited(parts, WEIGHTS, _longer)
    made["older format"] = {"version": b"8.1", "serialized_state_dict.pt": saved(touch)}
    return made
