"""What a kind of mutants is made of, and the changes to bytes, documents and words that the kinds share."""

from __future__ import annotations

import abc
import contextlib
import json
import os
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

CANARY = "canary"  # a file that no mutant may make


class Kind(abc.ABC):
    """One kind of input, in the child: whole files are made once, then one mutant after the other is made and tried.

    An outcome that begins with a capital letter must not be; words in small letters are what is counted.
    """

    name: ClassVar[str]
    models: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary = folder / CANARY

    @abc.abstractmethod
    def mutant(self, rng: random.Random, model: str) -> str:
        """Write one mutant of a model's file; what was done to it."""

    @abc.abstractmethod
    def outcome(self, model: str, kind: str) -> str:
        """What became of it."""

    def tried(self, model: str, kind: str) -> str:
        """As `outcome`; an error that is none of ours is one that must not be."""
        import ir

        try:
            return self.outcome(model, kind)
        except ir.ExportError as error:
            return "refused" if len(str(error)) < 20_000 else f"FOREIGN: an error of {len(str(error))} letters"
        except Exception as error:
            return f"FOREIGN: {type(error).__name__}: {error!s:.300}"

    def processes(self) -> list[int]:
        """The ids of further processes that hold a mutant."""
        return []


# -- places on the disk ------------------------------------------------------------------------------------------------


def emptied(folder: Path) -> Path:
    """The folder with nothing in it, whatever was."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(os.fsencode(folder))
    elif os.path.lexists(folder):
        folder.unlink()
    folder.mkdir()
    return folder


def no_file(rng: random.Random, path: Path) -> str:
    """Something else in the place of a file: a pipe, a directory, a link to nowhere or to itself, a device, nothing."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    makers = {
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "link to nowhere": lambda: path.symlink_to("nowhere"),
        "link to itself": lambda: path.symlink_to(path.name),
        "device": lambda: path.symlink_to("/dev/zero"),
        "nothing": lambda: None,
        "empty": path.touch,
    }
    made = rng.choice(list(makers))
    makers[made]()
    return made


NAMES = ("a\nb", "a'b", 'a"b', "a\\b", "a b", "-", "\udcff", "class", "\x1b[31m", "ä", "%s{}", "x" * 200)


# -- bytes -------------------------------------------------------------------------------------------------------------


def changed_bytes(rng: random.Random, whole: bytes) -> bytes:
    """Cut, with a bit or some bytes turned over, or with bytes put in."""
    data = bytearray(whole)
    kind = rng.randrange(4)
    if kind == 0 or not data:
        return bytes(data[: rng.randrange(len(data) or 1)])
    if kind == 1:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        for _ in range(rng.choice((2, 16, 256))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    else:
        at = rng.randrange(len(data))
        data[at:at] = rng.randbytes(rng.choice((1, 22, 64)))
    return bytes(data)


# -- documents ---------------------------------------------------------------------------------------------------------


def _keys(container: Any) -> Any:
    return container if isinstance(container, dict) else range(len(container))


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document of JSON."""
    found: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        at = pending.pop()
        keys = list(_keys(at)) if isinstance(at, (dict, list)) else ()
        found += [(at, k) for k in keys]
        pending += [at[k] for k in keys]
    return found


def changed_document(rng: random.Random, data: bytes, leaves: Sequence[Any], hostile: Sequence[str]) -> bytes:
    """Some places of a document changed: taken out, by a number, as elsewhere, shuffled, or one of the leaves.

    With `hostile` it is these that are put in, into texts that are there or in the place of something.
    """
    document = json.loads(data)
    there = places(document)
    for at, key in rng.sample(there, k=min(len(there), rng.choice((1, 1, 1, 2, 4)))):
        kind = rng.randrange(5)
        if key not in _keys(at):
            continue  # taken out before
        if hostile:
            whole = at[key] if isinstance(at[key], str) and rng.random() < 0.7 else ""
            cut = rng.choice((0, rng.randrange(len(whole) + 1), len(whole)))
            at[key] = whole[:cut] + rng.choice(hostile) + whole[cut:]
        elif kind == 0 and isinstance(at, dict):
            at.pop(key)
        elif kind == 1 and isinstance(at[key], int) and not isinstance(at[key], bool):
            at[key] += rng.choice((-1, 1, 2, 1000))
        elif kind == 2:  # what stands under the same key elsewhere
            at[key] = rng.choice([a[k] for a, k in there if k == key and type(a) is type(at) and k in _keys(a)])
        elif kind == 3 and isinstance(at, list):
            rng.shuffle(at)
        else:
            at[key] = rng.choice(leaves)
    try:
        return json.dumps(document).encode()
    except (ValueError, RecursionError):  # a place that now holds itself
        return data[:-1]


# -- words -------------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"\w[\w.]*|->|'[^']*'|\s+|.", re.DOTALL)


def _costly(rng: random.Random) -> str:
    """Words that are few and cost much: depth, length, sizes, calls of calls."""
    n = rng.choice((3, 8, 30, 300, 3000))
    m = rng.choice((2, 1000, 2**16, 2**31, 2**40, 10**30))
    return rng.choice((
        "(" * n + "x" + ")" * n, "[" * n + "x" + "]" * n, "neg(" * n + "x" + ")" * n, "-" * n + "x", "!" * n + "x",
        " + ".join(["x"] * n), " ^ ".join(["x"] * n), "[" + ", ".join(["x"] * n) + "]", "x" * n, "9" * n,
        "x" + "[0]" * n, "'" + "y" * n + "'", f"tile(x, repeats = [{m}, {m}])", f"tract_core_range(0, {m}, 1)",
        f"pad(x, padding = [({m}, {m}), (0, 0)])", f"tile([[1.0]], repeats = [{m}, {m}])",
        f"reshape(x, shape = [{m}, -1])",
        f"matmul(tile([[1.0]], repeats = [{m}, {m}]), tile([[1.0]], repeats = [{m}, {m}]))",
        f"{m}", f"-{m}", f"1e{n}", f"[{m}, {m}]",
        f"concat([{', '.join(['x'] * n)}], axis = 0)", f"slice(x, axes = [0], begin = [{m}], end = [0])",
    ))  # fmt: skip


_WORDS = (
    "", "(", ")", "[", "]", "{", "}", "<", ">", ",", ";", ":", "=", "-", "->", "'", '"', "#", "\\", "\0", "\n", "ä",
    "if", "else", "for", "in", "0", "-1", "1.5", "inf", "nan", "true", "x", "y", "fragment", "graph", "variable", "2",
    "external", "neg", "relu", "tensor<scalar>", "extension", "version 1.0;", "extension tract_symbol S;", "S",
    "label = '../canary'",
    "label = '/etc/passwd'", "shape = []", "'f64'", "'q8'", "64", "axis = 7", "axes = [-1]", "axes = [5]", "groups = 0",
    "stride = [0, 0]", "dilation = [0, 0]",
)  # fmt: skip


def changed_words(rng: random.Random, text: str) -> str:
    """A text of NNEF with words taken out, doubled, swapped, as elsewhere, or with others in their place."""
    words = _WORD.findall(text)
    solid = [i for i, w in enumerate(words) if not w.isspace()]
    for at in rng.sample(solid, k=min(len(solid), rng.choice((1, 1, 1, 2, 4)))):
        kind = rng.randrange(8)
        if kind == 0:
            words[at] = ""
        elif kind == 1:
            words[at] += " " + words[at]
        elif kind == 2:
            other = rng.choice(solid)
            words[at], words[other] = words[other], words[at]
        elif kind == 3:
            words[at] = words[rng.choice(solid)]
        elif kind == 4 and words[at].replace(".", "").isdigit():
            words[at] = str(rng.choice((0, 1, 2, 3, 7, 64, 2**16, 2**31, 2**63, 10**25)))
        elif kind == 5:
            words[at] = _costly(rng)
        else:
            words[at] = rng.choice(_WORDS)
    return "".join(words)
