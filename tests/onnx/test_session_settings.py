"""session_options=, providers= and custom_op_libraries=: what reaches onnxruntime, and what is told of wrong ones."""

from __future__ import annotations

import pickle
import re

import onnxruntime
import pytest
import torch

import ir
from ir.opening import open_artifact
from onnx_backend import Onnx
from onnx_backend.runtime.settings import EXACT

MODEL = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
X = torch.randn(2, 4)


def test_options_by_name_reach_the_session(tmp_path):
    program = ir.export(
        MODEL,
        X,
        path=tmp_path / "model.onnx",
        verify=True,
        session_options={
            "intra_op_num_threads": 1,
            "graph_optimization_level": "ORT_DISABLE_ALL",
            "session.use_env_allocators": 1,
        },
    )
    options = program.runner.session.get_session_options()
    assert options.intra_op_num_threads == 1
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.get_session_config_entry("session.use_env_allocators") == "1"
    assert {k: options.get_session_config_entry(k) for k in EXACT} == EXACT
    again = pickle.loads(pickle.dumps(program))
    assert again.runner.session.get_session_options().intra_op_num_threads == 1
    opened = open_artifact(tmp_path / "model.onnx", Onnx(session_options={"intra_op_num_threads": 3}))
    assert opened.session.get_session_options().intra_op_num_threads == 3
    assert torch.allclose(opened(X)[0], MODEL(X), atol=1e-5)


def test_an_optimised_model_is_written_where_the_option_says(tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    program = ir.export(MODEL, X, verify=True, session_options=options)
    assert (tmp_path / "optimised.onnx").exists()
    assert torch.allclose(program(X), MODEL(X), atol=1e-5)
    with pytest.raises(TypeError, match=r"SessionOptions cannot be: give a dict"):
        pickle.dumps(program)


def test_what_the_caller_set_for_exactness_stays():
    key = "session.qdq_matmulnbits_accuracy_level"
    program = ir.export(MODEL, X, session_options={key: "4"})
    assert program.runner.session.get_session_options().get_session_config_entry(key) == "4"
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(key, "4")
    program = ir.export(MODEL, X, session_options=options)
    assert program.runner.session.get_session_options().get_session_config_entry(key) == "4"


def test_a_profile_leaves_the_callers_options_as_they_were():
    options = onnxruntime.SessionOptions()
    program = ir.export(MODEL, X, session_options=options)
    assert program.runner.timed([X], 2)
    assert not options.enable_profiling


def test_providers_in_their_order():
    here = onnxruntime.get_available_providers()  # "Azure" and the CPU, in a plain build
    program = ir.export(MODEL, X, providers=[(name, {}) for name in here], verify=True)
    assert program.runner.session.get_providers() == here
    assert ir.export(MODEL, X).runner.session.get_providers() == ["CPUExecutionProvider"]
    assert ir.export(MODEL, X, providers="CPUExecutionProvider", verify=True).report.ok


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"providers": ["CUDAExecutionProvidr"]}, ValueError, "did you mean CUDAExecutionProvider?"),
        ({"providers": ["TensorrtExecutionProvider"]}, ValueError, "install a build of onnxruntime that has it"),
        ({"providers": []}, ValueError, "leaves nothing to compute with"),
        ({"session_options": {"intra_op_threads": 1}}, ValueError, "did you mean intra_op_num_threads?"),
        ({"session_options": {"graph_optimization_level": "none"}}, TypeError, "ORT_DISABLE_ALL"),
        ({"session_options": {"intra_op_num_threads": "two"}}, TypeError, "'two' is none of int"),
        ({"session_options": 3}, TypeError, "give an onnxruntime.SessionOptions, or a dict"),
        ({"custom_op_libraries": "nowhere.so"}, ir.ExportError, "there is no file nowhere.so"),
        ({"custom_op_libraries": [__file__]}, ir.ExportError, "which has to export RegisterCustomOps"),
    ],
)
def test_a_wrong_one_is_told_before_anything_else(options, kind, said, tmp_path):
    with pytest.raises(kind, match=re.escape(said)) as error:
        ir.export(MODEL, X, path=tmp_path / "model.onnx", **options)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_an_op_without_a_kernel_says_what_to_give(tmp_path):
    with pytest.raises(ir.RuntimeFailure, match=r"give custom_op_libraries="):
        ir.export(
            torch.nn.ReLU(),
            X,
            path=tmp_path / "model.onnx",
            handlers={"aten::relu": lambda h, self: h.emit("mine::Relu", self, dtype=self.type.dtype, shape=[2, 4])},
            verify=True,
        )
    assert not list(tmp_path.iterdir())
