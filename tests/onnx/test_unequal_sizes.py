"""Sizes that torch.export found to be equal and that differ in a run: onnxruntime broadcasts or skips empty ones."""

import onnxruntime
import pytest
import torch
from torch.export import Dim

import ir

MODELS = {
    "cat": (lambda x: torch.cat([x[::2], x[1::2]], 1), (6, 4), {(1, 4), (3, 4)}, {(0, 4), (2, 4), (8, 4)}),
    "bmm": (lambda x: torch.bmm(x[::2, None], x[1::2, :, None]), (6, 4), {(3, 4), (5, 4)}, {(4, 4), (8, 4)}),
    "unflatten": (lambda x: x.unflatten(0, (-1, 8)), (16, 4), {(9, 4), (12, 4)}, {(8, 4), (24, 4), (0, 4)}),
    "view": (lambda x: x.flatten().view(-1, 2, 4), (6, 4), {(1, 4), (3, 4)}, {(0, 4), (2, 4), (8, 4)}),
    "quotient": (lambda x: x.view(x.shape[0] * 2, 2).view(x.shape[0] // 2, 8), (6, 4), {(1, 4), (5, 4)}, {(4, 4)}),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_programs_and_files_refuse_what_torch_refuses(name, tmp_path):
    fn, shape, refused, taken = MODELS[name]
    path = tmp_path / "m.onnx"
    program = ir.export(fn, (torch.randn(shape),), target="onnx", dynamic_shapes=({0: Dim.DYNAMIC},), path=path)
    session = onnxruntime.InferenceSession(path)
    for size in sorted(refused):
        x = torch.randn(size)
        with pytest.raises(RuntimeError):
            fn(x)
        with pytest.raises(ir.RefusedError, match=f"torch does not compute .*at .*={size[0]}"):
            program(x)
        with pytest.raises(Exception, match=r"needs|reshape"):
            session.run(None, {"x": x.numpy()})
    for size in sorted(taken):
        x = torch.randn(size)
        torch.testing.assert_close(program(x), fn(x), rtol=0, atol=1e-6)
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), fn(x), rtol=0, atol=1e-6)


DECOMPOSED = {
    "einsum": lambda x: torch.einsum("ij,ij->i", x[::2], x[1::2]),
    "mse_loss": lambda x: torch.nn.functional.mse_loss(x[::2], x[1::2]),
    "hstack": lambda x: torch.hstack([x[::2], x[1::2]]),
}


@pytest.mark.parametrize("name", sorted(DECOMPOSED))
def test_a_decomposition_may_rely_on_sizes_that_are_one_in_every_run(name):
    fn = DECOMPOSED[name]
    program = ir.export(fn, (torch.randn(6, 4),), target="onnx", dynamic_shapes=({0: Dim.DYNAMIC},))
    for n in (4, 12):
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x), fn(x), rtol=0, atol=1e-6)
    with pytest.raises(ir.RefusedError):
        program(torch.randn(5, 4))


def test_equal_sizes_that_divide_by_what_is_nothing_at_other_sizes():
    def turned(x):
        half = x.narrow(-2, 0, x.shape[-2] // 2)
        both = torch.stack([half, half])
        turned = half.reshape(half.shape[1], half.shape[0])
        return both.type_as(torch.tensor(1e-3) + both), turned

    x = torch.tensor([[True, False], [True, False], [False, True]])
    program = ir.export(turned, (x,), target="onnx", dynamic_shapes=({0: "n"},))
    program.verify((x,))
