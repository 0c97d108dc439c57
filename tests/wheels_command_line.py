"""Run where only wheels are installed: `ir` exports models of timm and transformers, shows, runs and compares them."""

import contextlib
import io
import json
import os
import runpy
import tempfile
from pathlib import Path

from ir.cli import main


def ir(line):
    """What the command prints, once it has ended well."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            main(line.split())
    except SystemExit as end:
        assert end.code == 0, f"ir {line}: exit code {end.code}\n{printed.getvalue()}"
    print(f"ir {line}: done")
    return printed.getvalue()


shim = runpy.run_path(str(Path(__file__).with_name("zoo") / "torchvision_shim.py"))  # where torchvision does not load

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    found = json.loads(ir("export timm:resnet18 -t onnx -t nnef -t eager --json"))
    assert [o["target"] for o in found] == ["onnx", "nnef", "eager"]
    assert all(o["verified"] and o["max_error"] < 1e-2 and Path(o["path"]).exists() for o in found)
    ir("run resnet18.onnx")
    ir("diff resnet18.onnx resnet18.nnef.tgz")
    ir("show resnet18.pt2 --html resnet18.html")
    assert '<script type="application/json"' in Path("resnet18.html").read_text()

    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=29, **sizes)).save_pretrained("bert")
    (found,) = json.loads(ir("export transformers:bert -t onnx --json"))
    assert set(found["dynamic"]) == {"batch", "sequence"}
    os.chdir("/")
