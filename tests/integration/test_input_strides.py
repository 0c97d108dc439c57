"""A call with an input that lies in memory otherwise than the program was made for is refused, or as torch has it."""

import pytest
import torch

import ir

X = torch.arange(12.0).reshape(3, 4)


class Written(torch.nn.Module):
    def forward(self, x):
        x.reshape(-1).add_(1)
        return x * 2


class Read(torch.nn.Module):
    def forward(self, x):
        return x.as_strided((4, 3), (3, 1)) * 2


def in_columns(x):
    return x.mT.contiguous().mT


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("model", [Written(), Read()], ids=["written", "read"])
def test_strides_of_an_input(model, target):
    program = ir.export(model, (X.clone(),), target=target)
    assert torch.equal(program(X.clone()), model(X.clone()))
    if target == "eager" and isinstance(model, Read):  # torch's kernels see the strides
        assert torch.equal(program(in_columns(X)), model(in_columns(X)))
        return
    with pytest.raises(ir.RefusedError, match=r"the input x has strides \(1, 3\), and aten::(reshape|as_strided) dep"):
        program(in_columns(X))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_an_example_in_columns(target):
    model = Written()
    program = ir.export(model, (in_columns(X),), target=target)
    assert torch.equal(program(in_columns(X)), model(in_columns(X)))
    with pytest.raises(ir.RefusedError, match="lay it out as in the example"):
        program(X.clone())


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_channels_last_where_it_does_not_matter(target):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.ReLU(inplace=True)).eval()
    x = torch.randn(2, 3, 5, 5)
    program = ir.export(model, (x,), target=target)
    with torch.no_grad():
        torch.testing.assert_close(program(x.to(memory_format=torch.channels_last)), model(x))


class Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x):
        y = self.layer(x)[0]
        torch.relu_(y.reshape(-1, 3))
        return y * 1


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN], ids=["lstm", "gru", "rnn"])
def test_what_a_recurrent_layer_gives_is_turned(kind, target):
    model, x = Recurrent(kind).eval(), torch.randn(2, 5, 4)
    with torch.no_grad():
        expected = model(x)
        assert (expected < 0).any()
        torch.testing.assert_close(ir.export(model, (x,), target=target)(x), expected)


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_the_layout_that_a_convolution_keeps(target):
    def call(x):
        y = torch.nn.functional.conv2d(x, torch.ones(3, 4, 3, 3))
        y.reshape(-1).add_(1)
        return y * 1

    x = torch.randn(2, 4, 4, 4)
    program = ir.export(call, (x,), target=target)
    torch.testing.assert_close(program(x), call(x))
    with pytest.raises(ir.RefusedError, match="has strides"):
        program(x.to(memory_format=torch.channels_last))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_an_expanded_input_is_not_written_to(target):
    def call(x):
        x[:, 0].mul_(2)
        return x * 1

    program = ir.export(call, (torch.randn(2, 3, 4),), target=target)
    with pytest.raises(ir.RefusedError, match=r"writes to the input x, of which several elements lie in one place"):
        program(torch.randn(2, 1, 4).expand(2, 3, 4))


def normalised(x):
    return x.permute(0, 3, 1, 2).contiguous().sub_(1).div_(2)


def masked(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2).masked_fill_(x > 0, 0.0)


def shuffled(x):
    return x.unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2).relu_()


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(
    "call, shape, dynamic",
    [(normalised, (2, 5, 6, 3), "bhw"), (masked, (2, 5, 6), "bs"), (shuffled, (2, 4, 5), "b")],
    ids=["images", "masks", "channels"],
)
def test_a_copy_of_one_image_is_one(call, shape, dynamic, target):
    """At sizes of 1 too: `contiguous` copies where any two axes are out of order, not where all sizes are above 1."""
    x = torch.randn(shape)
    program = ir.export(call, (x,), target=target, dynamic_shapes=(dict(enumerate(dynamic)),))
    one = torch.randn(1, *shape[1:])
    torch.testing.assert_close(program(one.clone()), call(one.clone()))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_gaps_do_not_matter_to_kernels(target):
    def call(x):
        y = torch.relu(x * 2)
        y.reshape(-1).add_(1)
        return y * 1

    program = ir.export(call, (X,), target=target)
    for other in (torch.randn(3, 8)[:, ::2], torch.randn(6, 4)[::2], torch.randn(3, 9)[:, 1:5]):
        torch.testing.assert_close(program(other), call(other))
