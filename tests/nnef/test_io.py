"""NNEF files and what runs them: documents, tensor files, archives, tract, the Khronos tools."""

from __future__ import annotations

import io
import os
import signal
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ir
from nnef_backend.errors import DocumentError, InputError, KhronosError, TractCrash, TractError, TractTimeout
from nnef_backend.format import archive, dat
from nnef_backend.format.document import (
    Document,
    Expr,
    Fragment,
    Operation,
    Parameter,
    Ref,
    float_text,
    identifier,
    literal_text,
)
from nnef_backend.format.grammar import fragments_of
from nnef_backend.format.signature import Fact
from nnef_backend.runtime import khronos
from nnef_backend.runtime import tract as runtime

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
SHORT = {"bool": "bool"} | {name: f"{name[0]}{''.join(filter(str.isdigit, name))}" for name in DTYPES[1:]}


@pytest.fixture(scope="module")
def worker() -> Iterator[runtime.Worker]:
    with runtime.Worker() as started:
        yield started


def external(name: str, shape: list, dtype: str = "float32") -> Operation:
    return Operation((name,), "tract_core_external", (), {"shape": shape, "datum_type": SHORT[dtype]})


def unary(operation: str, shape: list, dtype: str = "float32", **attributes: object) -> Document:
    return Document(
        extensions=["tract_registry tract_core", "tract_symbol S"],
        inputs=["x"],
        outputs=["y"],
        operations=[external("x", shape, dtype), Operation(("y",), operation, ("x",), attributes)],
    )


def weighted(count: int = 3) -> Document:
    document = Document(inputs=["x"], outputs=["y"])
    document.operations.append(Operation(("x",), "external", (), {"shape": [2, count]}, dtype="scalar"))
    document.variable("w", "block/weight", [2, count], np.arange(2.0 * count, dtype=np.float32).reshape(2, count))
    document.operations.append(Operation(("y",), "add", ("x", "w")))
    return document


# Documents


def test_text_of_a_document() -> None:
    body = (Operation(("y",), "mul", ("x", "k")),)
    document = Document(
        extensions=["tract_registry tract_core", "tract_symbol S"],
        fragments=[Fragment("scaled", (Parameter("x"), Parameter("k", "scalar", 2.0)), (Parameter("y"),), body)],
        inputs=["x"],
        outputs=["y", "z"],
        operations=[
            external("x", [Expr("S"), 3]),
            Operation(("a",), "scaled", ("x",), {"k": 0.5}),
            Operation(("b",), "concat", (["a", "x"],), {"axis": 0}),
            Operation(("y", "z"), "unstack", ("b",), {"axis": 1}, listed=True),
        ],
    )
    assert document.to_text() == (
        "version 1.0;\n"
        "extension tract_registry tract_core;\n"
        "extension tract_symbol S;\n"
        "\n"
        "fragment scaled(x: tensor<scalar>, k: scalar = 2.0) -> (y: tensor<scalar>)\n"
        "{\n"
        "    y = mul(x, k);\n"
        "}\n"
        "\n"
        "graph network(x) -> (y, z)\n"
        "{\n"
        "    x = tract_core_external(shape = [S, 3], datum_type = 'f32');\n"
        "    a = scaled(x, k = 0.5);\n"
        "    b = concat([a, x], axis = 0);\n"
        "    [y, z] = unstack(b, axis = 1);\n"
        "}\n"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e16, "1.0e+16"),
        (1e-5, "1.0e-05"),
        (0.5, "0.5"),
        (-0.0, "-0.0"),
        (float("inf"), "inf"),
        (np.float32(0.1), "0.10000000149011612"),
        (True, "true"),
        (np.int64(-3), "-3"),
        ("same", "'same'"),
        (Ref("x"), "x"),
        (Expr("S-1"), "S-1"),
        ([(0, 1), (2, 3)], "[(0, 1), (2, 3)]"),
        ([], "[]"),
    ],
)
def test_literals(value: object, text: str) -> None:
    assert literal_text(value) == text  # type: ignore[arg-type]


def test_float_literals_reach_tract_unchanged(tmp_path: Path, worker: runtime.Worker) -> None:
    values = [0.1, 1e16, 1e-5, 1e-45, 3.4e38, -0.5, 1 / 3, float("inf"), float("-inf")]
    document = Document(inputs=["x"], outputs=["y"], extensions=["tract_registry tract_core"])
    document.operations = [external("x", [1])]
    document.operations += [Operation(("y",), "mul", ("x", values))]
    program = worker.load(archive.write(document, tmp_path / "m"))
    with np.errstate(over="ignore"):
        assert program.run([np.ones(1, np.float32)])[0].tolist() == np.array(values, np.float32).tolist()


@pytest.mark.parametrize("bad", [float("nan"), None, object(), "it's", "back\\slash"])
def test_what_has_no_literal_is_refused(bad: object) -> None:
    with pytest.raises(DocumentError):
        literal_text(bad)  # type: ignore[arg-type]


def test_names_are_checked() -> None:
    for bad in ("1x", "a.b", "true_x", "info", "fragment", ""):
        with pytest.raises(DocumentError, match="identifier"):
            Operation((bad,), "neg", ("x",)).to_text()
    assert identifier("layer.0/weight") == "layer_0_weight"
    assert identifier("inf_mask") == "_inf_mask"
    assert identifier("x", {"x", "x_1"}) == "x_2"
    with pytest.raises(DocumentError, match="assigned twice"):
        Document(operations=[Operation(("x",), "neg", ("y",)), Operation(("x",), "neg", ("y",))]).to_text()
    with pytest.raises(DocumentError, match="declared in the order"):
        Document(inputs=["a", "b"], operations=[external("b", [1]), external("a", [1])]).to_text()
    with pytest.raises(DocumentError, match="no operation assigns"):
        Document(outputs=["y"]).to_text()
    with pytest.raises(DocumentError, match="NaN"):
        float_text(float("nan"))


def test_fragments_of_a_file(tmp_path: Path, worker: runtime.Worker) -> None:
    text = "# fragment fake() -> () {}\nfragment a(x: tensor<scalar>) -> (y: tensor<scalar>) { y = neg(x); }\n"
    found = fragments_of(text + "fragment b(x: tensor<scalar>) -> (y: tensor<scalar>)\n{ y = a(a(x)); }  # end\n")
    assert [fragment.name for fragment in found] == ["a", "b"]
    document = unary("b", [2])
    document.fragments = list(found)
    assert worker.load(archive.write(document, tmp_path / "m")).run([np.float32([1, 2])])[0].tolist() == [
        1,
        2,
    ]
    with pytest.raises(DocumentError, match="fragment:1: expected 'fragment'"):
        fragments_of("graph g(x) -> (y) { y = neg(x); }")


# Tensor files


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0)])
def test_tensor_files_in_tract(tmp_path: Path, worker: runtime.Worker, dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) - 1).astype(dtype)
    document = Document(outputs=["y"])
    document.variable("y", "w", shape, values)
    (found,) = worker.load(archive.write(document, tmp_path / "m.tar")).run([])
    assert found.dtype == values.dtype and found.shape == shape
    np.testing.assert_array_equal(found, values)
    stream = io.BytesIO()
    assert dat.write_dat(stream, values) == dat.file_size(values) == len(stream.getvalue())
    stream.seek(0)
    np.testing.assert_array_equal(dat.read_dat(stream), values)


def test_tensor_files_of_any_layout() -> None:
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    for view in (values.T, values[:, ::2], values.astype(">i4"), values[::-1]):
        stream = io.BytesIO()
        dat.write_dat(stream, view)
        stream.seek(0)
        np.testing.assert_array_equal(dat.read_dat(stream), view)


def test_contiguous_tensors_are_not_copied() -> None:
    values = np.arange(6, dtype=np.float32)
    _, piece = dat.pieces(values)
    values[0] = 7
    assert np.frombuffer(piece, np.float32)[0] == 7


def test_limits_of_tensor_files() -> None:
    assert dat.file_size(np.broadcast_to(np.uint8(0), (2**32 - 1,))) == 128 + 2**32 - 1
    with pytest.raises(DocumentError, match="4 GiB"):
        dat.file_size(np.broadcast_to(np.uint8(0), (2**32,)))
    with pytest.raises(DocumentError, match="rank"):
        dat.file_size(np.zeros((1,) * 9))
    with pytest.raises(DocumentError, match="complex64"):
        dat.file_size(np.zeros(1, np.complex64))
    with pytest.raises(DocumentError, match="not an NNEF"):
        dat.read_dat(io.BytesIO(b"\0" * 200))


def test_q4_0_in_tract(tmp_path: Path, worker: runtime.Worker) -> None:
    weights = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    quantised = dat.quantise_q4_0(weights)
    assert np.abs(dat.dequantise_q4_0(quantised) - weights).max() < 0.4
    document = Document(inputs=["x"], outputs=["y"], extensions=["tract_registry tract_core"])
    document.operations.append(external("x", [3, 64]))
    document.variable("w", "w", [8, 64], quantised)
    document.operations.append(Operation(("y",), "matmul", ("x", "w"), {"transposeB": True}))
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    (found,) = worker.load(archive.write(document, tmp_path / "m.tgz")).run([x])
    np.testing.assert_allclose(found, x @ dat.dequantise_q4_0(quantised).T, rtol=1e-4, atol=1e-4)
    with pytest.raises(DocumentError, match="multiple of 32"):
        dat.quantise_q4_0(weights[:, :31])


# Archives


@pytest.mark.parametrize("name", ["m", "m.tar", "m.tgz", "m.tar.gz"])
def test_archives_load_and_are_replaced(tmp_path: Path, worker: runtime.Worker, name: str) -> None:
    path = archive.write(weighted(2), tmp_path / "new" / name)
    archive.write(weighted(), path)
    assert archive.members(path) == {"graph.nnef": len(weighted().to_text()), "block/weight.dat": 152}
    assert archive.read_member(path, "graph.nnef").decode() == weighted().to_text()
    assert os.listdir(path.parent) == [name]
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(worker.load(path)({"x": x})["y"], [[1, 2, 3], [4, 5, 6]])
    with pytest.raises(DocumentError):
        archive.read_member(path, "other.dat")
    with pytest.raises(DocumentError, match="leads out"):
        archive.read_member(path, "../secret")


@pytest.mark.parametrize("name", ["m.tar", "m.tgz"])
def test_archives_are_deterministic(tmp_path: Path, name: str) -> None:
    first, second = weighted(), weighted()
    first.tensors["a"] = np.zeros(1, np.float32)
    second.tensors = {"a": first.tensors["a"], **second.tensors}
    paths = [archive.write(document, tmp_path / folder / name) for folder, document in zip("ab", (first, second))]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with tarfile.open(paths[0]) as tar:
        assert [entry.name for entry in tar] == ["graph.nnef", "a.dat", "block/weight.dat"]
        assert all(entry.mtime == entry.uid == 0 and not entry.uname for entry in tar.getmembers())


@pytest.mark.parametrize("name", ["m", "m.tar", "m.tgz"])
def test_a_failed_write_leaves_the_older_artifact(tmp_path: Path, name: str) -> None:
    path = archive.write(weighted(), tmp_path / name)
    before = {member: archive.read_member(path, member) for member in archive.members(path)}

    def broken() -> np.ndarray:
        raise RuntimeError("no such weight")

    document = weighted()
    document.tensors["z"] = broken
    with pytest.raises(RuntimeError, match="no such weight"):
        archive.write(document, path)
    with pytest.raises(RuntimeError):
        archive.write(document, tmp_path / f"other_{name}")
    assert {member: archive.read_member(path, member) for member in archive.members(path)} == before
    assert os.listdir(tmp_path) == [name]


def test_a_directory_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DocumentError, match="no NNEF directory"):
        archive.write(weighted(), tmp_path)
    (tmp_path / "d.tar").mkdir()
    with pytest.raises(DocumentError, match="is a directory"):
        archive.write(weighted(), tmp_path / "d.tar")
    with pytest.raises(DocumentError, match="is a file"):
        archive.write(weighted(), tmp_path / "thesis.txt")


@pytest.mark.parametrize("label", ["../w", "/w", "a//b", "./w", "a/../../w", "c:\\w", ""])
def test_labels_stay_inside(tmp_path: Path, label: str) -> None:
    document = weighted()
    document.tensors[label] = np.zeros(1, np.float32)
    with pytest.raises(DocumentError):
        archive.write(document, tmp_path / "m")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE])
def test_foreign_archives_are_read_safely(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "m.tar", "w") as tar:
        entry = tarfile.TarInfo("../evil" if kind == tarfile.REGTYPE else "link")
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    with pytest.raises(DocumentError):
        archive.members(tmp_path / "m.tar")
    with pytest.raises(DocumentError):
        archive.extract(tmp_path / "m.tar", tmp_path)
    (tmp_path / "junk.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(DocumentError, match="neither"):
        archive.members(tmp_path / "junk.tar")


# tract


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (4, 3)])
def test_values_travel_unchanged(tmp_path: Path, worker: runtime.Worker, dtype: str, shape: tuple[int, ...]) -> None:
    program = worker.load(archive.write(unary("copy", list(shape), dtype), tmp_path / "m"))
    values = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    (found,) = program.run([values])
    assert found.dtype == values.dtype and found.shape == shape
    np.testing.assert_array_equal(found, values)
    assert program.input_facts == program.output_facts == [Fact(shape, SHORT[dtype])]


def test_inputs_of_any_layout(tmp_path: Path, worker: runtime.Worker) -> None:
    program = worker.load(archive.write(unary("copy", [Expr("S"), 3]), tmp_path / "m"))
    values = np.arange(24, dtype=np.float32)
    for view in (values.reshape(3, 8).T, values.reshape(8, 3)[::-2], np.broadcast_to(np.float32(1), (2, 3))):
        np.testing.assert_array_equal(program.run([view])[0], view)


def test_sizes_may_be_fixed_when_loading(tmp_path: Path, worker: runtime.Worker) -> None:
    path = archive.write(unary("neg", [Expr("S"), 3]), tmp_path / "m")
    program = worker.load(path, sizes={"S": 2})
    assert program.input_facts == [Fact((2, 3), "f32")]
    np.testing.assert_array_equal(program.run([np.ones((2, 3), np.float32)])[0], -np.ones((2, 3)))
    with pytest.raises(InputError, match=r"has shape \[3, 3\]"):
        program.run([np.ones((3, 3), np.float32)])
    with pytest.raises(InputError, match=r"no dynamic dimension is called B; there are \['S'\]"):
        worker.load(path, sizes={"B": 2})


def test_names_facts_and_what_is_refused(tmp_path: Path, worker: runtime.Worker) -> None:
    document = unary("neg", [Expr("S"), 3])
    document.operations += [external("z", [Expr("S")]), Operation(("w",), "abs", ("z",))]
    document.inputs, document.outputs = ["x", "z"], ["w", "y"]
    path = archive.write(document, tmp_path / "m")
    # tract numbers the inputs by their statements; ours go by the graph's parameters, in any order.
    (path / "graph.nnef").write_text(document.to_text().replace("(x, z)", "(z, x)"))
    program = worker.load(path)
    assert (program.input_names, program.output_names) == (["z", "x"], ["w", "y"])
    assert program.input_facts == [Fact(("S",), "f32"), Fact(("S", 3), "f32")]
    x, z = np.ones((2, 3), np.float32), np.float32([-1, 2])
    found = program({"x": x, "z": z})
    np.testing.assert_array_equal(found["y"], -x)
    np.testing.assert_array_equal(found["w"], [1, 2])
    for inputs, said in [
        ({"x": x}, "missing: \\['z'\\]"),
        ({"x": x, "z": z, "q": z}, "unknown: \\['q'\\]"),
        ({"x": x.astype(np.float64), "z": z}, "x is float32 of shape"),
        ({"x": x[:, :2], "z": z}, "x has shape \\[2, 2\\]"),
        ({"x": x[0], "z": z}, "of shape \\['S', 3\\]"),
        ({"x": x, "z": z[:1]}, "'S': 1"),
    ]:
        with pytest.raises(InputError, match=said):
            program(inputs)
    program.close()
    with pytest.raises(TractError, match="closed"):
        program({"x": x, "z": z})


def test_facts_with_expressions() -> None:
    assert Fact.parse("1+S,min(S,3),2*T,F32") == Fact(("1+S", "min(S,3)", "2*T"), "f32")
    assert Fact.parse("Bool") == Fact((), "bool")


def test_dimensions_cannot_be_handed_out(tmp_path: Path, worker: runtime.Worker) -> None:
    program = worker.load(archive.write(unary("tract_core_shape_of", [Expr("S"), 3]), tmp_path / "m"))
    with pytest.raises(TractError, match=r"output y is a dimension .*tract_core_cast"):
        program({"x": np.ones((2, 3), np.float32)})


def test_a_refusal_names_the_operation(tmp_path: Path, worker: runtime.Worker) -> None:
    path = archive.write(unary("rcp", [2]), tmp_path / "m")
    with pytest.raises(TractError, match="No definition for operator") as caught:
        worker.load(path)
    assert (caught.value.operation, caught.value.model, caught.value.crashed) == ("y = rcp", str(path), False)


def test_a_crash_is_an_error_and_the_next_call_works(tmp_path: Path, worker: runtime.Worker) -> None:
    good = worker.load(archive.write(unary("neg", [2]), tmp_path / "good"))
    bad = archive.write(unary("sum_reduce", [2], axes=[-1]), tmp_path / "bad")
    with pytest.raises(TractCrash, match="SIGABRT") as caught:
        worker.load(bad)
    assert caught.value.model == str(bad)
    assert caught.value.operation == "tract_core::ops::nn::reduce::Reduce"
    assert "index out of bounds" in str(caught.value)
    assert "stack" not in str(caught.value) and "stack backtrace" in caught.value.printed
    assert good.run([np.float32([1, 2])])[0].tolist() == [-1, -2]


def test_a_crash_while_running(tmp_path: Path, worker: runtime.Worker) -> None:
    document = unary("neg", [2], "int64")
    document.operations[1] = Operation(("y",), "div", ("x", "x"))
    program = worker.load(archive.write(document, tmp_path / "m"))
    with pytest.raises(TractCrash, match="divide by zero"):
        program.run([np.array([1, 0])])
    assert program.run([np.array([1, 2])])[0].tolist() == [1, 1]


def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    with runtime.Worker() as worker, worker.load(archive.write(unary("neg", [1]), tmp_path / "m")) as program:
        assert worker._process is not None
        worker._process.send_signal(signal.SIGKILL)
        worker._process.wait()
        assert program.run([np.float32([1])])[0].tolist() == [-1]
        assert worker.generation == 2


def test_every_failure_is_an_error_of_ir(tmp_path: Path, worker: runtime.Worker) -> None:
    path = archive.write(weighted(), tmp_path / "m.tgz")
    program = worker.load(path)
    with pytest.raises(ir.ExportError, match="there are"):
        program({})
    with pytest.raises(ir.ExportError, match="is declared"):
        program({"x": np.ones((2, 4), np.float32)})
    whole = path.read_bytes()
    for name, content in (("short", whole[: len(whole) // 2]), ("noise", b"\x1f\x8b" + bytes(200)), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ir.ExportError):
            worker.load(tmp_path / name)
    folder = archive.write(weighted(), tmp_path / "folder")
    (folder / "block" / "weight.dat").write_bytes(b"no tensor")
    with pytest.raises(ir.ExportError):
        worker.load(folder)
    with pytest.raises(ir.ExportError):
        worker.load(archive.write(unary("sum_reduce", [2], axes=[-1]), tmp_path / "bad"))
    assert program({"x": np.ones((2, 3), np.float32)})["y"].shape == (2, 3)


def test_a_thousand_calls_in_one_process(tmp_path: Path) -> None:
    with runtime.Worker() as worker, worker.load(archive.write(unary("neg", [Expr("S")]), tmp_path / "m")) as program:
        for size in range(1000):
            (found,) = program.run([np.full(size % 7 + 1, size, np.float32)])
            assert found.tolist() == [-size] * (size % 7 + 1)
        assert worker.generation == 1


def test_a_call_may_be_given_a_time(tmp_path: Path, worker: runtime.Worker) -> None:
    document = unary("neg", [1800, 1800])
    document.operations[1:] = [
        Operation((result,), "matmul", (operand, operand)) for operand, result in ("xa", "ab", "by")
    ]
    slow = worker.load(archive.write(document, tmp_path / "m"))
    x = np.zeros((1800, 1800), np.float32)
    with pytest.raises(TractTimeout, match=r"more than 0\.02 s"):
        slow.run([x], timeout=0.02)
    assert slow.run([x], timeout=60)[0].shape == (1800, 1800)


def test_programs_are_forgotten(tmp_path: Path, worker: runtime.Worker) -> None:
    path = archive.write(unary("neg", [1]), tmp_path / "m")
    kept = worker.load(path)
    for _ in range(3):
        worker.load(path)
    held, _ = worker.request({"do": "ping"}, [], path, "asking", None)
    assert [number for number in held["models"] if number >= kept.number] == [kept.number]


def test_one_worker_for_several_threads(tmp_path: Path, worker: runtime.Worker) -> None:
    program = worker.load(archive.write(unary("neg", [Expr("S")]), tmp_path / "m"))
    wrong: list[int] = []

    def call(number: int) -> None:
        for size in range(1, 20):
            if program.run([np.full(size, number, np.float32)])[0].tolist() != [-number] * size:
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_shared_worker_is_one(tmp_path: Path) -> None:
    path = archive.write(unary("neg", [1]), tmp_path / "m")
    with runtime.load(path) as first, runtime.load(path) as second:
        assert first.worker is second.worker is runtime.shared_worker()


def test_the_process_imports_neither_torch_nor_the_package() -> None:
    maps = Path("/proc")
    with runtime.Worker() as worker:
        worker.start()
        assert worker._process is not None
        found = maps / str(worker._process.pid) / "maps"
        if not found.exists():
            pytest.skip("the system shows no memory maps")
        assert "torch" not in found.read_text()


# The Khronos tools


@pytest.mark.parametrize("name", ["m", "m.tgz", "m.tar"])
def test_khronos_checks_and_runs(tmp_path: Path, name: str) -> None:
    path = archive.write(weighted(), tmp_path / name)
    graph = khronos.check(path)
    assert list(graph.tensors["y"].shape) == [2, 3]
    found = khronos.run(path, {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(found["y"], [[1, 2, 3], [4, 5, 6]])


def test_khronos_refuses(tmp_path: Path) -> None:
    with pytest.raises(KhronosError):
        khronos.check(archive.write(unary("neg", [2]), tmp_path / "tract_only"))
    document = weighted()
    document.tensors["block/weight"] = np.zeros((2, 2), np.float32)
    with pytest.raises(KhronosError, match="declared"):
        khronos.check(archive.write(document, tmp_path / "shapes"))
    path = archive.write(weighted(), tmp_path / "m")
    with pytest.raises(InputError, match="takes the inputs"):
        khronos.run(path, {})
    with pytest.raises(InputError, match="declared"):
        khronos.run(path, {"x": np.ones((2, 2), np.float32)})


def test_a_relative_path_after_the_folder_changed(tmp_path, monkeypatch):
    """The process that runs tract stays where it was started."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        program = ir.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),), target="nnef", path="m.nnef.tgz", verify=True)
        assert program.path == Path("m.nnef.tgz")


def test_inputs_and_weights_that_are_results_keep_their_names(tmp_path: Path) -> None:
    class Given(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x, x + y, self.w

    ir.export(Given(), (torch.randn(3), torch.randn(3)), target="nnef", path=tmp_path / "m.nnef.tgz")
    text = archive.read_member(tmp_path / "m.nnef.tgz", "graph.nnef").decode()
    assert "graph network(x, y) -> (output_0, output_1, output_2)" in text
    assert "w = variable<scalar>(label = 'w'" in text
