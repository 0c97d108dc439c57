"""docs/caches.md: its Python runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ir.importer.torch_api import pytree
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

PAGE = Path(__file__).parents[2] / "docs" / "caches.md"


def test_python_blocks_run():
    pytest.importorskip("transformers")
    names: dict[str, object] = {"__name__": "caches_page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, "caches.md", "exec"), names)
    assert names["Held"] not in pytree.SUPPORTED_NODES
