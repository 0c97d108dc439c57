"""Real models with random weights for tests and benchmarks: `get(name)`, `NAMES`, and the core group `FIRST`.

    model = get("bert")                     # or get("bert", small=True): seconds become fractions of one
    args, kwargs = model.inputs(model.sizes)
    graph = ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)
    program = model.export()                # torch's own, for tests that look at it

torchvision, timm and transformers are imported when a model is built, not here.
"""

from .entry import Model
from .models import ALSO, FIRST, NAMES, get

__all__ = ["ALSO", "FIRST", "NAMES", "Model", "get"]
