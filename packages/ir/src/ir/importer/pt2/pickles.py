"""What torch.save wrote into a record: tensors and plain values, read by torch.load(weights_only=True) after a check.

That unpickler runs no code, and takes the memory that a file tells it to: `bytearray(n)`, compressed records, a copy of
one long list again and again, a storage that is longer than its record. So the pickle is walked through first, with
stand-ins on the stack.
"""

from __future__ import annotations

import io
import pickletools
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from ir.errors import CaptureError
from ir.importer.pt2.archive import Records

_LARGEST = 1 << 22  # bytes of the pickle, beside the storages
_UTILS = ("tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state", "sparse_tensor", "qtensor",
          "meta_tensor_no_storage", "wrapper_subclass")  # fmt: skip
_PLAIN = {f"torch._utils._rebuild_{name}" for name in _UTILS} | {
    "torch.Size", "torch.device", "torch.serialization._get_layout", "collections.OrderedDict", "_codecs.encode",
    *(f"{module}.{name}" for module in ("__builtin__", "builtins") for name in ("set", "complex")),
}  # fmt: skip
_OF_A_CLASS = "torch._tensor._rebuild_from_type_v2"  # calls its first argument, for a tensor with attributes
# what is named and not called: it would be as large as it is told
_CLASSES = {"torch.Tensor", "torch.nn.parameter.Parameter", "torch.storage.UntypedStorage"}


def load(data: bytes) -> Any:
    """The object in a record.

    Raises:
        CaptureError: it holds something else than tensors, plain values and what `torch.serialization.safe_globals`
            names, or would take more memory than the record has bytes.
    """
    check(data)
    try:
        with torch.sparse.check_sparse_tensor_invariants():  # kernels trust the indices of a sparse tensor
            return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # of damaged pickles torch raises any kind
        raise CaptureError(f"torch.load(weights_only=True) refuses it ({type(error).__name__})") from error


def check(data: bytes) -> None:
    """Raises CaptureError: `load` does not take this record; there is more that torch does not take."""
    try:
        records = Records(data)
        start, size, _ = records.place("data.pkl")
        # torch takes the start for a pickle of an older format, if it is no record
        if data[:4] != b"PK\3\4" or records.has("constants.pkl") or size > _LARGEST:
            raise CaptureError("no pickle of torch.save, or a large one")
        _Walk(records, size).run(data[start : start + size])
    except CaptureError:
        raise
    except Exception as error:  # of damaged pickles, any kind
        raise CaptureError(f"no pickle of torch.save ({type(error).__name__})") from error


class _Global(NamedTuple):
    """What a pickle names."""

    name: str


class _Walk:
    """The machine of pickles with stand-ins: a list for a container and what is made, a text or number for itself."""

    def __init__(self, records: Records, size: int) -> None:
        self._records = records
        self._left = 8 * size + 1024  # values that may be copied
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[Any, Any] = {}
        self._callable = _PLAIN | {_name(entry) for entry in torch.serialization.get_safe_globals()}
        self._named = self._callable | _CLASSES | {_OF_A_CLASS}

    def run(self, pickle: bytes) -> None:
        """Raises CaptureError or any other: it is no pickle that torch may see."""
        for opcode, argument, _ in pickletools.genops(pickle):
            if isinstance(argument, int) and abs(argument) >= 2**63:
                raise CaptureError("a pickle with a number that is none of torch's")
            if opcode.name in _VALUES:
                self._stack.append(argument)
            elif opcode.name in _CONTAINERS:
                self._stack.append([])
            elif opcode.name in _STEPS:
                _STEPS[opcode.name](self, argument)
            elif (opcode.name, argument) not in (("PROTO", 2), ("STOP", None)):
                raise CaptureError(f"a pickle with the opcode {opcode.name}, which torch.save does not write")

    def named(self, name: str) -> None:
        name = name.replace(" ", ".", 1)
        if name not in self._named and _torch_own(name) is None:
            raise CaptureError(f"a pickle that names {name:.100}")
        self._stack.append(_Global(name))

    def mark(self, _: Any) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def to_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marks.pop()
        return items

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def put(self, index: Any) -> None:
        self._memo[index] = self._stack[-1]

    def get(self, index: Any) -> None:
        self._stack.append(self._memo[index])

    def tuple(self, count: int) -> None:
        items = [self._stack.pop() for _ in range(count)][::-1]
        self._stack.append(items)

    def add(self, items: list[Any]) -> None:
        """To the container that lies on top then."""
        self._stack[-1].extend(items)

    def add_last(self, count: int) -> None:
        self.tuple(count)
        self.add(self._stack.pop())

    def call(self, _: Any) -> None:
        """What is made holds copies of all that it is made of."""
        arguments, called = self._stack.pop(), self._stack.pop()
        function = arguments[0] if called == _Global(_OF_A_CLASS) else called
        if not isinstance(function, _Global) or function.name not in self._callable:
            raise CaptureError("a pickle that calls what is no function")
        self._pay(arguments)
        first = arguments[0] if arguments else None
        self._stack.append(list(first) if isinstance(first, list) else [])

    def build(self, _: Any) -> None:
        state = self._stack.pop()
        self._pay([state])
        self._stack[-1].extend(state if isinstance(state, list) else ())

    def storage(self, _: Any) -> None:
        kind, storage, key, _, count = self._stack.pop()
        own = _torch_own(storage.name)
        width = own.itemsize if isinstance(own, torch.dtype) else 1
        is_storage = kind == "storage" and storage.name.endswith("Storage")
        if not is_storage or type(count) is not int or type(key) is not str:
            raise CaptureError("a pickle with a reference of an unknown kind")
        if not 0 <= count * width <= self._records.place(f"data/{key}")[1]:
            raise CaptureError("a tensor that reaches over the end of its record")
        self._stack.append([])

    def _pay(self, values: list[Any]) -> None:
        """For a copy of these, and of what they hold."""
        pending = list(values)
        while pending:
            part = pending.pop()
            self._left -= len(part) if isinstance(part, (str, bytes)) else 1
            if self._left < 0:
                raise CaptureError("a pickle that copies what it holds again and again")
            if isinstance(part, list):
                pending += part


# no SHORT_BINSTRING, of which torch makes another text than pickletools: a name of a storage would be another one
_VALUES = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
_CONTAINERS = {"EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"}
_STEPS: dict[str, Callable[[_Walk, Any], None]] = {
    "GLOBAL": _Walk.named, "MARK": _Walk.mark, "REDUCE": _Walk.call, "NEWOBJ": _Walk.call, "BUILD": _Walk.build,
    "BINPERSID": _Walk.storage, "BINPUT": _Walk.put, "LONG_BINPUT": _Walk.put, "BINGET": _Walk.get,
    "LONG_BINGET": _Walk.get, "TUPLE": lambda walk, _: walk.push(walk.to_mark()),
    "TUPLE1": lambda walk, _: walk.tuple(1), "TUPLE2": lambda walk, _: walk.tuple(2),
    "TUPLE3": lambda walk, _: walk.tuple(3), "APPEND": lambda walk, _: walk.add_last(1),
    "SETITEM": lambda walk, _: walk.add_last(2), "APPENDS": lambda walk, _: walk.add(walk.to_mark()),
    "SETITEMS": lambda walk, _: walk.add(walk.to_mark()),
}  # fmt: skip


@cache
def _torch_own(name: str) -> Any:
    """An element type of torch's, or that of a storage class, or a kind of quantisation; None of another name."""
    module, _, own = name.rpartition(".")
    found = getattr(torch, own, None) if module == "torch" and own.isidentifier() else None
    if isinstance(found, type) and own.endswith("Storage"):
        with warnings.catch_warnings():  # of a use of such a class, which is of torch's past
            warnings.simplefilter("ignore")
            found = getattr(found, "dtype", None)
    return found if isinstance(found, (torch.dtype, torch.qscheme)) else None


def _name(entry: Any) -> str:
    """As a pickle names it; an entry with a name of its own is a pair."""
    return entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"
