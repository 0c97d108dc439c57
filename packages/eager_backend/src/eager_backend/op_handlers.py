"""`eager_backend.compat.op_handlers` under the name that users import."""

import sys

from eager_backend.compat import op_handlers
from eager_backend.compat.op_handlers import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = op_handlers
