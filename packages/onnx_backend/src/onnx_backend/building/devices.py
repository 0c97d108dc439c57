"""Annotations for several devices (IR version 11): who has which part of a model, for runtimes that place it so.

They are metadata: onnx's checker takes them, and a runtime that knows none of them, as onnxruntime, runs the model as a
whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir

from ir.errors import RefusedError

IR_VERSION = 11
ORIGIN = "ir.origin"  # in a node's `meta`, which no file has


@dataclass(frozen=True)
class Devices:
    """What a model is to run on.

    Args:
        names: of the devices, ("cuda:0", "cuda:1"): as many as there are stages, or as weights are cut into.
        stages: the modules that begin the second stage and those that follow, as `ir.split` has them.
        sharded: weights by name that lie in equal parts on the devices, and the axis of each that is cut.

    Raises:
        ValueError: the number of devices is not that of the stages.

    Examples:
        >>> Onnx(devices=Devices(("cuda:0", "cuda:1"), stages=("model.layers.16",)))  # doctest: +SKIP
    """

    names: tuple[str, ...]
    stages: tuple[str, ...] = ()
    sharded: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stages and len(self.names) != len(self.stages) + 1:
            raise ValueError(f"{len(self.stages) + 1} stages lie on as many devices, and {len(self.names)} are named")

    @classmethod
    def of(cls, model: Any, names: Sequence[str] | None = None) -> Devices:
        """The placements of a model whose weights are DTensors over one axis of devices, for the export of the whole.

        Args:
            model: what `parallelize_module` gave; what is exported is the model before that.
            names: of the devices; by default the mesh's kind of device with numbers.

        Raises:
            RefusedError: no weight is a DTensor, or one lies over more than one axis of devices, or as partial sums.
        """
        held = {n: p for n, p in model.named_parameters() if hasattr(p, "placements")}
        if not held:
            raise RefusedError("no weight of this model is a DTensor: give what parallelize_module returned")
        mesh = next(iter(held.values())).device_mesh
        if mesh.ndim != 1 or any(p.placements[0].is_partial() for p in held.values()):
            raise RefusedError("weights over more than one axis of devices, or as partial sums, are not annotated")
        shards = {n: p.placements[0].dim for n, p in held.items() if p.placements[0].is_shard()}
        return cls(tuple(names or (f"{mesh.device_type}:{i}" for i in range(mesh.size()))), (), shards)


def annotate(model: onnx_ir.Model, devices: Devices) -> None:
    """Write the stages and shards into a model's nodes.

    Raises:
        RefusedError: no node lies in a module that is to begin a stage, or no weight has the name of one that is cut.
    """
    configuration = model.add_device_configuration("ir", num_devices=len(devices.names), device_names=devices.names)
    begins, cut = list(devices.stages), set[str]()
    for node in model.graph:
        if begins and _lies_in(node, begins[0]):
            begins.pop(0)
        if devices.stages:
            node.set_pipeline_stage(configuration, len(devices.stages) - len(begins))
        for value in {v.name: v for v in node.inputs if v is not None and v.is_initializer()}.values():
            axis = devices.sharded.get(str(value.name))
            if axis is not None:
                everywhere = range(len(devices.names))
                count = len(devices.names)
                node.shard(value, configuration=configuration, axis=axis, num_shards=count, device_indices=everywhere)
                cut.add(str(value.name))
    if begins:
        raise RefusedError(f"target 'onnx': no node of the model lies in {begins[0]!r} behind the stages before it")
    if lost := sorted(devices.sharded.keys() - cut):
        raise RefusedError(
            f"target 'onnx': the file has no weight {lost[0]!r} as the model has it (passes computed another of it): "
            'export with external_data="reference", which keeps weights as they are'
        )


def _lies_in(node: onnx_ir.Node, module: str) -> bool:
    origin = node.meta.get(ORIGIN)
    paths = [str(path) for path, _ in (origin.modules or {}).values()] if origin is not None else []
    return any(re.match(rf"{re.escape(module)}(\.|$)", path) for path in paths)
