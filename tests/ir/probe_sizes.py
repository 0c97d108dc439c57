"""Which ops of torch's database refuse operands of other sizes that their shape rules take.

`python -m tests.ir.probe_sizes` prints their names, as JSON. Each op runs in a process of its own, for some kernels
look at no size and end it.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from ir.importer.torch_api import OpOverloadPacket

_SAMPLES, _CHANGES, _LARGEST = 6, 24, 2000
_REFUSED = RuntimeError, IndexError, ValueError, NotImplementedError, ZeroDivisionError


def changed(leaves: list[Any]) -> Iterator[list[Any]]:
    """The arguments with an axis of one tensor longer, shorter or empty."""
    for i, t in enumerate(leaves):
        for axis, n in enumerate(t.shape if isinstance(t, Tensor) and t.layout is torch.strided else ()):
            if n >= 2:
                others = torch.cat([t, t.narrow(axis, 0, 1)], axis), t.narrow(axis, 0, n - 1), t.narrow(axis, 0, 0)
                yield from ([*leaves[:i], other, *leaves[i + 1 :]] for other in others)


def takes(packet: Any, arguments: tuple[Any, dict[str, Any]]) -> bool:
    try:
        packet(*arguments[0], **arguments[1])
    except _REFUSED:
        return False
    return True


def is_refused_by_the_kernel_alone(packet: Any, entry: Any) -> bool:
    kind = torch.float32 if torch.float32 in entry.dtypes else torch.int64
    for sample in itertools.islice(entry.sample_inputs("cpu", kind), _SAMPLES):
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        leaves = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
        if any(isinstance(x, Tensor) and x.numel() > _LARGEST for x in leaves):
            continue
        if not takes(packet, tree_unflatten(leaves, spec)):
            return False  # the database calls it by a function of another signature
        for other in itertools.islice(changed(leaves), _CHANGES):
            given = tree_unflatten(other, spec)
            if not takes(packet, tree_map_only(Tensor, torch.clone, given)):
                with FakeTensorMode() as mode:
                    if takes(packet, tree_map_only(Tensor, mode.from_tensor, given)):
                        return True
    return False


def main() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)  # a forked process has no others
    found = set()
    for entry in op_db:
        name = entry.aten_name or entry.name
        packet = getattr(torch.ops.aten, name, None)
        if not isinstance(packet, OpOverloadPacket) or not {torch.float32, torch.int64} & {*entry.dtypes}:
            continue
        if (child := os.fork()) == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch logs what it refuses
            try:
                refused = is_refused_by_the_kernel_alone(packet, entry)
            except Exception:  # of a sample that cannot be made here
                refused = False
            os._exit(int(refused))
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            found.add(name)
    print(json.dumps(sorted(found)))


if __name__ == "__main__":
    main()
