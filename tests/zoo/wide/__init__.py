"""The second zoo: architectures that the first one lacks, in one small size, as rows of tables.

`get(name)` and NAMES; `python -m tests.zoo.wide.sweep` tries them on every target.
"""

from .models import NAMES, get

__all__ = ["NAMES", "get"]
