"""Where a file's views are told, torch's functions choose the strides that they choose everywhere."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir.importer.checked import CHECKED_VIEWS, UncheckedError, _parts, kernels_of_file
from ir.importer.torch_api import DispatchKey, has_kernel, pytree, schema_of
from tests.ir.probe_kernels import operators
from tests.threads import on_short_stack

_SAMPLES = 4  # of a function


def _reversed(t: Tensor) -> Tensor:
    """The same numbers, in memory the other way round."""
    return t.permute(*range(t.dim())[::-1]).contiguous().permute(*range(t.dim())[::-1])


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


LAYOUTS: list[Callable[[Tensor], Tensor]] = [torch.clone, _reversed, _channels_last]


def _strides(made: Any) -> list[Any]:
    leaves = (t for t in pytree.tree_leaves(made) if isinstance(t, Tensor) and t.layout is torch.strided)
    return [(tuple(t.shape), t.stride()) for t in leaves]


def _compared(call: Callable[[], Any], name: str, counts: Counter[str]) -> list[str]:
    """What the call gives otherwise within the mode. Counted: what is compared, and what is refused."""
    torch.manual_seed(0)
    try:
        expected = _strides(call())
    except Exception:  # of no such layout
        return []
    try:
        torch.manual_seed(0)
        with kernels_of_file():
            made = _strides(call())
    except UncheckedError:
        counts["refused"] += 1
        return []
    counts["compared"] += 1
    return [] if made == expected else [f"{name}: {made}, not {expected}"]


@on_short_stack
def test_functions_choose_the_same_strides() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    counts: Counter[str] = Counter()
    found: list[str] = []
    for entry in op_db:
        if torch.float32 not in entry.dtypes or "jiterator" in entry.name:
            continue
        for sample in itertools.islice(entry.sample_inputs("cpu", torch.float32, requires_grad=False), _SAMPLES):
            for layout in LAYOUTS:

                def call(entry: Any = entry, sample: Any = sample, layout: Any = layout) -> Any:
                    plain = Tensor, lambda t: layout(t.detach()) if t.layout is torch.strided else t
                    given = pytree.tree_map_only(*plain, (sample.input, sample.args, sample.kwargs))
                    return entry.op(given[0], *given[1], **given[2])

                with torch.no_grad():
                    found += _compared(call, entry.name, counts)
    assert not found
    assert counts["compared"] > 4 * counts["refused"] > 0


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("projected", [0, 2])
def test_an_lstm_has_the_strides_of_that_of_mkldnn(layers: int, bidirectional: bool, batch_first: bool,
                                                   projected: int) -> None:  # fmt: skip
    net = torch.nn.LSTM(4, 3, layers, batch_first=batch_first, bidirectional=bidirectional, proj_size=projected).eval()
    counts: Counter[str] = Counter()
    for shape, layout in itertools.product([(5, 2, 4), (1, 2, 4), (5, 1, 4), (1, 1, 4), (5, 4)], LAYOUTS):
        with torch.no_grad():
            assert not _compared(lambda s=shape, to=layout: net(to(torch.ones(s))), "lstm", counts)
    assert counts == {"compared": 5 * len(LAYOUTS)}


def test_an_op_with_a_kernel_of_its_own_is_not_run_by_its_parts() -> None:
    """Neither by torch's decomposition nor by its composite-explicit kernel: torch runs the one for the CPU."""
    composite = DispatchKey.CompositeImplicitAutograd.name
    known = [o for o in operators() if has_kernel(o.name()) and schema_of(o).name not in CHECKED_VIEWS]
    own = [o for o in known if has_kernel(o.name(), DispatchKey.CPU.name) and not has_kernel(o.name(), composite)]
    assert [o for o in own if _parts(o, decomposed=True) is not None]
    assert not [o for o in own if _parts(o, decomposed=False) is not None]
