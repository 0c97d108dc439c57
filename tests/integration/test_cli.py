"""The command line: sources, inputs, what it says and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch
from rich.console import Console

import ir
from ir.cli import exporting, main, progress, sources, summary
from ir.cli.inputs import arguments, parse
from ir.errors import CaptureError

MODELS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, scale=None):
        y = self.linear(x).relu()
        return y if scale is None else y * scale

def net():
    return Net()

def with_args():
    return Net(), (torch.randn(2, 4),), None, ({0: "batch"},)

def wide():
    from torch.nn import Linear, ReLU, Sequential

    class Wide(Sequential):
        def forward(self, x):
            return super().forward(x)

    return Wide(Linear(64, 256), ReLU(), Linear(256, 65), ReLU(), Linear(65, 3))

def weights():
    return Net().state_dict()

def several():
    return lambda x: torch.nn.functional.conv2d([x], x)

def branch():
    return lambda x: x if x.sum() > 0 else -x

def two_inputs():
    return Net(), torch.randn(2, 5)

def eigenvalues():
    return torch.linalg.eigvals, torch.randn(3, 3)

def ends():
    raise SystemExit("no weights here")

def waits():
    import time

    print("waiting", flush=True)
    time.sleep(60)

number = 3
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run `ir` in a folder of its own, where cli_models.py lies: its exit code and what it printed."""
    (tmp_path / "cli_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    sys.modules.pop("cli_models", None)

    def run(line):
        with pytest.raises(SystemExit) as end:
            main(shlex.split(line))
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


def test_one_source_becomes_files_of_three_targets(call, tmp_path):
    code, out, err = call("export cli_models:net -i x=float32[batch,4] -t onnx -t nnef -t eager")
    assert (code, err) == (0, "")
    assert {"net.onnx", "net.nnef.tgz", "net.pt2"} <= {p.name for p in tmp_path.iterdir()}
    assert "batch from 0" in out and "15 float32" in out and "largest error" in out
    assert "onnxruntime.InferenceSession('net.onnx').run(None, {'x': x})" in out


def test_what_is_printed_runs(call, tmp_path):
    _, out, _ = call("export cli_models:net -i x=float32[batch,4] -t onnx -t nnef -t eager")
    x = torch.randn(5, 4)
    for target, value in (("onnx", x.numpy()), ("nnef", x.numpy()), ("eager", x)):
        lines = out.partition(f"\n{target}:\n")[2].splitlines()[:2]
        exec("\n".join(lines), {"x": value})


def test_a_function_gives_its_own_arguments(call):
    code, out, _ = call("export cli_models:with_args -o mine.onnx --opset 18 --json")
    (found,) = json.loads(out)
    assert (code, found["path"], found["dynamic"], found["verified"]) == (0, "mine.onnx", {"batch": "from 0"}, True)
    assert found["max_error"] < 1e-5 and found["bytes"] > 0 and found["weights"] == {"float32": 15}


def test_a_saved_program(call, tmp_path):
    torch.export.save(torch.export.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),)), tmp_path / "model.pt2")
    assert call("export model.pt2 -q")[:2] == (0, "")
    assert (tmp_path / "model.onnx").exists()
    assert "aten::linear" in call("show model.pt2 --text")[1]
    assert "native" in call("ops model.pt2 -t nnef")[1]


def test_inputs_by_name_and_type(call):
    code, out, _ = call("export cli_models:net -i x=float32[batch,4] -i scale=float32[batch,1] --dtype float16 --json")
    (found,) = json.loads(out)
    assert code == 0 and found["weights"] == {"float16": 15} and found["dynamic"] == {"batch": "from 0"}


def test_one_target_that_refuses_leaves_the_others(call, tmp_path):
    code, _, err = call("export cli_models:eigenvalues -t eager -t onnx")
    assert code == 1 and "aten::linalg_eig" in err
    assert (tmp_path / "eigenvalues.pt2").exists() and not (tmp_path / "eigenvalues.onnx").exists()


def test_a_checkpoint_of_transformers(call, tmp_path):
    import tests.zoo.torchvision_shim  # noqa: F401 - which transformers imports

    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=29, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "small")
    code, out, _ = call("export transformers:small -t onnx -t eager --json")
    onnx, eager = json.loads(out)
    assert code == 0 and onnx["path"] == "small.onnx" and eager["verified"] and not onnx["error"]
    assert set(onnx["dynamic"]) == {"batch", "sequence"}
    code, out, _ = call("export transformers:small --task feature-extraction -o features.onnx --json")
    assert code == 0 and json.loads(out)[0]["weights"]["float32"] < onnx["weights"]["float32"]
    code, _, err = call("export transformers:small --task telepathy")
    assert code == 1 and "text-classification" in err


EVIL = {
    "unknown": {"model_type": "evil", "architectures": ["EvilModel"], "auto_map": {"AutoConfig": "evil.Config"}},
    "a model": {
        "model_type": "dinov2_with_registers",
        "architectures": ["EvilModel"],
        "auto_map": {"AutoModelForCausalLM": "evil.Model"},
    },
    "no model": {"model_type": "bert", "architectures": ["AutoProcessor"], "vocab_size": 29, "num_hidden_layers": 1},
}


@pytest.mark.parametrize("kind", EVIL)
def test_code_of_a_checkpoint_is_not_run_whatever_is_answered(tmp_path, kind):
    """In a process of its own: transformers asks at the terminal, and what it takes for an answer is the input."""
    pytest.importorskip("transformers")
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(EVIL[kind]))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').write('x')")
    code = "import sys, tests.zoo.torchvision_shim; from ir.cli import main; sys.exit(main(sys.argv[1:]))"
    task = ["--task", "text-generation"] if kind == "a model" else []
    line = [sys.executable, "-c", code, "export", f"transformers:{folder}", "-o", str(tmp_path / "x.onnx"), *task]
    env = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(line, input="y\n" * 9, capture_output=True, text=True, env=env, check=False)
    assert not (tmp_path / "was_run").exists() and "[y/N]" not in done.stdout + done.stderr
    if kind == "no model":  # a name of transformers that is none gives the base model
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1
        assert "code of its own, which is not run; load the model in Python and give it to ir.export" in done.stderr


def test_a_model_of_timm(call):
    import tests.zoo.torchvision_shim  # noqa: F401 - which timm imports

    pytest.importorskip("timm")
    code, out, _ = call("export timm:test_resnet")
    assert code == 0 and "weights are random" in out and "test_resnet.onnx" in out
    code, _, err = call("export timm:test_resnt")
    assert code == 1 and "test_resnt" in err


def test_a_library_that_is_not_there_is_named_with_what_to_install(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    code, out, err = call("export timm:resnet18")
    own = torch.__version__.partition("+")[0]
    assert (code, out) == (1, "") and err == f"CaptureError: timm is not installed: pip install timm torch=={own}\n"


def test_a_target_twice_is_written_once_and_a_suffix_is_not_doubled(call, tmp_path):
    code, out, _ = call("export cli_models:with_args -t onnx -t eager -t onnx -o both.onnx --json")
    assert code == 0 and [o["path"] for o in json.loads(out)] == ["both.onnx", "both.pt2"]


def test_a_refusal_is_a_sentence_and_torch_is_behind_traceback(call):
    code, _, err = call("export cli_models:two_inputs")
    reason, place = err.splitlines()
    assert code == 1 and "must have same reduction dim" in reason and "cli_models.py" in place
    with pytest.raises(CaptureError) as caught:
        main(["export", "cli_models:two_inputs", "--traceback"])
    assert len(caught.value.__notes__) > 1 and caught.value.__cause__ is not None


def test_an_older_file_of_somebody_else_stays(call, tmp_path):
    (tmp_path / "net.nnef").mkdir()
    (tmp_path / "net.nnef" / "notes.txt").write_text("mine")
    code, _, err = call("export cli_models:net -i x=float32[2,4] -t nnef -o net.nnef")
    assert code == 2 and "net.nnef" in err and (tmp_path / "net.nnef" / "notes.txt").read_text() == "mine"


WRONG = {
    "export": (2, "Missing argument 'SOURCE'"),
    "exprot x.pt2": (2, "Did you mean 'export'?"),
    "export nowhere": (2, "module:callable"),
    "export nowhere.pt2": (2, "nowhere.pt2: no such file"),
    "export no_module:model": (2, "No module named 'no_module'"),
    "export cli_models:nothing": (2, "cli_models has no 'nothing'"),
    "export cli_models:ent": (2, "did you mean net?"),
    "export cli_models": (2, "write cli_models:NAME, of a model"),
    "export cli_models:weights": (1, "gives an OrderedDict, and no model; load it by model.load_state_dict(...)"),
    "export cli_models:number -i x=float32[2]": (1, "gives an int, and no model"),
    "export cli_models:net": (2, "say them: --input 'x=float32[batch,3,224,224]'"),
    "export cli_models:net -i x=float32[2,4] -p no_such": (2, "plugin no_such (explicit) could not be imported"),
    "export cli_models:net -i x=float32[2,4] -t tract": (2, "did you mean nnef?"),
    "export cli_models:net net.onnx": (2, "a file to write is named by -o FILE"),
    "export --model bert out": (2, "No such option: --model; write the model as the first word"),
    "export cli_models:net --format onnx": (2, "No such option: --format; write --target"),
    "export cli_models:net --opset_version 17": (2, "No such option: --opset_version; write --opset"),
    "export cli_models:net --half": (2, "write --dtype float16"),
    "export cli_models:net --provider CUDA": (2, "write --option providers=CUDAExecutionProvider"),
    "export transformers:who/small": (2, "hf download who/small --local-dir FOLDER"),
    "profile nowhere.onnx": (2, "no such file; give an artifact of any target, or a SOURCE"),
    "diff nowhere.onnx cli_models:net": (2, "no such file; give an artifact of any target, or a SOURCE"),
    "export cli_models:several -i x=float32[2,3,8,8]": (1, "got (list, FakeTensor)"),
    "export cli_models:branch -i x=float32[2]": (1, "torch.where or torch.cond"),
    "export cli_models:net -i x=float31[2,4]": (2, "torch has no type 'float31'"),
    "export cli_models:net -i x=float32[2;4]": (2, "'2;4' is no size"),
    "export cli_models:net -i float32": (2, "write NAME=DTYPE[SIZES]"),
    "export cli_models:net -i scales=float32[2,4]": (2, "net takes x, scale; did you mean scale?"),
    "export cli_models:net -i x=float32[2,4] -i x=float32[2,4]": (2, "'x' is given twice"),
    "export cli_models:net -i x=float32[2,4] -i float32[2,1]": (2, "give them all names"),
    "export cli_models:net -i x=float32[2,5]": (1, "must have same reduction dim"),
    "export cli_models:net -i x=float32[2,4] -t tensorrt": (2, "there is no target 'tensorrt'; targets: onnx, nnef"),
    "export cli_models:net -i x=float32[2,4] -t onx": (2, "there is no target 'onx'; did you mean onnx?"),
    "export cli_models:net -i x=float32[2,4] --opset 5": (2, "opset 5: 13 to"),
    "export cli_models:net -i x=float32[2,4] -O opset": (2, "write NAME=VALUE"),
    "export cli_models:net -i x=float32[2,4] -O opst=18": (2, "has an option 'opst'"),
    "export cli_models:net -i x=float32[2,4] --dtype int8": (2, "write float16, bfloat16"),
    "export cli_models:net -i x=float32[2,4] -o net.txt": (2, "call it net.onnx"),
    "export cli_models:net -i x=float32[2,4] -o no/such/net.onnx": (2, "no/such"),
    "export cli_models:net -i x=float32[2,4] --frobnicate": (2, "No such option: --frobnicate"),
    "export transformers:nowhere": (2, "there is no such folder"),
    "export cli_models.py": (2, "cli_models.py is Python: write cli_models:NAME"),
    "export weights.safetensors": (2, "holds weights and no code"),
    "export checkpoint": (2, "write transformers:checkpoint"),
    "show other.onnx": (2, "is an artifact of target 'onnx', which `ir run` and `ir diff` take"),
    "ops empty": (2, "empty is a folder"),
    "export cli_models:net -i x=float32[2,4] --quantize int3": (2, "write int8 or int4"),
    "export cli_models:net -i x=float32[2,4] --quantize int4": (1, "no linear layer of a multiple of 32 inputs"),
    "export cli_models:eigenvalues": (1, "aten::linalg_eig"),
    "export cli_models:ends": (1, "cli_models:ends: SystemExit: no weights here"),
    "export broken_models:net": (1, "broken_models cannot be imported: SyntaxError"),
    "export cli_models:net -i x=float32[2,4] -O providers=Cuda": (2, "providers: 'Cuda' is not here"),
    "export cli_models:net -i x=float32[2,4] -O custom_op_libraries=no.so": (1, "there is no file no.so"),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_call_is_told_in_one_message(call, tmp_path, line):
    for name in ("weights.safetensors", "other.onnx", "checkpoint/config.json", "empty/notes.txt", "broken_models.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine it is")
    before = {p: p.is_file() and p.read_text() for p in tmp_path.rglob("*") if "__pycache__" not in p.parts}
    code, out, err = call(line)
    wanted, text = WRONG[line]
    assert (code, out) == (wanted, "") and text in err and "Traceback" not in err
    assert {p: p.is_file() and p.read_text() for p in tmp_path.rglob("*") if "__pycache__" not in p.parts} == before


def test_ctrl_c_is_told_in_a_line(call, tmp_path):
    command = [sys.executable, "-m", "ir", "export", "cli_models:waits"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    asks = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # the background jobs of a shell ignore it
    with subprocess.Popen(command, cwd=tmp_path, text=True, preexec_fn=asks, **pipes) as run:
        assert run.stdout.readline() == "waiting\n"
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (130, "") and err == "interrupted; what was not done yet is not written\n"


def test_a_folder_takes_the_files(call, tmp_path):
    (tmp_path / "out put").mkdir()
    code, out, _ = call("export cli_models:with_args -t onnx -t nnef -o 'out put' --json")
    assert code == 0 and {p.name for p in (tmp_path / "out put").iterdir()} == {"with_args.onnx", "with_args.nnef.tgz"}
    assert [o["path"] for o in json.loads(out)] == ["out put/with_args.onnx", "out put/with_args.nnef.tgz"]


def test_traceback_shows_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaptureError):
        main(["export", "nowhere", "--traceback"])


def test_version(call):
    assert call("--version")[:2] == (0, f"ir {ir.__version__}, torch {torch.__version__}\n")


def test_examples_of_named_sizes_differ():
    args, kwargs, shapes = arguments([parse("a=float32[batch,seq]"), parse("b=int64[batch,seq:16]<5")])
    assert not args and kwargs["a"].shape == (2, 16) and kwargs["b"].max() < 5
    assert shapes == {"a": {0: "batch", 1: "seq"}, "b": {0: "batch", 1: "seq"}}


def test_brackets_in_what_is_refused_are_shown():
    shown = io.StringIO()
    found = [summary.Outcome("onnx", error="RefusedError: f32[batch, 4]"), summary.Outcome("nnef", error="[x] [/x]")]
    summary.show(found, Console(file=shown, width=200))
    assert "f32[batch, 4]" in shown.getvalue() and "[x] [/x]" in shown.getvalue()


def test_weights_as_integers(call, tmp_path):
    pytest.importorskip("torchao")
    large = 64 * 256 + 256 * 65
    for kind, layers, limit in (("int8", 3, large), ("int4", 2, large / 2 + 4 * large / 32)):
        code, out, err = call(f"export cli_models:wide -i x=float32[batch,64] --quantize {kind} -o {kind}.onnx")
        assert code == 0 and f"weights of {layers} of 3 linear layers are {kind}" in out, err
        assert (tmp_path / f"{kind}.onnx").stat().st_size < limit + 6000


def test_help_needs_no_torch(tmp_path):
    """It answers at once: within a second where the machine has nothing else to do."""
    lines = ["import sys; from ir.cli import main", "try: main(['export', '--help'])"]
    lines += ["finally: assert 'torch' not in sys.modules"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--quantize" in done.stdout, done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing):
    lines = [f"import sys; sys.modules[{missing!r}] = None", "from ir.cli import main; main(['--version'])"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "needs typer and rich: pip install 'ir[cli]'" in done.stderr


def test_the_shell_completes_commands():
    asked = {"_IR_COMPLETE": "complete_bash", "COMP_WORDS": "ir ben", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "ir"], env={**os.environ, **asked}, capture_output=True, text=True)
    assert done.stdout.split() == ["bench"]


STAGES = ["load", "capture", "import", "passes", "lower", "write", "verify"]


def test_a_source_is_not_written_over(call, tmp_path):
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(3),)), tmp_path / "net.pt2")
    before = (tmp_path / "net.pt2").read_bytes()
    code, _, err = call("export net.pt2 -t eager")
    assert code and "is what is exported" in err and (tmp_path / "net.pt2").read_bytes() == before
    assert call("export net.pt2 -t eager -o net.eager.pt2")[0] == 0


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_terminal_shows_each_stage_and_the_bytes_of_the_file(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    monkeypatch.setattr(progress, "_SETTLED", 0.0)
    lines: list[str] = []
    monkeypatch.setattr(progress.Status, "update", lambda self, line: lines.append(line))
    (tmp_path / "large_models.py").write_text(
        "import torch\nlayer = torch.nn.Linear(2000, 500), torch.randn(2, 2000)\n"
    )
    shown = io.StringIO()
    call = exporting.Call([target], {}, None, None, True, (), False)
    request = sources.request(None, None, None, False, None)
    (found,) = exporting.export("large_models:layer", request, call, 0, Console(file=shown, force_terminal=True))
    assert list(found.seconds) == STAGES and all(s >= 0 for s in found.seconds.values())
    for stage in STAGES[3:]:
        assert f"{target} {stage}" in shown.getvalue()
    assert any(re.fullmatch(rf"{target} write: .*B of 4 MB, \d+ s left", line) for line in lines), lines
    assert lines[-1] >= f"{target} write: 4 MB"


def test_nothing_is_shown_where_stderr_is_no_terminal(call, tmp_path):
    code, _, err = call("export cli_models:with_args --json")
    assert (code, err) == (0, "")
    quiet = Console(file=(shown := io.StringIO()), force_terminal=True, quiet=True)
    with progress.Stages(quiet).stage("capture"):
        pass
    assert shown.getvalue() == ""
