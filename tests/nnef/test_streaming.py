"""A causal audio model fed piece by piece through tract's pulse gives what it gives on the whole signal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import ir
import nnef_backend
from nnef_backend.runtime import tract as runtime

FRAMES, PULSE = 40, 4


class Audio(nn.Module):
    """Two convolutions, one with a stride, a GRU and a classifier: [1, 4, T] -> [1, T', 3]."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 8, 5), nn.Conv1d(8, 8, 3, stride=2)
        self.memory, self.head = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return self.head(self.memory(y.transpose(1, 2))[0])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    model, x = Audio().eval(), torch.randn(1, 4, FRAMES)
    path = tmp_path_factory.mktemp("streaming") / "audio.nnef.tgz"
    program = ir.export(
        model, (x,), target="nnef", path=path, dynamic_shapes=({2: torch.export.Dim("T", min=16)},), verify=True
    )
    program.verify((torch.randn(1, 4, 31),))
    with torch.no_grad():
        return path, x.numpy(), model(x).numpy()


def pieces(x):
    beyond = np.concatenate([x, np.zeros((1, 4, 16), np.float32)], axis=2)
    return [beyond[:, :, i : i + PULSE] for i in range(0, beyond.shape[2], PULSE)]


def test_piece_by_piece_is_the_whole(exported):
    path, x, whole = exported
    program = nnef_backend.load(path, pulse=PULSE, symbol="T")
    assert program.input_facts[0].shape == (1, 4, PULSE)
    with nnef_backend.Stream(program) as one, nnef_backend.Stream(program) as other:
        found, between = [], []
        for piece in pieces(x):  # two streams do not disturb one another
            found.append(one.run([piece])[0])
            between.append(other({"x": -piece})["output"])
    streamed = np.concatenate(found, axis=1)[:, program.delay : program.delay + whole.shape[1]]
    np.testing.assert_allclose(streamed, whole, rtol=1e-4, atol=1e-6)
    assert not np.allclose(np.concatenate(between, axis=1), np.concatenate(found, axis=1), atol=1e-3)


def test_what_is_refused(exported):
    path, x, _ = exported
    program = nnef_backend.load(path, pulse=PULSE, symbol="T")
    with pytest.raises(ir.ExportError, match="open a Stream"):
        program.run([x])
    with pytest.raises(ir.ExportError, match=r"\[1, 4, 4\] is declared"), nnef_backend.Stream(program) as stream:
        stream.run([x])
    with pytest.raises(ir.ExportError, match="loaded whole"):
        nnef_backend.Stream(nnef_backend.load(path))
    with pytest.raises(ir.ExportError, match="go together"):
        nnef_backend.load(path, pulse=4)
    with pytest.raises(ir.ExportError):
        nnef_backend.load(path, pulse=4, symbol="nowhere")


def test_a_stream_ends_with_its_process(exported):
    path, x, _ = exported
    with runtime.Worker() as worker:
        program = worker.load(path, pulse=PULSE, symbol="T")
        stream = nnef_backend.Stream(program)
        stream.run([pieces(x)[0]])
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(ir.ExportError, match="open another and begin anew"):
            stream.run([pieces(x)[1]])
        assert nnef_backend.Stream(program).run([pieces(x)[0]])[0].shape == (1, 2, 3)
