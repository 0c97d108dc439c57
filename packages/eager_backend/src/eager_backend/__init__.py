"""The eager target: an ir graph as straight-line Python over torch's own kernels.

>>> import ir
>>> program = ir.export(model, args, target="eager")
>>> listing = program.artifact.listing()
"""

from eager_backend.building.steps import Slot
from eager_backend.compat import op_handlers
from eager_backend.helper import EagerHelper
from eager_backend.registry import REGISTRY, register, rows
from eager_backend.runtime.program import Program
from eager_backend.target import Eager

__version__ = "1.0.0"

__all__ = ["REGISTRY", "Eager", "EagerHelper", "Program", "Slot", "op_handlers", "register", "rows"]
