"""A path is written only where it is ours to write: every target, every kind of thing that may lie there."""

from __future__ import annotations

import os
import stat

import pytest
import torch
from torch import nn

import ir

X = (torch.randn(2, 3),)
PLACES = [("onnx", "m.onnx"), ("nnef", "m.nnef"), ("nnef", "m.nnef.tgz"), ("nnef", "m.tar"), ("eager", "m.pt2")]
DIRECTORIES = {"m.nnef"}


@pytest.fixture(scope="module")
def graph():
    return ir.capture(nn.Linear(3, 2), X)


def tree(folder):
    """Everything in a folder, links not followed."""
    return {
        str(p.relative_to(folder)): os.readlink(p)
        if p.is_symlink()
        else p.read_bytes()
        if p.is_file()
        else p.lstat().st_mode
        for p in folder.rglob("*")
    }


def thesis(path):
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


KINDS = {
    "a directory of somebody's": thesis,
    "a pipe": os.mkfifo,
    "a device": lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3)),
    "a file that is read-only": lambda path: (path.write_text("kept"), path.chmod(0o444)),
}


@pytest.mark.parametrize(("target", "name"), PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_ours_stays(graph, target, name, kind, tmp_path):
    try:
        KINDS[kind](tmp_path / name)
    except PermissionError:
        pytest.skip("this user cannot make one")
    before = tree(tmp_path)
    program = ir.export(graph, target=target)
    for write in (lambda: program.save(tmp_path / name), lambda: ir.export(graph, target=target, path=tmp_path / name)):
        with pytest.raises(ir.OutputError):
            write()
        assert tree(tmp_path) == before


@pytest.mark.parametrize("stranger", ["notes.txt", "other.dat", "graph.quant", "sub/x", "link"])
def test_a_directory_with_an_artifact_and_something_else_stays(graph, stranger, tmp_path):
    path = ir.export(graph, target="nnef", path=tmp_path / "m").path
    ir.export(graph, target="nnef", path=path)  # the artifact alone is replaced
    (path / stranger).parent.mkdir(exist_ok=True)
    (path / stranger).symlink_to("graph.nnef") if stranger == "link" else (path / stranger).write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(ir.OutputError, match=f"it holds {stranger.partition('/')[0]}"):
        ir.export(graph, target="nnef", path=path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("words", [
    "version 1.0;\ngraph g(x) -> (y) {{ y = variable<scalar>(label = '{}', shape = []); }}\n", "label = '{}'",
])  # fmt: skip
def test_a_file_that_only_a_document_calls_its_own_stays(graph, words, tmp_path):
    """A document can name any file of its folder."""
    path = tmp_path / "m"
    path.mkdir()
    (path / "graph.nnef").write_text(words.format("results"))
    (path / "results.dat").write_text("years of work")
    before = tree(tmp_path)
    with pytest.raises(ir.OutputError, match=r"it holds (results\.dat|graph\.nnef)"):
        ir.export(graph, target="nnef", path=path)
    assert tree(tmp_path) == before


WRONG = [("onnx", "m.pt2", "m.onnx"), ("onnx", "m", "m.onnx"), ("onnx", "m.nnef.tgz", "m.onnx"),
         ("eager", "m.onnx", "m.pt2"), ("eager", "m.pt", "m.pt2"),
         ("nnef", "m.onnx", "m.nnef.tgz"), ("nnef", "m.zip", "m.nnef.tar"), ("khronos", "m.pt2", "m.nnef")]  # fmt: skip


@pytest.mark.parametrize(("target", "name", "right"), WRONG)
def test_the_right_suffix_is_named(graph, target, name, right, tmp_path):
    with pytest.raises(ir.OutputError, match=f"{name} is no name .*call it .*{right}"):
        ir.export(graph, target=target, path=tmp_path / name)
    assert not os.listdir(tmp_path)


NO_PLACE = ["", "..", "no/{}", "file/{}", "nul\0{}", "b\udcff{}", "a" * 300 + "{}"]


@pytest.mark.parametrize(("target", "name"), PLACES)
@pytest.mark.parametrize("form", NO_PLACE)
def test_a_path_where_nothing_can_lie(graph, target, name, form, tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ir.OutputError) as caught:
        ir.export(graph, target=target, path=f"{tmp_path}/{form.format(name)}")
    assert len(str(caught.value)) < 700 and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("path", [b"m.onnx", 3])
def test_what_is_no_path(graph, path):
    with pytest.raises(TypeError, match=r"path=.*: give a text or a pathlib.Path"):
        ir.export(graph, target="onnx", path=path)


def test_names_of_every_length_and_letter(graph, tmp_path):
    """A staging directory bears the name of what it holds, and so do data files."""
    for stem in ("a" * 240, "with space", "d'u\"n\n[*]", "ü", ".hidden"):
        for _ in range(2):
            ir.export(graph, target="onnx", path=tmp_path / f"{stem}.onnx", external_data=True, verify=True)
            ir.export(graph, target="nnef", path=tmp_path / f"{stem}.tgz", verify=True)
    assert len(os.listdir(tmp_path)) == 10  # the weights of this model are too small for a data file


@pytest.mark.parametrize(("target", "name"), PLACES)
def test_a_stale_directory_of_ours_goes_and_one_of_somebody_else_stays(graph, target, name, tmp_path):
    ours, half = (tmp_path / f".{name}.{n * 16}.partial" for n in "01")
    ours.mkdir()
    (ours / ".ir.lock").touch()
    (ours / name).write_text("half")
    half.mkdir()  # killed before it had its lock
    theirs = [tmp_path / n for n in (f".{name}.backup.partial", f".{name}.{'2' * 16}.partial", f".{name}.part")]
    for folder in theirs:
        folder.mkdir()
        (folder / "thesis.txt").write_text("years of work")
    ir.export(graph, target=target, path=tmp_path / name)
    assert {p.name for p in tmp_path.iterdir()} == {name, *(p.name for p in theirs)}


@pytest.mark.parametrize(("target", "name"), PLACES)
def test_permissions_are_those_of_what_is_replaced(graph, target, name, tmp_path):
    path = ir.export(graph, target=target, path=tmp_path / name).path
    there = [path, *path.rglob("*")]
    modes = [0o700, 0o640, *[0o600] * len(there)] if name in DIRECTORIES else [0o640]
    for file, mode in zip(there, modes, strict=False):
        file.chmod(mode)
    ir.export(nn.Linear(3, 4), X, target=target, path=path)
    assert [stat.S_IMODE(p.stat().st_mode) for p in there] == modes[: len(there)]
    path.rename(tmp_path / "kept")
    path.symlink_to("kept")
    if name not in DIRECTORIES:  # which a link does not stand for
        ir.export(graph, target=target, path=path)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o640 and not path.is_symlink()


def test_permissions_of_what_the_replaced_artifact_did_not_have(tmp_path):
    """A data file beside a model that had none, a weight of another name in a folder."""
    x = (torch.randn(1, 64),)
    for target, name in (("onnx", "m.onnx"), ("nnef", "folder")):
        path = ir.export(nn.ReLU(), x, target=target, path=tmp_path / name).path
        for file in (path, *path.rglob("*")):
            file.chmod(0o700 if file.is_dir() else 0o600)
        options = {"external_data": True} if target == "onnx" else {}
        ir.export(nn.Linear(64, 64), x, target=target, path=path, **options)
    assert len(list(tmp_path.rglob("*"))) == 6
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*") if p.is_file()} == {0o600}
    (tmp_path / "m.onnx").chmod(0o644)
    ir.export(nn.Linear(64, 64), x, target="onnx", path=tmp_path / "m.onnx", external_data=True)
    assert [stat.S_IMODE(p.stat().st_mode) for p in sorted(tmp_path.glob("m.onnx*"))] == [0o644, 0o600]


def test_a_copy_of_a_model_keeps_its_data(tmp_path):
    model = nn.Linear(64, 64)
    x = (torch.randn(1, 64),)
    path = ir.export(model, x, target="onnx", path=tmp_path / "m.onnx", external_data=True).path
    (tmp_path / "copy.onnx").write_bytes(path.read_bytes())
    for _ in range(2):
        ir.export(model, x, target="onnx", path=path, external_data=True, verify=True)
    assert "m.onnx.data" in os.listdir(tmp_path)  # the copy's
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("target, name", [("onnx", "m.onnx"), ("nnef", "m.nnef.tgz"), ("eager", "m.pt2")])
def test_a_program_whose_file_was_replaced(tmp_path, target, name):
    """It runs what it was made of, not what a later export put in its place."""
    x, models = torch.randn(2, 4), [torch.nn.Linear(4, 4).eval() for _ in range(2)]
    programs = [ir.export(m, (x,), target=target, path=tmp_path / name) for m in models]
    assert [p.file for p in programs] == [None, tmp_path / name]
    for program, model in zip(programs, models, strict=True):
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_file_that_is_no_certificate_stays(tmp_path):
    notes = tmp_path / "m.onnx.certificate.json"
    notes.write_text("my notes")
    with pytest.raises(ir.OutputError, match="no certificate of an export"):
        ir.export(torch.nn.ReLU(), (torch.ones(2),), path=tmp_path / "m.onnx", verify="thorough")
    assert notes.read_text() == "my notes" and not (tmp_path / "m.onnx").exists()
