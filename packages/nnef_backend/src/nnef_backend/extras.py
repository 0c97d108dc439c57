"""`nnef_backend.compat.extras` under the name that users import."""

import sys

from nnef_backend.compat import extras
from nnef_backend.compat.extras import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = extras
