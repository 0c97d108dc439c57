"""A small target for tests of the core: it "lowers" to a list of lines, and runs nothing."""

from __future__ import annotations

from ir.helper import OpHelper
from ir.registry import Registry
from ir.target import Target
from ir.types import TensorType


class Line:
    def __init__(self, name, type, made=True):
        self.name, self.type, self.made = name, type, made


class ToyHelper(OpHelper[Line]):
    value_class = Line

    def __init__(self, target, graph):
        super().__init__(target, graph)
        self.lines: list[str] = []

    def emit(self, op, *inputs, **attributes):
        arguments = [i.name if isinstance(i, Line) else str(i) for i in inputs]
        arguments += [f"{k}={v}" for k, v in attributes.items()]
        self.lines.append(f"{op}({', '.join(arguments)})")
        return Line(self.lines[-1], self.out)

    def constant(self, array, name=""):
        return Line(str(array), TensorType(self.out.dtype, array.shape))

    def size(self, dim):
        return str(dim)

    def scalar(self, value, dtype):
        return Line(str(value), TensorType(dtype, ()))

    def input(self, value):
        return Line(value.name, value.type)

    def weight(self, value, weight):
        return Line(weight.name, value.type)

    def convert(self, x, dtype):
        return Line(f"cast({x.name})", x.type.with_dtype(dtype))

    def call(self, body, inputs):
        self.lines.append(f"call {body.name}")
        return [Line(body.name, v.type) for v in body.graph.outputs]

    def finish(self, results):
        return self.lines


class Toy(Target):
    name = "toy"

    def __init__(self, version: int | None = None) -> None:
        self._registry = Registry("toy")
        self._version = version

    @property
    def registry(self):
        return self._registry

    @property
    def version(self):
        return self._version

    def helper(self, graph):
        return ToyHelper(self, graph)

    def write(self, artifact, path):
        path.write_text("\n".join(artifact))

    def runner(self, artifact, graph, path=None):
        raise NotImplementedError
