"""torch's fake tensors with an account of every op: what lay on the CPU, and what made the host wait.

Fake tensors have no content, so what a program asks of content (a number, the places that are not zero) is answered
from a run of the same program on the CPU, in the same order.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from eager_backend.building import devices
from eager_backend.building.cuda import Cuda

GPU = torch.device("cuda:0")
_READS_CONTENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_MASKS = (torch.bool, torch.uint8)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_DENSE = torch._C.DispatchKey.CompositeExplicitAutograd
Answers = dict[str, deque[Any]]


def _convolved(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    bias, stride, padding, dilation, groups = rest[-5:]
    return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)


# the kernels of CUDA for which torch has no fake ones: results of these shapes
_SHAPES: dict[str, Callable[..., Any]] = {
    "aten.cudnn_convolution_relu.default": _convolved,
    "aten.cudnn_convolution_add_relu.default": _convolved,
    **{
        f"aten._use_{library}_ctc_loss.{overload}": lambda *args, **kwargs: False
        for library in ("cudnn", "miopen")
        for overload in ("Tensor", "default")
    },
    "aten._thnn_fused_gru_cell.default": lambda gates, _, hx, *biases: (hx.clone(), hx.repeat(1, 5)),
    "aten._thnn_fused_lstm_cell.default": lambda gates, _, cx, *biases: (cx.clone(), cx.clone(), cx.repeat(1, 4)),
}


@dataclass(frozen=True)
class Event:
    """One op of a run: what it is, and what is told of it."""

    op: str
    what: str  # "on the CPU", or why the host waits


@dataclass
class Account:
    """What a run did that a program on a GPU should not."""

    events: list[Event] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Event]:
        return [e for e in self.events if e.what in kinds]


class NoAnswer(Exception):
    """The run asks for content, and nothing was recorded."""


def tensors(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def reads_content(func: Any, args: Any, kwargs: Any) -> bool:
    """True if the host must know content before it can go on: by torch's own tags, and by masks among indices."""
    name = func.overloadpacket.__name__.rstrip("_").removeprefix("_unsafe_")
    if name.startswith("index"):  # without a mask among the indices sizes are known
        return any(t.dtype in _MASKS for t in tensors(args[1:2])) if name in ("index", "index_put") else False
    if kwargs.get("output_size") is not None:
        return False
    return any(tag in func.tags for tag in _READS_CONTENT)


def noted(account: Account, func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Write down what this op did."""
    name = f"{func.namespace}.{func.overloadpacket.__name__.rstrip('_')}"  # in place or not
    given, made = tensors((args, kwargs)), tensors(result)
    if reads_content(func, args, kwargs):
        account.events.append(Event(name, "reads content"))
    if made and {t.device.type for t in given} | {t.device.type for t in made} == {"cpu", "cuda"} and _copies(func):
        account.events.append(Event(name, "copies between host and GPU"))
    elif any(t.device.type == "cpu" for t in (*given, *made)):
        account.events.append(Event(name, "on the CPU"))


def _copies(func: Any) -> bool:
    return func.overloadpacket.__name__ in ("_to_copy", "copy_", "to", "copy")


def answer(recorded: Answers | None, func: Any) -> Any:
    """What the same call gave on the CPU.

    Raises:
        NoAnswer: nothing was recorded.
    """
    if recorded is None or not recorded[str(func)]:
        raise NoAnswer(str(func))
    return pytree.tree_map_only(
        Tensor,
        lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=GPU),
        recorded[str(func)].popleft(),
    )


def _apart(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The op as those that torch makes it of; NotImplemented for one that is a kernel."""
    if func.namespace == "prim" or not func.has_kernel_for_dispatch_key(_COMPOSITE):
        return NotImplemented
    in_python = func.py_kernels.get(_COMPOSITE)
    if in_python is not None:
        with mode, _Unguarded():
            return in_python(*args, **kwargs)
    with mode:
        return func.decompose(*args, **kwargs)


@contextlib.contextmanager
def gpu(account: Account, recorded: Answers | None = None) -> Iterator[FakeTensorMode]:
    """Inside, tensors are fake and there is one GPU."""
    plain = FakeTensorMode.__torch_dispatch__

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        found = _apart(mode, func, args, kwargs)
        if found is not NotImplemented:
            return found
        shaped = _SHAPES.get(str(func))
        with _Unguarded():  # torch's own fake kernels index, too
            if reads_content(func, args, kwargs):
                with mode:
                    result = answer(recorded, func)
            elif shaped is not None:
                with mode:
                    result = shaped(*args, **kwargs)
            else:
                result = plain(mode, func, types, args, kwargs)
        noted(account, func, args, kwargs, result)
        return result

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False  # entries of a program's capture would answer without the account
    with (
        mock.patch.object(FakeTensorMode, "__torch_dispatch__", dispatch),
        one_gpu(),
        dense_loops(),
        _made_up(),
        mode,
        _Unguarded(),
    ):
        yield mode


@contextlib.contextmanager
def _made_up() -> Iterator[None]:
    """Kernels without a fake one run on the CPU over zeros: the shapes of results are asked for, not the content."""

    def run(mode: Any, func: Any, flat: Any, spec: Any, error: Any) -> Any:
        fakes = [t for t in flat if isinstance(t, FakeTensor)]
        with no_dispatch():
            real = [torch.zeros(t.shape, dtype=t.dtype) if isinstance(t, FakeTensor) else t for t in flat]
            args, kwargs = pytree.tree_unflatten(real, spec)
            made = func(*args, **kwargs)
        known = dict(zip(map(id, real), flat, strict=True))
        with mode:
            return pytree.tree_map_only(
                Tensor,
                lambda t: known.get(
                    id(t), torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=fakes[0].device)
                ),
                made,
            )

    with mock.patch.object(fake_tensor, "run_fallback_kernel", run):
        yield


class _Unguarded(TorchFunctionMode):
    """Methods whose bindings ask for the device's guard, which a build for the CPU has not: their ops do not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and args[0].device.type == "cuda":
            return _at(*args)
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if "not linked with support for cuda" not in str(error):
                raise
        if func.__name__ == "__get__":  # an attribute
            return getattr(torch.ops.aten, _other_name(func.__self__.__name__))(args[0])
        return getattr(torch.ops.aten, _other_name(func.__name__))(*args, **(kwargs or {}))


def _other_name(method: str) -> str:
    """The op of a method or an attribute."""
    return {"T": "numpy_T", "H": "matrix_H", "__invert__": "bitwise_not"}.get(method, method)


def _at(x: Tensor, index: Any) -> Tensor:
    """Numbers, slices, None and tensors between the brackets, one after another."""
    axis, chosen = 0, {}
    parts = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [p for p in parts if not isinstance(p, Tensor)]:
        place = next(i for i, p in enumerate(parts) if p is Ellipsis)
        left = x.dim() - sum(p is not None and p is not Ellipsis for p in parts)
        parts = (*parts[:place], *[slice(None)] * left, *parts[place + 1 :])
    for part in parts:
        if isinstance(part, int) or (isinstance(part, Tensor) and not part.dim()):
            x = torch.ops.aten.select.int(x, axis, int(part))
            continue
        if isinstance(part, slice):
            x = torch.ops.aten.slice.Tensor(x, axis, part.start, part.stop, part.step or 1)
        elif part is None:
            x = torch.ops.aten.unsqueeze.default(x, axis)
        elif isinstance(part, Tensor):
            chosen[axis] = part
            axis += part.dim() - 1 if part.dtype in _MASKS else 0
        else:
            raise TypeError(f"not an index that programs write: {part!r}")
        axis += 1
    if not chosen:
        return x
    places = [a for a in range(max(chosen) + 1) if a in chosen or not _covered(a, chosen)]
    return torch.ops.aten.index.Tensor(x, [chosen.get(a) for a in places])


def _covered(axis: int, chosen: dict[int, Tensor]) -> bool:
    """True for an axis that a mask before it takes as well."""
    return any(a < axis < a + t.dim() for a, t in chosen.items() if t.dtype in _MASKS)


class Recorder(TorchDispatchMode):
    """Keeps what a run on the CPU reads of content."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: Answers = defaultdict(deque)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        result = _apart(self, func, args, kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
            if reads_content(func, args, kwargs):
                self.answers[str(func)].append(result)
        return result


@contextlib.contextmanager
def recording() -> Iterator[Answers]:
    """Inside, programs run on the CPU, and what they read of content is kept."""
    with dense_loops(), Recorder() as recorder:
        yield recorder.answers


class OneGpu(Cuda):
    """A GPU that never makes anybody wait."""

    def count(self) -> int:
        return 1

    def current(self) -> int:
        return 0

    def synchronize(self, device: torch.device) -> None:
        pass


@contextlib.contextmanager
def one_gpu() -> Iterator[None]:
    """The eager target takes GPU 0 for one that is there; cuDNN as well."""
    with mock.patch.object(devices, "runtime", OneGpu()), mock.patch("torch.backends.cudnn.is_available", lambda: True):
        yield


@contextlib.contextmanager
def dense_loops() -> Iterator[None]:
    """torch's branches and loops as they run on a device: under fake tensors they are traced, and wait for nobody."""

    def call(op: Any, *args: Any, **kwargs: Any) -> Any:
        run: Any = op.py_kernels[_DENSE]
        # they ask that no mode is there, which is about traces
        with mock.patch.dict(run.__globals__, _get_current_dispatch_mode=lambda: None):
            return run(*args, **kwargs)

    with mock.patch.object(HigherOrderOperator, "__call__", call):
        yield
