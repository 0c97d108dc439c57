"""A flame chart of a profile: modules inside of modules, as wide as their time, as a page without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from ir.debug.profile import Profile
from ir.errors import OutputError
from ir.files import head, writable

_STYLE = """body{font:13px sans-serif}.chart{position:relative}.chart div{position:absolute;height:20px;overflow:hidden;
white-space:nowrap;box-sizing:border-box;border:1px solid #fff;padding:1px 3px;background:#f4b183}
td,th{padding:2px 8px;text-align:left;border-bottom:1px solid #ddd}"""
_THIN = 0.002  # of the whole, below which a module is left out


def check_path(path: Path) -> None:
    """Whether a page may be written there, before anything is measured.

    Raises:
        OutputError: the name is none of a page, its folder does not exist, or what lies there is no page of these.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{path.name:.100} is no name for a page: call it {path.stem:.100}.html")
    writable(path)
    if path.is_dir() or (path.exists() and _STYLE.encode() not in head(path, 1 << 20)):
        raise OutputError(f"{path} is no page of ir profile and stays as it is; choose another path")


def page(title: str, profiles: list[Profile]) -> str:
    """The charts and tables of some profiles."""
    body = "".join(f"<h2>{escape(p.target)}</h2>{chart(p)}{_table(p)}" for p in profiles)
    return f'<!doctype html><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>{body}'


def chart(profile: Profile) -> str:
    """The chart of one profile; what a module does itself is the part that no module below it covers."""
    modules = profile.modules
    boxes = list(_boxes("", 0.0, 0, modules, profile.seconds or 1.0))
    height = 22 * (1 + max((depth for *_, depth in boxes), default=0))
    divs = [
        f'<div style="left:{100 * left:.3f}%;width:{100 * width:.3f}%;top:{22 * depth}px" '
        f'title="{escape(name or "all")}: {modules.get(name, 0.0) * 1e3:.3f} ms, {width:.1%}">'
        f"{escape(name.rpartition('.')[2] or 'all')}</div>"
        for name, left, width, depth in boxes
    ]
    return f'<div class="chart" style="height:{height}px">{"".join(divs)}</div>'


def _boxes(
    name: str, left: float, depth: int, modules: Mapping[str, float], total: float
) -> Iterator[tuple[str, float, float, int]]:
    """Module, left edge, width and depth, from the outermost on; edges and widths in parts of the whole."""
    width = modules.get(name, 0.0) / total
    if width < _THIN:
        return
    yield name, left, width, depth
    for other, seconds in modules.items():
        if other and other.rpartition(".")[0] == name and other != name:
            yield from _boxes(other, left, depth + 1, modules, total)
            left += seconds / total


def _table(profile: Profile) -> str:
    head = "".join(f"<th>{h}</th>" for h in ("node", "ms", "share", "op", "module", "source", "runtime's ops"))
    rows = [
        (r.name, f"{r.seconds * 1e3:.3f}", f"{r.share:.1%}", r.op, r.module, r.source, ", ".join(r.ops))
        for r in profile.rows[:200]
    ]
    cells = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{cells}</table>"
