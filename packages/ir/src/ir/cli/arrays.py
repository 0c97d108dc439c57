"""What a file is run on: arrays from .npy and .npz files, random ones by its own signature; results into a file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ir.cli.array_files import arrays_in
from ir.cli.inputs import Input, parse
from ir.cli.wrong import WrongCall
from ir.errors import OutputError, RefusedError
from ir.files import is_same, staged, writable
from ir.opened import Opened, Port, extent, symbols_of
from ir.runtime.binding import Binding
from ir.types import DType
from ir.words import counted

_OTHER = 16  # of dynamic dimensions that are not the first of an input, whose example is 1
_BELOW = 2  # random integers: what every vocabulary, mask and set of classes has


def given(texts: Sequence[str]) -> dict[str, torch.Tensor | Input]:
    """What `--input` says, by name; "" and "1", "2"... for those without one.

    Raises:
        WrongCall: a file that holds no arrays, or a name that stands twice.
    """
    found: dict[str, torch.Tensor | Input] = {}
    for text in texts:
        for name, value in _one(text):
            key = name or f"#{sum(k.startswith('#') for k in found)}"
            if key in found:
                raise WrongCall(f"--input: {key!r} is given twice")
            found[key] = value
    return found


def files(texts: Sequence[str]) -> list[str]:
    """The files that `--input` names, beside words for inputs that are made, which are names of none."""
    return [_parted(text)[1] for text in texts]


def _parted(text: str) -> tuple[str, str]:
    """The name of an input and its file; "" for none."""
    name, equals, rest = text.partition("=")
    return (name, rest) if equals and not Path(text).exists() else ("", text)


def _one(text: str) -> list[tuple[str, torch.Tensor | Input]]:
    name, path = _parted(text)
    if path.lower().endswith(".npz"):
        return [(key, _tensor(array, path)) for key, array in arrays_in(path)]
    if path.lower().endswith(".npy"):
        return [(name, _tensor(array, path)) for _, array in arrays_in(path)]
    if path.lower().endswith(("]", ">")) or "[" in path:
        made = parse(text)
        return [(made.name, made)]
    raise WrongCall(f"--input {text!r:.100}: write [NAME=]FILE.npy, FILE.npz or NAME=DTYPE[SIZES]")


def _tensor(array: np.ndarray, path: str) -> torch.Tensor:
    try:
        return torch.from_numpy(np.array(array, order="C"))
    except TypeError as error:
        raise WrongCall(f"{path}: torch has no tensors of {array.dtype}") from error


def sizes(texts: Sequence[str]) -> dict[str, int]:
    """What `--size` says.

    Raises:
        WrongCall: it has another form than NAME=NUMBER.
    """
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name.isidentifier() or not number.isdigit():
            raise WrongCall(f"--size {text!r:.60}: write NAME=NUMBER, such as batch=4")
        found[name] = int(number)
    return found


def fitting(
    program: Opened, values: Mapping[str, torch.Tensor | Input], chosen: Mapping[str, int], seed: int
) -> tuple[list[torch.Tensor], dict[str, int]]:
    """One tensor for each input of a program, and the sizes that were chosen.

    Raises:
        WrongCall: the names, types or sizes are not those of the program.
    """
    torch.manual_seed(seed)
    named = _named(program.inputs, values)
    known = _known(program.inputs, named, chosen)
    made = []
    for port in program.inputs:
        value = named.get(port.name)
        if value is None:
            shape = tuple(extent(s, known) for s in port.shape)
            value = Input(port.name, getattr(torch, port.dtype.name), shape, _BELOW)
        tensor = _made(port, _placed(port, value, known), known) if isinstance(value, Input) else value
        made.append(_as_declared(port, tensor))
    try:
        made = Binding(program.inputs)(made)
    except RefusedError as error:
        raise WrongCall(f"--input {error}") from error
    return made, {name: known[name] for name in dict.fromkeys(symbols_of(program.inputs)) if name in known}


def _made(port: Port, value: Input, known: dict[str, int]) -> torch.Tensor:
    try:
        return value.tensor(known)
    except (RuntimeError, MemoryError) as error:  # torch's, for more than there is memory for
        raise WrongCall(f"--input {port.name}: {port} cannot be made ({error}); give sizes with --size") from error


def _placed(port: Port, value: Input, known: Mapping[str, int]) -> Input:
    """The description with the file's sizes in place of names: the file may fix them, or call them differently."""
    if len(value.sizes) != len(port.shape):
        raise WrongCall(f"--input {port.name} has {counted(len(value.sizes), 'size')}, and the file takes {port}")
    sizes: list[int | tuple[str, int]] = []
    for said, declared in zip(value.sizes, port.shape, strict=True):
        if isinstance(said, tuple):  # an example beside a fixed size stays, and is refused if it is another
            sizes.append((isinstance(declared, int) and said[1]) or extent(declared, known))
        else:
            sizes.append(said)
    return replace(value, sizes=tuple(sizes))


def _named(ports: Sequence[Port], values: Mapping[str, Any]) -> dict[str, Any]:
    names = [p.name for p in ports]
    unknown = [k for k in values if not k.startswith("#") and k not in names]
    if unknown:
        raise WrongCall(f"--input {unknown[0]}: the file takes {_list(names)}")
    free = iter([n for n in names if n not in values])
    found = {}
    for key, value in values.items():
        name = next(free, None) if key.startswith("#") else key
        if name is None:
            raise WrongCall(f"--input: {len(values)} are given, and the file takes {_list(names)}")
        found[name] = value
    return found


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _known(ports: Sequence[Port], named: Mapping[str, Any], chosen: Mapping[str, int]) -> dict[str, int]:
    """The sizes: those of the tensors that are given, those that were asked for, examples for the rest."""
    symbols = list(dict.fromkeys(symbols_of(ports)))
    if unknown := [n for n in chosen if n not in symbols]:
        raise WrongCall(f"--size {unknown[0]}: the file's dynamic dimensions are {_list(symbols)}")
    known = dict(chosen)
    for port in ports:
        value = named.get(port.name)
        if value is None:
            continue
        said = value.sizes if isinstance(value, Input) else value.shape
        sizes = (s[1] or None if isinstance(s, tuple) else s for s in said)
        for declared, size in zip(port.shape, sizes, strict=False):
            if isinstance(declared, str) and declared.isidentifier() and size is not None:
                known.setdefault(declared, size)
    first = {p.shape[0] for p in ports if p.shape}
    return {n: 1 if n in first else _OTHER for n in symbols} | known


def _as_declared(port: Port, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in bfloat16 where the file takes that: numpy's files have none."""
    return tensor.bfloat16() if port.dtype is DType.bfloat16 and tensor.dtype is torch.float32 else tensor


def check_output(path: Path, read: Sequence[str | Path]) -> None:
    """Before the run begins: whether results may be written there, `read` being what the run is of.

    Raises:
        OutputError: the name is none of a .npz, one that is read bears it, too, or something else lies there.
    """
    if path.suffix.lower() != ".npz":
        raise OutputError(f"{path}: results are written to a .npz; call it {path.stem}.npz")
    _ours(writable(path))
    if same := next((r for r in read if is_same(r, path)), None):
        raise OutputError(f"{path} is read by this run, as {same}: give another name, as -o {path.stem}.out.npz")


def save(path: Path, results: Mapping[str, torch.Tensor]) -> None:
    """Results by name in a .npz; bfloat16 as float32, for numpy has no word for it.

    Raises:
        OutputError: something else lies there.
    """
    with staged(path, _ours) as temporary:
        held: dict[str, Any] = {n: as_array(t) for n, t in results.items()}
        np.savez(temporary, **held)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's data; bfloat16 as float32."""
    wide = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    return np.asarray(wide.detach().cpu().resolve_conj().resolve_neg().numpy())


def _ours(path: Path) -> None:
    if path.is_dir() or (path.exists() and not zipfile.is_zipfile(path)):
        raise OutputError(f"{path} is no .npz and stays as it is; choose another path")
