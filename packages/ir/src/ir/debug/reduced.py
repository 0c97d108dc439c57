"""What `ir.debug.reduce` found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ir.debug.search import Verdict
from ir.errors import OutputError
from ir.files import head, writable
from ir.words import counted

_HEAD = re.compile(rb"# torch \S+, .*Python \d")  # the first line of every script


@dataclass(frozen=True)
class Reduced:
    """What `reduce` found.

    Attributes:
        verdict: how the program fails: `kind` is "mismatch", "export", "runtime", "crash" or "hang"; "capture" where
            torch.export refuses the model.
        script: Python with torch and the runtime alone; empty where the export itself is refused.
        ir_script: Python that exports and verifies the same with `ir.export`; empty where torch has no
            function for what is left.
        nodes: the ops that are left, as torch names them.
        paths: the files that were written.
        trials: how many programs were tried.
        seconds: what it took.
        module: of a model that torch.export refuses, the path of the smallest module that it refuses in the same way.
        note: what else there is to say.
        sizes: the sizes at which it fails, where the program's own arguments do not.
    """

    verdict: Verdict
    script: str
    ir_script: str
    nodes: tuple[str, ...]
    paths: tuple[Path, ...] = ()
    trials: int = 0
    seconds: float = 0.0
    module: str = ""
    note: str = ""
    sizes: str = ""

    def data(self) -> dict[str, Any]:
        """For programs."""
        verdict = {"kind": self.verdict.kind, "what": self.verdict.what, "text": self.verdict.text}
        return {
            "verdict": verdict, "nodes": list(self.nodes), "paths": [str(p) for p in self.paths],
            "trials": self.trials, "seconds": self.seconds, "script": self.script, "ir_script": self.ir_script,
            "module": self.module, "note": self.note, "sizes": self.sizes,
        }  # fmt: skip

    def __str__(self) -> str:
        said = self.verdict.text.strip().partition("\n")[0]
        left = "node is" if len(self.nodes) == 1 else "nodes are"
        nodes = f"{len(self.nodes)} {left} left: {', '.join(self.nodes)}"
        at = f" at {self.sizes}" if self.sizes else ""
        about = [nodes, *filter(None, [self.note])] if self.nodes else [self.note]
        lines = [f"{self.verdict.kind}{at}: {said}", *about]
        lines.append(f"{counted(self.trials, 'trial')} in {self.seconds:.1f} s")
        if not self.script and not self.ir_script:
            lines.append("no script: an op is left that torch has no function for")
        elif not self.script and self.verdict.kind in ("mismatch", "runtime"):
            lines.append("no script without ir: the target has no such form, or torch has no function for an op")
        return "\n".join([*lines, *(f"written to {p}" for p in self.paths)])


def check_path(path: str | Path) -> None:
    """Whether the scripts may be written there, before a search for them begins.

    Raises:
        OutputError: the name is none of a script, its folder does not exist, or what lies there is no script of ours.
    """
    place = writable(path)
    if place.suffix != ".py":
        raise OutputError(f"{place.name:.100} is no name for a script: call it {place.stem:.100}.py")
    for file in (place, place.with_name(f"{place.stem}_ir.py")):
        if file.is_dir() or (file.exists() and not _HEAD.match(head(file, 1000))):
            raise OutputError(f"{file} is no script of ir reduce and stays as it is; choose another path")
