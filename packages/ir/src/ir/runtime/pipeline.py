"""A model's stages as files in a folder, with the plan that joins them, and the driver that runs them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ir.errors import ExportError
from ir.files import stem
from ir.opened import Opened
from ir.plan import Plan
from ir.plugins import find_target
from ir.runtime import cpus, sessions
from ir.target import Target

if TYPE_CHECKING:
    from ir.importer.stages import Split

PLAN = "pipeline.json"


@dataclass(frozen=True)
class Pipeline:
    """The stages' files; a small object that pickle takes anywhere, each process opens the stages that it runs.

    Examples:
        >>> pipeline = Pipeline.of("folder")  # doctest: +SKIP
        >>> pipeline({"input_ids": tokens})["logits"]  # doctest: +SKIP
    """

    plan: Plan
    paths: tuple[str, ...]
    threads: int | None = None

    @classmethod
    def of(cls, folder: str | Path, threads: int | None = None) -> Pipeline:
        """The pipeline in a folder that `export` wrote.

        Raises:
            ExportError: there is none, or a stage's file is missing.
        """
        place = Path(folder).absolute()
        if not (place / PLAN).is_file():
            raise ExportError(f"{place} holds no {PLAN}: ir.runtime.pipeline.export writes one")
        plan = Plan.from_json((place / PLAN).read_text(errors="replace"))
        found = [sorted(p for p in place.glob(f"stage{k}.*") if _is_stage(p)) for k in range(len(plan.parts))]
        if missing := [k for k, paths in enumerate(found) if not paths]:
            raise ExportError(f"{place}: the file of stage {missing[0]} is missing")
        return cls(plan, tuple(str(paths[0]) for paths in found), threads)

    def stage(self, place: int) -> Opened:
        """One stage in its runtime, in this process."""
        path = self.paths[place]
        return sessions.session(sessions.Key(path, None, self.threads or cpus.share(), sessions.stamp(Path(path))))

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All stages one after another in this process; see `ir.Plan.run`."""
        return self.plan.run([self.stage(k) for k in range(len(self.paths))], inputs)


def _is_stage(path: Path) -> bool:
    return not path.name.endswith((".data", ".json"))


def export(
    split: Split,
    folder: str | Path,
    target: str | Target | Sequence[str | Target] = "onnx",
    *,
    verify: bool = False,
    **options: Any,
) -> Pipeline:
    """Write the stages of `ir.split` into a folder, with their plan.

    Args:
        split: the stages.
        folder: where they go; it is made if it is not there. `stage0.onnx`, `stage1.onnx`..., and `pipeline.json`.
        target: of all stages, or one for each: the first on a GPU in torch, the second in tract.
        verify: compare every stage with torch, as `ir.export` does.
        **options: the target's own.

    Raises:
        CaptureError, UnsupportedOpsError, RefusedError, MismatchError: see `ir.export`.

    Examples:
        >>> pipeline = export(ir.split(graph, stages=2), "folder", target="onnx")  # doctest: +SKIP
    """
    from ir.export import export as export_graph

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    several = isinstance(target, Sequence) and not isinstance(target, str)
    targets = list(target) if isinstance(target, Sequence) and several else [target] * len(split)
    if len(targets) != len(split):
        raise ExportError(f"{len(targets)} targets are given for {len(split)} stages")
    for k, (graph, one) in enumerate(zip(split, targets, strict=True)):
        suffix = find_target(one, dict(options)).suffix  # type: ignore[arg-type]
        for old in place.glob(f"stage{k}.*"):
            if _is_stage(old) and old.is_file() and stem(old.name) == f"stage{k}" and not old.name.endswith(suffix):
                old.unlink()  # of another target, or a folder would hold two stages of one number
        export_graph(graph, target=one, path=place / f"stage{k}{suffix}", verify=verify, **options)  # type: ignore[arg-type]
    (place / PLAN).write_text(split.plan.to_json())
    return Pipeline.of(place)
