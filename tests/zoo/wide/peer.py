"""torch.onnx on a model of the second zoo: exported, run in onnxruntime at all sizes, compared as ours is."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ir.verify import compare

from ..entry import Model

NAME = "torch.onnx"


def run(model: Model, module: nn.Module) -> dict[str, Any]:
    """The error over the largest magnitude, or what failed.

    torch.onnx.export gets the module itself, so that it may take each of its own ways to capture it, with every named
    dimension as Dim.DYNAMIC.
    """
    args, kwargs = model.inputs(model.sizes)
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        program = torch.onnx.export(
            module, args, kwargs=kwargs, dynamic_shapes=model.export_shapes(), dynamo=True, verbose=False
        )
        worst = 0.0
        for sizes in (model.sizes, *model.other_sizes):
            args, kwargs = model.inputs(sizes)
            expected = [x.numpy() for x in tree_leaves(module(*args, **kwargs)) if isinstance(x, torch.Tensor)]
            actual = [x.numpy() for x in program(*args, **kwargs)]
            if len(actual) != len(expected):
                return {"failure": f"MismatchError: {len(actual)} results, torch has {len(expected)}"}
            report = compare([str(i) for i in range(len(expected))], actual, expected)
            if not report.ok:
                return {"failure": f"MismatchError: at {sizes}: {report}"[:600]}
            worst = max([worst, *(row.error / max(row.scale, 1e-3) for row in report.rows if not row.skipped)])
    return {"error": worst}
