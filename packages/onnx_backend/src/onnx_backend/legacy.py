"""`onnx_backend.compat.legacy` under the name that users import."""

import sys

from onnx_backend.compat import legacy
from onnx_backend.compat.legacy import *  # noqa: F403 (for type checkers)
from onnx_backend.compat.legacy import symbolic_helper

sys.modules[__name__] = legacy
sys.modules[f"{__name__}.symbolic_helper"] = symbolic_helper
