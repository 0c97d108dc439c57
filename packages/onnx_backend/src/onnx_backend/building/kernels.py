"""What onnxruntime's CPU provider has no kernel for, and the element type to compute in instead.

`kernels.json` is a table of gaps: op -> [first opset, type variable, the types that ONNX allows and no kernel takes].
`python -m onnx_backend.kernels` writes it anew from the installed onnxruntime. float16 is no gap where float32 is
none: onnxruntime puts those casts in by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ir.types import DType
from onnx_backend.building.dtypes import FROM_SCHEMA, TO_ONNX
from onnx_backend.building.schema import op_schema

TABLE = Path(__file__).with_name("kernels.json")
LOWEST, HIGHEST = 13, 26  # what onnxruntime 1.31 loads
# Types that hold every value of the first (bfloat16 and the narrow integers), in the order of preference; integers
# wrap on the way back as they would have in their own type. float64 has none: it would lose digits.
COMPUTE_TYPES: Mapping[DType, tuple[DType, ...]] = {
    DType.bfloat16: (DType.float32,),
    DType.float16: (DType.float32,),
    DType.bool: (DType.uint8, DType.int32, DType.int64),
    DType.uint8: (DType.int32, DType.int64),
    DType.int8: (DType.int32, DType.int64),
    DType.uint16: (DType.int32, DType.int64),
    DType.int16: (DType.int32, DType.int64),
    DType.uint32: (DType.int64,),
    DType.int32: (DType.int64,),
}
ABSENT = ""  # in place of a type variable: no kernel at all
# Kernels that are registered and then say at run time that they do not support the type.
UNFULFILLED: Mapping[str, set[DType]] = {"LSTM": {DType.float64}, "GRU": {DType.float64}}
_SHORT = {d.short: d for d in DType}


@lru_cache(maxsize=1)
def _table() -> Mapping[str, list[tuple[int, str, str]]]:
    table: Mapping[str, list[tuple[int, str, str]]] = json.loads(TABLE.read_text())
    return table


@cache
def gaps(op: str, opset: int) -> Mapping[str, frozenset[DType]]:
    """Type variable -> the element types without a kernel, for an op at an opset."""
    found = {}
    for since, variable, names in _table().get(op, ()):  # in order of `since`
        if since <= opset:
            found[variable] = frozenset(_SHORT[n] for n in names.split() if n in _SHORT)
    return found


@cache
def runs(op: str, opset: int) -> bool:
    """True unless onnxruntime knows the op at this opset and has no kernel of any type for it."""
    return ABSENT not in gaps(op, opset)


@cache
def work_type(op: str, opset: int, variable: str, dtype: DType, narrow: bool = False) -> DType:
    """The type to compute in: `dtype` itself where it is allowed and has a kernel, or where nothing else has.

    With `narrow` float64 may become float32.
    """
    schema = op_schema(op, opset)
    assert schema is not None
    allowed = next((f.allowed for f in (*schema.inputs, *schema.outputs) if f.variable == variable), frozenset())
    lacking = gaps(op, opset).get(variable, frozenset())
    if not allowed or (dtype in allowed and dtype not in lacking):
        return dtype
    others = (DType.float32,) if narrow and dtype is DType.float64 else COMPUTE_TYPES.get(dtype, ())
    return next((w for w in others if w in allowed and w not in lacking), dtype)


def measure() -> dict[str, list[tuple[int, str, str]]]:
    """The table, from the kernels that the installed onnxruntime registers."""
    import onnx.defs
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    kernels: dict[str, list[Any]] = {}
    for k in get_all_opkernel_def():
        if k.provider == "CPUExecutionProvider" and k.domain == "":
            kernels.setdefault(k.op_name, []).append(k)
    table = {}
    for op in sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}):
        rows: list[tuple[int, str, str]] = []
        last: dict[str, str] = {}
        for opset in range(LOWEST, HIGHEST + 1):
            for variable, names in _gaps_at(op, opset, kernels.get(op, [])).items():
                if last.get(variable, "") != names:
                    rows.append((opset, variable, names))
                    last[variable] = names
        if rows:
            table[op] = rows
    return table


def _fits(first: int, last: int, since: int) -> bool:
    """onnxruntime's rule: a kernel without an end serves the version that it names and no later one."""
    return first == since or (last != 2**31 - 1 and first <= since <= last)


def _gaps_at(op: str, opset: int, kernels: list[Any]) -> dict[str, str]:
    import onnx.defs

    schema = op_schema(op, opset)
    if schema is None:
        return {}
    raw: Any = onnx.defs.get_schema(op, opset)
    fitting = [k for k in kernels if _fits(k.version_range[0], k.version_range[1], raw.since_version)]
    found: dict[str, str] = {}
    has_body = raw.has_function or raw.has_context_dependent_function
    if not fitting and not has_body:
        return {} if op == "Constant" else {ABSENT: "all"}
    for formal in schema.inputs:
        has = {FROM_SCHEMA.get(t) for k in fitting for t in k.type_constraints.get(formal.variable, ())} - {None}
        if not fitting:  # its body is run, which lacks kernels of its own
            has = {d for d in formal.allowed if _loads(op, opset, d)}
        has -= UNFULFILLED.get(op, set())
        if not has:
            continue
        lacking = {d for d in formal.allowed - has if not d.is_complex and d.bits >= 8 and "8_e" not in d.name}
        if DType.float32 in has:
            lacking.discard(DType.float16)
        found[formal.variable] = " ".join(sorted(d.short for d in lacking))
    return found


def _loads(op: str, opset: int, dtype: DType) -> bool:
    """True if onnxruntime loads the op with all inputs of this type; True where it takes more than that to tell."""
    import onnxruntime
    from onnx import helper

    schema = op_schema(op, opset)
    assert schema is not None
    formals = schema.inputs[: schema.min_inputs]
    if schema.required or any(f.variable != formals[0].variable for f in (*formals, *schema.outputs)):
        return dtype is not DType.bfloat16
    inputs = [helper.make_tensor_value_info(f"x{i}", int(TO_ONNX[dtype]), [2, 2]) for i in range(len(formals))]
    output = helper.make_tensor_value_info("y", int(TO_ONNX[dtype]), None)
    node = helper.make_node(op, [i.name for i in inputs], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]), ir_version=8)
    model.opset_import[0].version = opset
    try:
        onnxruntime.InferenceSession(model.SerializeToString())
    except Exception:
        return False
    return True


if __name__ == "__main__":
    lines = (f"{json.dumps(op)}: {json.dumps(rows)}" for op, rows in measure().items())
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
