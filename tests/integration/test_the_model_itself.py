"""verify() beside the model: what torch.export's program has decided while it was traced."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import ir
from ir.opening import open_artifact

X = torch.randn(4, 3)


def of_one(x: Tensor) -> Tensor:
    return x - 1 if x.size(0) == 1 else x * 2


def of_none(x: Tensor) -> Tensor:
    return x.sum(0) - 1 if x.size(0) == 0 else x.sum(0)


def when_exported(x: Tensor) -> Tensor:
    return x * 2 if torch.compiler.is_exporting() else x


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_another_way_than_the_traced_one(target: str) -> None:
    program = ir.export(when_exported, X, target=target, dynamic_shapes=({0: "b"},))
    with pytest.raises(ir.MismatchError, match="but the model itself gives other results:\noutput"):
        program.verify()
    program = ir.export(torch.export.export(Module(when_exported), (X,)), target=target)  # there is nothing else of it
    assert program.verify().ok


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.layers(x, src_key_padding_mask=padding)


def test_the_explanation_is_of_what_the_model_has() -> None:
    args = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])
    program = ir.export(Padded().eval(), args, target="eager")
    with pytest.raises(ir.MismatchError, match="the model itself gives other results") as caught:
        program.verify()
    assert "dynamic size" not in str(caught.value) and "transformers leaves" not in str(caught.value)
    assert "set_fastpath_enabled(False)" in str(caught.value)
    was = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        assert program.verify().ok
    finally:
        torch.backends.mha.set_fastpath_enabled(was)
    with pytest.raises(ir.MismatchError, match=r"a dynamic size is 0 or 1.* state in Python\.$"):
        ir.export(when_exported, X, target="eager", dynamic_shapes=({0: "b"},)).verify()


def of_one_raising(x: Tensor) -> Tensor:
    if x.size(0) == 1:
        raise ValueError("a batch of 1")
    return x * 2


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(("model", "size"), [(of_one, 1), (of_one_raising, 1), (of_none, 0)])
def test_sizes_at_which_the_model_does_something_else_are_refused(
    model: Callable[[Tensor], Tensor], size: int, target: str, verify: bool, tmp_path: Path
) -> None:
    path = tmp_path / {"onnx": "m.onnx", "nnef": "m.nnef.tgz", "eager": "m.pt2"}[target]
    asked = rf"where b == {size} is False \(.*_itself.py:\d+\), and does something else where it is not"
    with pytest.warns(UserWarning, match=rf"the program refuses these\n  b == {size} is False"):
        program = ir.export(model, X, path=path, target=target, dynamic_shapes=({0: "b"},), verify=verify)
    assert torch.equal(program(X), model(X))
    with pytest.raises(ir.RefusedError, match=asked):
        program(X[:size])
    opened = open_artifact(path)
    assert torch.equal(opened(X)[0], model(X))
    with pytest.raises(ir.ExportError, match=rf"b != {size}|_holds stops the run"):
        opened(X[:size])
    assert f"not run at b={size}" in str(program.verify())


def checked(x: Tensor) -> Tensor:
    torch._check(x.size(0) > 1, lambda: "more than one")
    return x * 2


def asserted(x: Tensor) -> Tensor:
    torch._assert(x.size(0) > 1, "more than one")
    return x * 2


@pytest.mark.parametrize("model", [checked, asserted])
def test_sizes_at_which_a_check_of_torch_raises_are_refused(model: Callable[[Tensor], Tensor]) -> None:
    with pytest.warns(UserWarning, match=r"the program refuses these\n  b > 1 is True .*not at b = 0 or b = 1"):
        program = ir.export(model, X, target="onnx", dynamic_shapes=({0: "b"},))
    assert torch.equal(program(X[:2]), model(X[:2]))
    for size in (0, 1):
        with pytest.raises(ir.RefusedError, match=r"where b > 1 is True \(.*_itself.py:\d+\), and does something else"):
            program(X[:size])


def mean_of_some(x: Tensor) -> Tensor:
    return x.sum() / max(x.shape[0], 1)


def mean_by_len(x: Tensor) -> Tensor:
    return x.sum() / max(len(x), 1)


def last_two(x: Tensor) -> Any:
    last = x[-2:]
    return last.sum() / max(last.shape[0], 1), x * 2


def number_of_the_first(x: Tensor) -> Any:
    return x * 2, x[:1].shape[0]


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(
    ("model", "size", "said"),
    [
        (mean_of_some, 0, r"max\(b, 1\) is b"),
        (mean_by_len, 0, "b > 0 is True"),  # torch.export's strict mode tells nothing of the code
        (last_two, 1, "b > 1 is True"),
        (number_of_the_first, 0, "b > 0 is True"),
    ],
)
def test_numbers_that_torch_has_for_two_and_more(
    model: Callable[[Tensor], Any], size: int, said: str, target: str
) -> None:
    """It takes a size to be 2 at least: `max(n, 1)` is `n`, and `x[-2:]` has two rows."""
    with pytest.warns(UserWarning, match=rf"the program refuses these\n(.*\n)*  {said}"):
        program = ir.export(model, X, target=target, dynamic_shapes=({0: "b"},))
    torch.testing.assert_close(program(X[:2]), model(X[:2]))
    with pytest.raises(ir.RefusedError, match=f"where {said} .*does something else where it is not"):
        program(X[:size])


def test_the_size_may_be_that_of_another_input() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return (x + y).sum() / max(y.shape[0], 1)

    with pytest.warns(UserWarning, match=r"max\(b, 1\) is b"):
        program = ir.export(model, (X, X), target="eager", dynamic_shapes=({0: "b"}, {0: "b"}))
    with pytest.raises(ir.RefusedError, match="does something else where it is not"):
        program(X[:0], X[:0])


def test_slices_that_are_shorter_and_give_the_same_are_no_question(recwarn: pytest.WarningsRecorder) -> None:
    program = ir.export(lambda x: x[-2:] * 2, X, target="eager", dynamic_shapes=({0: "b"},))
    assert program(X[:1]).shape == X[:1].shape
    assert not [w for w in recwarn.list if "to be 2 or more" in str(w.message)]


def test_a_number_of_the_example_is_compared_with_the_models() -> None:
    def model(x: Tensor) -> Any:
        return x * 2, 1 if x.shape[0] > 3 else 0

    program = ir.export(model, X, target="eager")
    assert program.verify().ok
    graph = program.graph.replace(structure=program.graph.structure)
    assert graph.context.of_model(graph, (X,), {}) is not None
    with pytest.raises(ir.MismatchError, match="the model returns 0 where its program has 1"):
        graph.context.of_model(graph, (X[:2],), {})


def test_questions_about_small_sizes_are_told(recwarn: pytest.WarningsRecorder) -> None:
    def model(x: Tensor) -> Tensor:
        if not x.numel() or x.size(0) in (0, 1) or max(x.size(1), 1) == 1:
            return x
        return x[1:] if x.shape[0] > 2 else x  # which torch notes itself

    def told(model: Any, sizes: Any, **options: Any) -> list[str]:
        recwarn.clear()
        ir.export(model, X, dynamic_shapes=(sizes,), target="eager", **options)
        texts = [str(w.message) for w in recwarn.list if "to be 2 or more" in str(w.message)]
        return [line.replace(f"({__file__}:", "(") for text in texts for line in text.splitlines()[1:-1]]

    first = model.__code__.co_firstlineno + 1
    assert told(model, {0: "b"}) == []  # the graph holds for more than 2 alone, and checks it
    assert told(of_one, {0: "b"}) == [f"  b == 1 is False  ({of_one.__code__.co_firstlineno + 1}), but not at b = 1"]
    assert told(of_none, {0: "b"}) == [f"  b == 0 is False  ({of_none.__code__.co_firstlineno + 1}), but not at b = 0"]
    assert told(model, {1: "t"}) == [
        f"  4*t is True  ({first}), but not at t = 0",
        f"  max(t, 1) is t  ({first}), but not at t = 0",
        f"  t == 1 is False  ({first}), but not at t = 1",
    ]
    assert told(of_one, {0: Dim("b", min=2)}) == told(of_one, {1: "t"}) == told(lambda x: x * 2, {0: "b"}) == []
    assert len(told(of_the_same, {0: "b"})) == 1
    assert "gives the same there" in str(recwarn.list[-1].message)
    assert told(of_the_same, {0: "b"}, verify=True) == []


def of_the_same(x: Tensor) -> Tensor:
    return x.relu() if x.size(0) == 1 else torch.clamp(x, min=0)


def test_they_are_told_of_a_graph_that_was_pickled() -> None:
    graph = pickle.loads(pickle.dumps(ir.capture(of_one, X, dynamic_shapes=({0: "b"},))))
    with pytest.warns(UserWarning, match=r"b == 1 is False  \(.*\), but not at b = 1"):
        ir.export(graph, target="eager")


def test_a_range_that_leaves_them_out() -> None:
    assert ir.export(of_one, X, target="eager", dynamic_shapes=({0: Dim("b", min=2)},), verify=True).report.ok


class Module(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


class Counting(nn.Module):
    """Writes to buffers, draws random numbers and keeps a list."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls = nn.BatchNorm1d(3), [0]
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.total += x.sum(0)
        self.calls.append(1)
        return self.norm(x) * self.total, torch.nn.functional.dropout(x)


def test_the_model_is_left_as_it_was() -> None:
    model = Counting()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    program = ir.export(model, X, target="onnx", dynamic_shapes=({0: "b"},), verify=True)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items()) and model.calls == [0]
    program(X), model(X)
    assert program.verify().ok
    model.eval()  # is another model, of which the program knows nothing
    assert program.verify().ok


def of_a_quotient(x: Tensor) -> Tensor:
    return x * (1 / (x.shape[0] - 1)) if x.shape[0] > 1 else x


def of_a_maximum(x: Tensor) -> Tensor:
    return x * (7 // max(x.shape[0], 1))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(("model", "size"), [(of_a_quotient, 1), (of_a_maximum, 0)])
def test_a_size_at_which_the_program_alone_fails_is_refused(
    model: Callable[[Tensor], Tensor], size: int, target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match=rf"the program refuses these\n.* but not at b = {size}"):
        program = ir.export(model, X, target=target, dynamic_shapes=({0: "b"},))
    assert torch.equal(program(X[:3]), model(X[:3]))
    with pytest.raises(ir.RefusedError, match=f"export it for b={size} as well"):
        program(X[:size])
    assert "Traceback" not in capfd.readouterr().err


class Plain(nn.Module):
    """State in a tensor that is neither a buffer nor a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(3)
        self.held = [torch.zeros(3)]

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.sum(0))
        self.held[0].add_(self.seen)
        return self.held[0] * 2


@pytest.mark.filterwarnings("ignore:the model writes to:UserWarning")
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_plain_tensor_that_is_written_stays_the_models_own(target: str) -> None:
    model = Plain()
    program = ir.export(model, X, target=target, dynamic_shapes=({0: "b"},), verify=True)
    assert not model.seen.any() and not model.held[0].any()
    assert program.verify().ok
    expected = [Plain()(X)] if target != "eager" else [(other := Plain())(X), other(X)]
    for e in expected:
        torch.testing.assert_close(program(X), e)


class Window(nn.Module):
    def __init__(self, asked: str = "") -> None:
        super().__init__()
        self.asked = asked

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(x, (0, -x.shape[1] % 4))
        cut = padded[:, : x.shape[1]]
        made = cut.contiguous()
        if self.asked == "layout":
            return made + 1 if cut.is_contiguous() else made
        if self.asked == "stride":
            return made + 1 if padded.stride(0) != x.shape[1] else made
        return made.add_(1) + cut if self.asked == "write" else made


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_copy_or_none_is_one_result(target: str, recwarn: pytest.WarningsRecorder) -> None:
    """`contiguous` copies unless the width is a multiple of 4."""
    x = torch.randn(2, 10)
    program = ir.export(Window(), x, target=target, dynamic_shapes=({1: "w"},), verify=True)
    assert not recwarn.list
    for w in (3, 4, 8, 9):
        assert torch.equal(program(x[:, :w]), x[:, :w])


@pytest.mark.parametrize("asked", ["layout", "stride", "write"])
def test_a_copy_matters_where_its_memory_does(asked: str) -> None:
    x = torch.randn(2, 10)
    with pytest.warns(UserWarning, match="the model branches on dynamic sizes"):
        program = ir.export(Window(asked), x, target="onnx", dynamic_shapes=({1: "w"},))
    torch.testing.assert_close(program(x[:, :7]), Window(asked)(x[:, :7]))
    with pytest.raises(ir.RefusedError, match="branched on that"):
        program(x[:, :8])


@pytest.mark.parametrize("module", [{}, {"__name__": "__main__"}], ids=["exec", "python -c"])
@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_code_without_a_file_is_told_what_it_decided(target: str, module: dict[str, Any]) -> None:
    exec("def sizes(x): return x.sum() if x.shape[0] == 0 else x.mean()", module)
    with pytest.warns(UserWarning, match=r"B == 0 is False  \(<string>:1\)"):
        program = ir.export(module["sizes"], (X,), target=target, dynamic_shapes=({0: "B"},))
    with pytest.raises(ir.RefusedError, match="was traced where B == 0 is False"):
        program(torch.randn(0, 3))
