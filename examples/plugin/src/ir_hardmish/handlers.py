"""Native forms: one Clip and two Muls, where the body takes a Max and a Min as well."""

import ir
import ir_hardmish  # noqa: F401  (registers the op)

op = ir.op("hardmish::hardmish")


@op.handler("onnx", since_version=13)
def hardmish_in_onnx(h, x):
    low, two, half = (h.const(n, x.type.dtype) for n in (0.0, 2.0, 0.5))
    gate = h.emit("Clip", h.emit("Add", x, two), low, two)
    return h.emit("Mul", h.emit("Mul", x, half), gate)


@op.handler("nnef")
def hardmish_in_nnef(h, x):
    return h.emit("mul", h.emit("mul", x, 0.5), h.emit("clamp", h.emit("add", x, 2.0), 0.0, 2.0))
