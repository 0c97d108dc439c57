"""docs/batch-inference.md: all of its Python, that for engines too."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

for engine in ("ray.serve", "pyspark", "distributed"):
    pytest.importorskip(engine)

PAGE = Path(__file__).parents[2] / "docs" / "batch-inference.md"


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark runs in a JVM")
def test_blocks_run(tmp_path, monkeypatch):
    import ray
    from ray import serve

    monkeypatch.chdir(tmp_path)
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, logging_level="ERROR")
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, object] = {"__name__": "batch_page"}
    try:
        for block in blocks:
            exec(compile(block, "batch-inference.md", "exec"), names)
        handle = serve.run(names["Scorer"].bind())
        rows = np.random.rand(5, 4).astype(np.float32)
        found = [r.result() for r in [handle.remote(row) for row in rows]]
        np.testing.assert_allclose(found, names["runner"]({"features": rows})["scores"], rtol=1e-5, atol=1e-6)
        serve.shutdown()
    finally:
        ray.shutdown()
        if "session" in names:
            names["session"].stop()  # or later tests would get this one, without their options
