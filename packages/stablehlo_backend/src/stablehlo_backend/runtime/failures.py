"""What stopped a run: a condition that the module asserts, told as what it is."""

from __future__ import annotations

import re

from ir.errors import RefusedError
from stablehlo_backend.building.sizes import PLACE

_ASSERTED = re.compile(r"<vm>:\d+: FAILED_PRECONDITION; (.*?)[;\s]*$", re.DOTALL)  # IREE's own are of other kinds


def unmet_condition(error: Exception) -> RefusedError | None:
    """What to raise where a condition on sizes or data did not hold; None for any other failure."""
    found = _ASSERTED.search(str(error))
    if found is None:
        return None
    what, _, place = found[1].partition(PLACE)
    return RefusedError(f"target 'stablehlo' stopped the run: {what}" + (f"\n  at {place}" if place else ""))
