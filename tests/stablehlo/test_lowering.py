"""Custom ops, handlers, element types, and mistakes that are found where they are made."""

from __future__ import annotations

import pytest
import torch

import ir


@ir.custom_op("shlo_test::swish")
def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


def sized(x):
    return swish(x, 2.0) + swish(x, 2.0).reshape(-1).sum() + x.shape[0]


def test_a_custom_op_is_a_private_function_that_is_called():
    program = ir.export(sized, (torch.randn(2, 3),), target="stablehlo", dynamic_shapes=({0: "b"},), verify=True)
    text = program.artifact.text
    assert text.count("func.func private @shlo_test.swish") == 1 and text.count("call @shlo_test.swish") == 2


def test_a_handler_takes_the_place_of_the_body():
    handlers = {
        "shlo_test::swish": lambda h, x, beta: h.emit("multiply", x, h.emit("logistic", h.emit("multiply", x, beta)))
    }
    program = ir.export(sized, (torch.randn(2, 3),), target="stablehlo", handlers=handlers, verify=True)
    assert "private @" not in program.artifact.text


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (lambda h, x, beta: h.emit("sinus", x, type=x.type), "unregistered operation"),
        (lambda h, x, beta: h.emit("transpose", x, permutation=[0], type=x.type), "permutation"),
        (lambda h, x, beta: h.emit("negate", x, type=h.results[0].with_shape((7,))), "requires compatible types"),
    ],
)
def test_an_operation_that_does_not_verify_is_refused_in_its_handler(handler, said):
    with pytest.raises(ir.ExportError, match=f"(?s)shlo_test::swish.*{said}"):
        ir.export(swish, (torch.randn(2, 3),), target="stablehlo", handlers={"shlo_test::swish": handler})


def test_constants_of_bodies_that_share_a_name_are_told_apart():
    x = torch.randn(4, 4)
    ir.export(lambda x: (torch.fft.fft(x[:, :3]), torch.fft.fft(x[:3].t())), (x,), target="stablehlo", verify=True)
    ir.export(lambda x: torch.fft.ihfft2(x, s=[3, 6]), (x,), target="stablehlo", verify=True)


DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_goes_in_and_out_as_it_is(dtype):
    x = (torch.arange(12).reshape(4, 3) % 3).to(dtype)
    program = ir.export(lambda x: (x, x.t().reshape(-1), x + x), (x,), target="stablehlo", dynamic_shapes=({0: "b"},),
                        verify=True)  # fmt: skip
    assert program(x)[0].dtype == dtype


def test_float64_is_not_narrowed():
    program = ir.export(lambda x: x + 1e-12, (torch.ones(3, dtype=torch.float64),), target="stablehlo")
    assert (program(torch.ones(3, dtype=torch.float64)) != 1).all()


def test_what_the_runtime_lacks_is_refused_in_a_sentence():
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(ir.RefusedError, match="IREE has no fmod for float64; run this part in float32"):
        ir.export(torch.fmod, (x, x), target="stablehlo")


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_sizes_of_loops_and_of_data(size):
    def model(x):
        return x.cumsum(0), x[x > 0].sum(), torch.nn.functional.pad(x, (1, 2)), x.repeat(2, 1)

    program = ir.export(model, (torch.randn(3, 4),), target="stablehlo", dynamic_shapes=({0: "b"},))
    program.verify((torch.randn(size, 4),))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.bool], ids=str)
def test_weights_without_a_sign(dtype):
    table = (torch.arange(300) * 7).to(dtype)
    program = ir.export(lambda i: table[i].to(torch.int64) + 1, (torch.tensor([0, 200, 299]),), target="stablehlo")
    program.verify()
