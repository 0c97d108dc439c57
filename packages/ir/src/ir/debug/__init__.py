"""Which layer differs, and why: a program node by node in its target's runtime, beside torch.

>>> table = ir.debug(program)  # doctest: +SKIP
>>> print(table)  # doctest: +SKIP
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ir.debug.certificate import Certificate
from ir.debug.errors import Error
from ir.debug.nodes import nodes
from ir.debug.profile import Profile, profile
from ir.debug.ranges import Ranges, ranges
from ir.debug.reduce import reduce
from ir.debug.reduced import Reduced
from ir.debug.table import Row, Table


class _Debug(ModuleType):
    """`ir.debug(...)` is `ir.debug.nodes(...)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Table:
        return nodes(*args, **kwargs)


sys.modules[__name__].__class__ = _Debug

__all__ = [
    "Certificate",
    "Error",
    "Profile",
    "Ranges",
    "Reduced",
    "Row",
    "Table",
    "nodes",
    "profile",
    "ranges",
    "reduce",
]
