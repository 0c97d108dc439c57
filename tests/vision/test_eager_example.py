"""examples/eager_vision_ops.py: torchvision's kernels behind handlers of both kinds."""

import runpy
from pathlib import Path

from eager_backend import REGISTRY, op_handlers

EXAMPLE = Path(__file__).parents[2] / "examples" / "eager_vision_ops.py"


def test_handlers_of_both_kinds(capsys):
    calls = runpy.run_path(str(EXAMPLE))["main"]()  # compares with torchvision itself
    assert calls.keys() == {"nms", "deform_conv2d", "roi_align"} and min(calls.values()) >= 2
    assert capsys.readouterr().out.count("equal to torchvision's") == 2
    assert not op_handlers.table()
    assert all(e.layer != "runtime" for e in REGISTRY.entries.get("torchvision::roi_align", ()))
