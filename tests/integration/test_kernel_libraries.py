"""An op whose kernel for onnxruntime lies in a library of its own: onnxruntime-extensions' `Inverse`."""

from __future__ import annotations

import pickle

import numpy as np
import onnxruntime
import pytest
import torch

import ir
from ir.cli import main
from ir.opening import open_artifact
from onnx_backend import Onnx

extensions = pytest.importorskip("onnxruntime_extensions")
LIBRARY = extensions.get_library_path()
DOMAIN = "ai.onnx.contrib"
X = torch.tensor([[2.0, 1.0], [1.0, 3.0]])


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x + 1) * 2


def inverse(h, A):
    return [h.emit(f"{DOMAIN}::Inverse", A, dtype=A.type.dtype, shape=A.type.shape), None]


@pytest.fixture
def program(tmp_path):
    return ir.export(
        Model(),
        (X,),
        path=tmp_path / "model.onnx",
        handlers={"aten::linalg_inv_ex": lambda h, A, check_errors=False: inverse(h, A)},
        custom_op_libraries=[LIBRARY],
        verify=True,
    )


def test_the_programs_own_session_has_the_kernel(program):
    assert any(n.domain == DOMAIN for n in program.artifact.graph)
    assert torch.allclose(program(X), Model()(X), atol=1e-5)
    other = torch.tensor([[5.0, 0.0], [1.0, 2.0]])
    assert program.verify((other,)).ok


def test_the_file_opens_with_the_library_and_says_so_without(program):
    with pytest.raises(ir.RuntimeFailure, match="custom_op_libraries="):
        open_artifact(program.path)
    opened = open_artifact(program.path, Onnx(custom_op_libraries=LIBRARY))
    assert torch.allclose(opened(X)[0], Model()(X), atol=1e-5)


def test_the_lines_that_run_the_file_register_it(program):
    lines = program.target.usage(program.path, program.graph).splitlines()
    assert f"options.register_custom_ops_library({LIBRARY!r})" in lines
    names = {"x": X.numpy(), "onnxruntime": onnxruntime}
    *first, last = lines
    exec("\n".join(first), names)
    (result,) = eval(last, names)
    assert np.allclose(result, Model()(X).numpy(), atol=1e-5)


def test_options_of_the_callers_own_take_the_library_once(tmp_path):
    options = onnxruntime.SessionOptions()
    handlers = {"aten::linalg_inv_ex": lambda h, A, check_errors=False: inverse(h, A)}
    made = ir.export(
        Model(), (X,), handlers=handlers, custom_op_libraries=[LIBRARY], session_options=options, verify=True
    )
    made.verify((X + 1,))
    assert torch.allclose(made(X), Model()(X), atol=1e-5)


def test_a_program_travels_with_it(program):
    program._handlers = {}  # functions of this test, which pickle does not find by name
    assert torch.allclose(pickle.loads(pickle.dumps(program))(X), Model()(X), atol=1e-5)


def test_the_command_line_takes_it(program, capsys):
    file = str(program.path)
    for command in (["run", file], ["bench", file, "-n", "2"]):
        with pytest.raises(SystemExit) as done:
            main([*command, "-O", f"custom_op_libraries={LIBRARY}"])
        assert done.value.code == 0
    with pytest.raises(SystemExit) as done:
        main(["run", file, "-O", "custom_op_library=x"])
    assert done.value.code == 2 and "did you mean custom_op_libraries?" in capsys.readouterr().err
