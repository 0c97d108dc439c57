"""ir graphs as StableHLO modules: the target `StableHLO`, its registry and the decorator `register`."""

from stablehlo_backend.building.values import HloValue
from stablehlo_backend.helper import HloHelper
from stablehlo_backend.registry import REGISTRY, register
from stablehlo_backend.target import StableHLO

__version__ = "1.0.0"

__all__ = ["REGISTRY", "HloHelper", "HloValue", "StableHLO", "register"]
