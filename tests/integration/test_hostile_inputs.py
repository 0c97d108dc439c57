"""Fragments, archives, .safetensors and plugins that are not what they should be: one clear sentence each, at once."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest
import torch
from torch import nn

import ir
import nnef_backend
from ir.cli import main
from ir.opening import open_artifact
from nnef_backend.format import archive
from nnef_backend.format.grammar import fragments_of

X = (torch.randn(2, 64),)
NOT_FILES = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link to nowhere": lambda path: os.symlink("nowhere", path),
    "no file": lambda path: None,
    "empty": lambda path: path.touch(),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x00{"),
}


def told(do):
    """The one sentence that something ends in, within ten seconds."""
    start = time.monotonic()
    with pytest.raises(ir.ExportError) as caught:
        do()
    assert time.monotonic() - start < 10 and len(str(caught.value)) < 1500
    return str(caught.value)


@pytest.mark.parametrize("kind", NOT_FILES)
def test_files_that_are_none(kind, tmp_path):
    for name in ("f.nnef", "m.tgz", "m.tar", "w.safetensors"):
        NOT_FILES[kind](tmp_path / name)
    told(lambda: nnef_backend.Tract(fragments=[tmp_path / "f.nnef"]))
    for name in ("m.tgz", "m.tar"):
        told(lambda name=name: nnef_backend.load(tmp_path / name))
    graph = ir.capture(nn.Linear(64, 64), X)
    told(lambda: ir.export(graph, target="onnx", path=tmp_path / "m.onnx", external_data="reference"))


@pytest.mark.parametrize("nested", ["({})", "neg({})", "concat([{}], axis = 0)", "(x + {})", "x[{}]"])
def test_brackets_without_bound(nested):
    for depth in (20, 300, 20_000):
        inner, outer = nested.split("{}")
        text = inner * depth + "x" + outer * depth
        whole = f"fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) {{ y = {text}; }}"
        assert "nest too deep" in told(lambda whole=whole: fragments_of(whole))
    told(lambda: fragments_of("fragment f(x: " + "(" * 50_000))
    told(lambda: fragments_of("fragment f" + "x" * (1 << 21)))


@pytest.mark.parametrize("body", [
    "y = " + " + ".join(["x"] * 500), "y = concat([" + ", ".join(["x"] * 5000) + "], axis = 0)",
    "y = " + "(" * 10 + ", ".join(["1.0"] * 5000) + ")" * 10, "y = neg(" + "x" * 5000 + ")",
])  # fmt: skip
def test_statements_without_bound(body):
    said = told(lambda: fragments_of(f"fragment f(x: tensor<scalar>) -> (y: tensor<scalar>) {{ {body}; }}"))
    assert "fragment:1: " in said and ("too long for tract" in said or "nest too deep" in said or "letters" in said)


def test_calls_of_calls_without_bound():
    head = "(x: tensor<scalar>) -> (y: tensor<scalar>)"
    calls = [f"fragment f{i + 1}{head} {{ a = f{i}(x); b = f{i}(a); y = f{i}(b); }}" for i in range(40)]
    text = "\n".join([f"fragment f0{head} {{ y = neg(x); }}", *calls])
    target = nnef_backend.Tract(fragments=[text])
    do = lambda: ir.export(nn.ReLU(), X, target=target, handlers={"aten::relu": lambda h, self: h.emit("f40", self)})  # noqa: E731
    assert "tract expands every call" in told(do)


COSTLY = {
    "memory": ("tile([[1.0]], repeats = [30000, 30000])", "memory=None"),
    "time": ("-" * 40 + "x", "give another timeout="),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_a_file_may_take_what_its_size_justifies(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("nnef_backend.runtime.tract.BASE_SECONDS", 1.0)
    body, said = COSTLY[kind]
    text = "version 1.0;\nextension tract_registry tract_core;\ngraph g(x) -> (y)\n{\n    x = tract_core_external("
    (tmp_path / "graph.nnef").write_text(f"{text}shape = [2, 3], datum_type = 'f32');\n    y = {body};\n}}\n")
    assert said in told(lambda: nnef_backend.load(tmp_path))


def test_a_call_may_be_given_memory(tmp_path):
    path = ir.export(lambda x: x.repeat(20_000, 100), X, target="nnef", path=tmp_path / "m").path
    program = nnef_backend.load(path)
    program.memory = 100 << 20
    assert "100 MB" in told(lambda: program.run([X[0].numpy()]))


CODE = "a\n    open({!r}, 'w')\n    #", "a\r    open({!r}, 'w')\r    #", "a\n", "\0", "\udcff", "'", "\\"


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("way", ["module", "pt2"])
def test_a_name_of_a_module_is_no_code(name, way, tmp_path):
    """The eager program's source names each step's module in a comment."""
    model = nn.Module()
    canary = tmp_path / "canary"
    model.add_module(name.format(str(canary)), nn.Linear(64, 64))
    model.forward = lambda x: next(iter(model._modules.values()))(x).relu()
    source = model
    if way == "pt2":
        source = tmp_path / "m.pt2"
        torch.export.save(torch.export.export(model, X), source)
    program = ir.export(source, *([X] if way == "module" else []), target="eager")
    torch.testing.assert_close(program(*X), model.forward(*X))
    assert not canary.exists()


def test_a_graph_of_a_gigabyte_is_not_read(tmp_path):
    with gzip.open(tmp_path / "m.tgz", "wb", 1) as packed:
        entry = tarfile.TarInfo("graph.nnef")
        entry.size = 1 << 30
        packed.write(entry.tobuf())
        for _ in range(1 << 10):
            packed.write(bytes(1 << 20))
    assert "1024 MB" in told(lambda: nnef_backend.load(tmp_path / "m.tgz"))


@pytest.mark.parametrize("name", ["m", "m.tar", "m.tgz"])
def test_a_flipped_bit_of_a_weight_is_noticed(name, tmp_path):
    path = ir.export(nn.Linear(64, 64), X, target="nnef", path=tmp_path / name).path
    file = path / "weight.dat" if path.is_dir() else path
    whole = file.read_bytes()
    for at in (200, len(whole) // 2, 3000):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        told(lambda: nnef_backend.load(path))
    file.write_bytes(whole)
    nnef_backend.load(path)


def test_a_changed_text_in_a_tar_is_noticed(tmp_path):
    path = ir.export(nn.Softmax(1), X, target="nnef", path=tmp_path / "m.tar").path
    path.write_bytes(path.read_bytes().replace(b"axes = [1]", b"axes = [0]"))
    assert "checksum of graph.nnef" in told(lambda: nnef_backend.load(path))


def test_a_stray_tensor_is_not_loaded(tmp_path):
    path = ir.export(nn.Linear(64, 64), X, target="nnef", path=tmp_path / "m").path
    (path / "other.dat").write_bytes((path / "weight.dat").read_bytes())
    assert "no variable" in told(lambda: nnef_backend.load(path))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("graph.nnef", "weight.dat", "bias.dat", "weight.dat"):
            tar.add(path / name, name)
    (tmp_path / "twice.tar").write_bytes(stream.getvalue())
    assert "twice" in told(lambda: archive.members(tmp_path / "twice.tar"))


PLUGINS = {
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "raises": ("class Own(BaseException): pass\nraise Own('no')", "Own: no"),
    "does_not_parse": ("def", "SyntaxError"),
    "needs": ("import there_is_no_such_module", "there_is_no_such_module"),
    "prints": ("print('hello')\nraise ValueError", "ValueError"),
}


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_that_does_not_load_is_one_error(name, tmp_path, monkeypatch, capsys):
    source, said = PLUGINS[name]
    (tmp_path / f"plugin_{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    do = lambda strict: ir.export(nn.ReLU(), X, target="onnx", plugins=[f"plugin_{name}"], strict_plugins=strict)  # noqa: E731
    assert said in told(lambda: do(True))
    with pytest.warns(UserWarning, match=f"plugin_{name}.*could not be imported"):
        do(False)
    assert not capsys.readouterr().out
    sys.modules.pop(f"plugin_{name}", None)


@pytest.mark.parametrize("name", ["x" * 3000, "a\nb", "", ".relative", "a..b", "\udcff", "a\0b"])
def test_a_plugin_whose_name_is_none(name):
    told(lambda: ir.export(nn.ReLU(), X, target="onnx", plugins=[name], strict_plugins=True))
    assert "give a list" in told(lambda: ir.export(nn.ReLU(), X, target="onnx", plugins=name or "x"))


@pytest.mark.parametrize("name", ["x" * 3000, "a\0b", "\udcff"])
def test_a_file_whose_name_is_none(name):
    assert len(told(lambda: open_artifact(f"{name}.onnx"))) < 300
    assert len(told(lambda: ir.capture(f"{name}.pt2"))) < 300


@pytest.mark.parametrize("words", ["run {}.onnx", "show {}.pt2", "diff a.onnx {}.onnx", "export {}.pt2 -o {}.onnx"])
def test_a_command_on_a_file_whose_name_is_too_long(words, capsys):
    with pytest.raises(SystemExit):
        main(words.format(*["x" * 3000] * 2).split())
    said = capsys.readouterr().err
    assert "--traceback" not in said and len(said) < 600


def test_a_small_file_that_makes_large_constants(tmp_path):
    """`eye(60000).sum()` is 14 GB on the way to one number: it is left to the runtime."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return x + torch.eye(7777).sum() + torch.full((7777, 7777), 2.0).exp().sum()

    torch.export.save(torch.export.export(Model(), (torch.randn(3),)), tmp_path / "small.pt2")
    with zipfile.ZipFile(tmp_path / "small.pt2") as small, zipfile.ZipFile(tmp_path / "m.pt2", "w") as large:
        for name in small.namelist():
            large.writestr(name, small.read(name).replace(b"7777", b"60000"))
    code = (
        "import resource, sys, ir\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))\n"
        "for target in ('onnx', 'nnef', 'eager'): ir.export(sys.argv[1], target=target)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "m.pt2"], check=True, timeout=300)


def test_lines_of_nothing_are_refused(tmp_path):
    """tract's parser is quadratic in them: 100,000 take 20 seconds."""
    ir.export(torch.nn.ReLU(), (torch.ones(2),), target="nnef", path=tmp_path / "m", compression="directory")
    with (tmp_path / "m" / "graph.nnef").open("a") as file:
        file.write("\n# nothing" * 100_000)
    with pytest.raises(ir.ExportError, match="lines of nothing"):
        nnef_backend.load(tmp_path / "m")


def test_an_interrupted_import_is_finished():
    """Ctrl-C while torch.export is imported is answered behind that, and the next export works."""
    code = """
import os, signal, sys, threading, time, torch, ir
def shoot():
    while "torch._dynamo.config" not in sys.modules: time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
threading.Thread(target=shoot, daemon=True).start()
try:
    ir.capture(torch.nn.ReLU(), (torch.ones(2),))
    time.sleep(100)
except KeyboardInterrupt:
    ir.capture(torch.nn.ReLU(), (torch.ones(2),))
    print("interrupted, and done")
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert said.stdout == "interrupted, and done\n", said.stderr[-2000:]
