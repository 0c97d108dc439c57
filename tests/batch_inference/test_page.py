"""docs/batch-inference.md: all of its Python, that for engines too."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

for engine in ("ray", "pyspark", "distributed"):
    pytest.importorskip(engine)

PAGE = Path(__file__).parents[2] / "docs" / "batch-inference.md"


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark runs in a JVM")
def test_blocks_run(tmp_path, monkeypatch):
    import ray

    monkeypatch.chdir(tmp_path)
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, logging_level="ERROR")
    names: dict[str, object] = {"__name__": "batch_page"}
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    try:
        for block in blocks:
            if "from ray import serve" not in block:  # its package asks for more than ray[data]
                exec(compile(block, "batch-inference.md", "exec"), names)
    finally:
        ray.shutdown()
    assert len(blocks) == 7
