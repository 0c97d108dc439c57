"""What goes between the stages of a model: names alone, so that a plan travels as JSON beside the stages' files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ir.errors import ExportError

StageRunner = Callable[..., Sequence[Any]]  # tensors in and out in the order of a Part; the updates follow the outputs


@dataclass(frozen=True)
class Part:
    """One stage: the names of what it takes and gives, and of the buffers and inputs that it changes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    updates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The stages in their order, what the whole takes, and which tensors are its results, under which names."""

    inputs: tuple[str, ...]
    parts: tuple[Part, ...]
    results: tuple[str, ...]
    names: tuple[str, ...]

    def sources(self) -> dict[str, int]:
        """The stage that makes each tensor; -1 for what the whole takes."""
        made = {name: k for k, part in enumerate(self.parts) for name in part.outputs}
        return dict.fromkeys(self.inputs, -1) | made

    def edges(self, source: int, to: int) -> tuple[str, ...]:
        """The tensors that go from one stage to another; from -1, those of the whole's inputs."""
        made = self.sources()
        return tuple(n for n in self.parts[to].inputs if made[n] == source)

    def run(self, runners: Sequence[StageRunner], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All stages one after another.

        Args:
            runners: one for each stage, which takes and gives tensors in the order of its part.
            inputs: tensors by the names of the whole's inputs.

        Returns:
            The whole's results by name, and behind them `<name>_updated` for buffers and inputs that it changes.

        Raises:
            ExportError: an input is missing, or there are not as many runners as stages.
        """
        if missing := [n for n in self.inputs if n not in inputs]:
            raise ExportError(f"the pipeline takes {', '.join(self.inputs)}, and {missing[0]!r} is missing")
        if len(runners) != len(self.parts):
            raise ExportError(f"the pipeline has {len(self.parts)} stages, and {len(runners)} runners are given")
        held, updated = dict(inputs), dict[str, Any]()
        for part, runner in zip(self.parts, runners, strict=True):
            made = runner(*(held[n] for n in part.inputs))
            held.update(zip(part.outputs, made, strict=False))
            new = made[len(part.outputs) :]
            updated.update((f"{n}_updated", t) for n, t in zip(part.updates, new, strict=True))
        return dict(zip(self.names, (held[n] for n in self.results), strict=True)) | updated

    def to_json(self) -> str:
        """The plan as text."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a text.

        Raises:
            ExportError: it is none.
        """
        try:
            said = json.loads(text)
            parts = tuple(Part(*(tuple(p[k]) for k in ("inputs", "outputs", "updates"))) for p in said["parts"])
            return cls(tuple(said["inputs"]), parts, tuple(said["results"]), tuple(said["names"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ExportError(f"this is no plan of a pipeline: {error}") from error

    def __str__(self) -> str:
        lines = [f"stage {k}: {', '.join(p.inputs)} -> {', '.join(p.outputs)}" for k, p in enumerate(self.parts)]
        return "\n".join(lines)
