"""torch-to-nnef in an environment of its own: `python -m benchmarks.nnef_peer`, a JSON object a line in and out.

It exports models of the zoo for the tract that is installed beside it. A request is
{"name", "small", "dynamic", "path"}, an answer {"seconds": of the processor, "path"} or {"error"}.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests import zoo

BINARY = "#!/bin/sh\necho tract {version}\n"  # all that it asks of tract's command line where it does not check


class Positional(nn.Module):
    """A model whose keywords are given by position, as the exporter wants them."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, tensors, strict=True)))


@functools.lru_cache(maxsize=1)
def built(name: str, small: bool) -> nn.Module:
    return zoo.get(name, small=small).build()


def export(target: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One export of a fresh copy, for the exporter replaces a model's tensors."""
    from torch_to_nnef import export_model_to_nnef

    model = zoo.get(request["name"], small=request["small"])
    args, kwargs = model.inputs(model.sizes)
    module = copy.deepcopy(built(request["name"], request["small"]))
    module = Positional(module, list(kwargs)) if kwargs else module
    args = (*args, *kwargs.values())
    # symbols in its own manner: one capital letter
    axes = {n: {a: d[0].upper() for a, d in dims.items()} for n, dims in model.dynamic_shapes.items()}
    names = list(axes)
    target = target.with_dynamic_axes(axes if request["dynamic"] else {})
    start = time.process_time()
    path = export_model_to_nnef(
        module, args, request["path"], target, input_names=names, compression_level=0, log_level=logging.ERROR
    )
    return {"seconds": time.process_time() - start, "path": str(path)}


def first_line(error: BaseException) -> str:
    """An error's type and the first line of what it says."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def main() -> None:
    """Answer requests until the input ends."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not get between the lines
    from torch_to_nnef import TractNNEF

    version = metadata.version("tract")
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "tract"
        binary.write_text(BINARY.format(version=version))
        binary.chmod(0o755)
        # its fastest settings: no check, a tar without compression
        target = TractNNEF(version=version, check_io=False, specific_tract_binary_path=binary)
        versions = {n: metadata.version(n) for n in ("torch_to_nnef", "torch", "tract")}
        print(json.dumps(versions), file=answers)
        for line in sys.stdin:
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    answer = export(target, json.loads(line))
            except Exception as error:
                answer = {"error": first_line(error)}
            print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
