"""ir graphs as NNEF: the targets `Tract` and `Khronos`, their registry and the decorator `register`."""

from nnef_backend.building.library import add_fragments, remove_fragment
from nnef_backend.building.steps import NnefValue
from nnef_backend.helper import NnefHelper
from nnef_backend.registry import REGISTRY, register
from nnef_backend.runtime.streaming import Stream
from nnef_backend.runtime.tract import load
from nnef_backend.target import Khronos, Tract

__version__ = "1.0.0"

__all__ = [
    "REGISTRY",
    "Khronos",
    "NnefHelper",
    "NnefValue",
    "Stream",
    "Tract",
    "add_fragments",
    "load",
    "register",
    "remove_fragment",
]
