"""A pipeline over the processes of torch.distributed: each has one stage, tensors go from process to process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ir.errors import ExportError, RuntimeFailure
from ir.plan import Plan, StageRunner

_AXES = 16


class Stage:
    """What one process does: it receives what its stage takes, runs it, and sends on what others take.

    Process 0 has the inputs of the whole, the last process its results. Calls follow one another without waiting for
    the end: while one process works on a call, those before it are at the next.

    Args:
        plan: the plan of the pipeline.
        runner: this process's stage, of any target: `Pipeline.stage(rank)`, or the runner of a program.
        group: the processes, all by default: as many as the pipeline has stages.

    Raises:
        ExportError: there are more or fewer processes than stages.

    Examples:
        >>> torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))  # doctest: +SKIP
        >>> stage = Stage(pipeline.plan, pipeline.stage(torch.distributed.get_rank()))  # doctest: +SKIP
        >>> results = stage({"input_ids": tokens})  # doctest: +SKIP
    """

    def __init__(self, plan: Plan, runner: StageRunner, group: Any = None) -> None:
        import torch.distributed as dist

        self.plan, self.runner, self.group = plan, runner, group
        self.rank, size = dist.get_rank(group), dist.get_world_size(group)
        if size != len(plan.parts):
            raise ExportError(f"the pipeline has {len(plan.parts)} stages, and {size} processes run it")
        self._last = size - 1
        made = plan.sources()
        # what another process takes: in the order in which that one asks for it
        self._sends = [
            (name, to)
            for to in range(size)
            for name in self._wanted(to)
            if to != self.rank and max(made[name], 0) == self.rank
        ]
        self._receives = [(n, max(made[n], 0)) for n in self._wanted(self.rank) if max(made[n], 0) != self.rank]

    def _wanted(self, rank: int) -> list[str]:
        """What a process takes for its stage; the last also what are results of the whole."""
        own = self.plan.parts[rank].inputs
        more = self.plan.results if rank == self._last else ()
        return list(dict.fromkeys((*own, *(n for n in more if n not in self.plan.parts[rank].outputs))))

    def __call__(self, inputs: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """One run.

        Args:
            inputs: the whole's, by name, on process 0; elsewhere they are not looked at.

        Returns:
            The whole's results by name on the last process, None on the others.

        Raises:
            ExportError: an input is missing.
            RuntimeFailure: another process has ended, or has not answered within the time that the group was given.
        """
        held: dict[str, Any] = {}
        if self.rank == 0:
            held.update(inputs or {})
            if missing := [n for n in self.plan.inputs if n not in held]:
                raise ExportError(f"the pipeline takes {', '.join(self.plan.inputs)}, and {missing[0]!r} is missing")
        try:
            waits = self._send([(n, to) for n, to in self._sends if n in held], held)
            for name, source in self._receives:
                held[name] = self._receive(source)
            part = self.plan.parts[self.rank]
            made = self.runner(*(held[n] for n in part.inputs))
            new = dict(zip(part.outputs, made, strict=False))
            held.update(new)
            waits += self._send([(n, to) for n, to in self._sends if n in new], held)
            for wait, _ in waits:
                wait.wait()
        except RuntimeError as error:
            if isinstance(error, RuntimeFailure):
                raise
            raise RuntimeFailure(f"process {self.rank} of the pipeline cannot reach another one: {error}") from error
        if self.rank != self._last:
            return None
        return dict(zip(self.plan.names, (held[n] for n in self.plan.results), strict=True))

    def _send(self, names: list[tuple[str, int]], held: Mapping[str, Any]) -> list[Any]:
        import torch
        import torch.distributed as dist

        waits = []
        for name, to in names:
            tensor = held[name].contiguous()
            code = _dtypes().index(tensor.dtype)
            head = torch.tensor([code, tensor.dim(), *tensor.shape, *[0] * (_AXES - tensor.dim())], dtype=torch.int64)
            waits.append((dist.isend(head, group=self.group, group_dst=to), head))
            if tensor.numel():
                data = _bytes(tensor)
                waits.append((dist.isend(data, group=self.group, group_dst=to), data))
        return waits

    def _receive(self, source: int) -> Any:
        import torch
        import torch.distributed as dist

        head = torch.empty(2 + _AXES, dtype=torch.int64)
        dist.recv(head, group=self.group, group_src=source)
        code, rank, *shape = head.tolist()
        tensor = torch.empty(shape[:rank], dtype=_dtypes()[code])
        if tensor.numel():
            dist.recv(_bytes(tensor), group=self.group, group_src=source)
        return tensor


def _bytes(tensor: Any) -> Any:
    """The tensor's memory as bytes, which every backend of torch.distributed sends."""
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def _dtypes() -> list[Any]:
    import torch

    return [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
            torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]  # fmt: skip
