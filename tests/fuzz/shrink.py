"""A failing program made small: whatever can go goes, as long as the same target fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from tests.fuzz.program import TRACED, Program
from tests.fuzz.worker import Worker

NAME = re.compile(r"\b[a-z]\d*\b")


def kind_of(detail: str) -> str:
    """A message without what differs between programs: names, numbers, sizes."""
    line = re.sub(r"\s+", " ", detail.split(" at {")[0])
    line = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}|<[^>]*>", "_", line)
    return re.sub(r"-?\b(\d[\w.+-]*|[a-z]\w*_\d+|v\d+|nan|inf)\b", "#", line)[:160]


def shrink(program: Program, target: str, kind: str, detail: str, way: str = "program", budget: int = 150) -> Program:
    """The smallest program found that fails as this one does."""
    worker, wanted = Worker([target]), kind_of(detail)

    def fails(candidate: Program) -> bool:
        found = worker.ask({"program": asdict(candidate), "way": way})
        return any(o["kind"] == kind and (kind == "wrong" or kind_of(o["detail"]) == wanted) for o in found)

    try:
        return reduced(program, fails, budget)
    finally:
        worker.close()


def reduced(program: Program, fails: Callable[[Program], bool], budget: int = 150) -> Program:
    """Delta debugging over results, steps, inputs and dynamic dimensions."""
    progress = True
    while progress and budget > 0:
        progress = False
        for candidate in _smaller(program):
            budget -= 1
            if budget < 0:
                break
            if fails(candidate):
                program, progress = candidate, True
                break
    return program


def _smaller(p: Program) -> Iterator[Program]:
    names = [n for n in dict.fromkeys(NAME.findall(p.result)) if n != p.result and re.match(r"[vxyzbnw]", n)]
    yield from (replace(p, result=n) for n in names)
    needed = set(NAME.findall(p.result))
    dead = [i for i, step in enumerate(p.steps) if not _reads_of_later(p, i, needed)]
    if dead:
        yield replace(p, steps=tuple(s for i, s in enumerate(p.steps) if i not in dead))
    for i in reversed(range(len(p.steps))):
        rest = p.steps[:i] + p.steps[i + 1 :]
        yield replace(p, steps=rest)
        made, _, expression = p.steps[i].partition(" = ")
        if re.fullmatch(r"[vn]\d+", made):
            for name in dict.fromkeys(NAME.findall(expression)):
                again = tuple(re.sub(rf"\b{made}\b", name, s) for s in rest)
                yield replace(p, steps=again, result=re.sub(rf"\b{made}\b", name, p.result))
    for i in range(len(p.members)):
        yield replace(p, members=p.members[:i] + p.members[i + 1 :])
    text = " ".join((*p.steps, p.result))
    for i in p.inputs:
        if i.name not in NAME.findall(text) and len(p.inputs) > 1:
            yield replace(p, inputs=tuple(other for other in p.inputs if other is not i))
        elif any(isinstance(s, str) for s in i.shape):
            fixed = tuple(TRACED[s] if isinstance(s, str) else s for s in i.shape)
            yield replace(p, inputs=tuple(replace(i, shape=fixed) if other is i else other for other in p.inputs))
        if i.values != "grid":
            yield replace(p, inputs=tuple(replace(i, values="grid") if other is i else other for other in p.inputs))


def _reads_of_later(p: Program, i: int, needed: set[str]) -> bool:
    made, _, _ = p.steps[i].partition(" = ")
    names = set(re.findall(r"\b[vn]\d+\b", made)) if re.fullmatch(r"[vn]\d+(, [vn]\d+)*,?", made) else set()
    later: set[str] = set(needed)
    for step in p.steps[i + 1 :]:
        later |= set(NAME.findall(step))
    return not names or bool(names & later)
