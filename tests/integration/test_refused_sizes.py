"""Sizes that torch refuses to compute for: a program refuses them as well, and gives no number."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ir
from ir.opening import open_artifact

TARGETS = ("onnx", "nnef", "eager", "stablehlo")
# What IREE has no form for: the export is refused.
ABSENT = {
    *("adaptive_max_pool", "assigned_mask", "assigned_rows", "rounded_window", "assigned", "narrow"),
    *("repeats", "repeats_below_0", "repeats_of_a_size", "narrow_by_its_end", "masked_select", "indices"),
}
EXTREMES = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_of_rows": lambda x: x.max(1),
    "amin_of_both": lambda x: x.amin((0, 1)),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: x.argmax(),
    "argmin_of_rows": lambda x: x.argmin(1, keepdim=True),
    "mode": lambda x: x.mode(1),
    "norm": lambda x: torch.linalg.vector_norm(x.float(), float("inf"), dim=1),
}
WINDOWS = {
    "max_pool": (lambda x: F.max_pool2d(x, 2), 1),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), 1),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, 1), 0),
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, (1, 4)), 0),
    "reflection_pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), 1),
    "spectrum": (lambda x: torch.fft.rfft(x).abs(), 0),
}

# Operands of another size than torch's kernels take, which its shape rules do not compare.
X, ROW = torch.randn(3, 4), torch.randn(4)
MASK = torch.tensor([[True, False, True, True]] * 3)
PLACES, PLACE, WIDE = torch.arange(6), torch.zeros(2, 3, dtype=torch.long), torch.randn(5, 6)
DISAGREEING = {
    "select_scatter": (lambda x, v: x.select_scatter(v, 0, 1), (X, ROW), (X, torch.randn(1))),
    "select_scatter_beyond": (lambda x, v: x.select_scatter(v, 0, 1), (X, ROW), (X[:1], ROW)),
    "slice_scatter": (lambda x, v: x.slice_scatter(v, 1, 1, 3), (X, X[:, :2]), (X, X[:1, :2])),
    "slice_scatter_of_all": (lambda x, v: x.slice_scatter(v, 0), (X, X), (X, X[:1])),
    "diagonal_scatter": (lambda x, v: x.diagonal_scatter(v), (X, ROW[:3]), (X, ROW[:1])),
    "index_add": (lambda x, v: x.index_add(0, torch.tensor([0, 2]), v), (X, X[:2]), (X, X[:2, :1])),
    "index_reduce": (lambda x, v: x.index_reduce(0, torch.tensor([0, 2]), v, "amax"), (X, X[:2]), (X, X[:2, :1])),
    "mask": (lambda x, m: x[m], (X, MASK), (X, MASK[:2])),
    "assigned_mask": (lambda x, m: x.index_put((m,), torch.tensor(0.0)), (X, MASK), (X, MASK[:, :3])),
    "assigned_rows": (lambda x, v: x.clone().index_put_((MASK[0, :3],), v), (X, ROW), (X, ROW[:2])),
    "keys_and_values": (
        lambda k, v: F.scaled_dot_product_attention(v[:, :2], k, v),
        (torch.randn(2, 5, 4), torch.randn(2, 5, 4)),
        (torch.randn(2, 5, 4), torch.randn(2, 3, 4)),
    ),
    "dropped_term": (lambda b, x: torch.addmm(b, x, x.mT, beta=0), (ROW[:3], X), (ROW[:2], X)),
    "repeats": (
        lambda x, n: x.repeat_interleave(n, 0, output_size=6),
        (X, torch.tensor([1, 3, 2])),
        (X, PLACES[1:4] * 3),
    ),
    "gather": (lambda x, i: x.gather(0, i), (X, X.long() * 0), (X[:, :3], X.long() * 0)),
    "scatter_of_few": (lambda x, i, v: x.scatter(0, i, v), (X, PLACE, WIDE), (X, PLACE, WIDE[:1])),
    "scatter_of_a_number": (lambda x, i: x.scatter(1, i, 1.0), (X, X.long() * 0), (X[:2], X.long() * 0)),
    "scatter_add": (lambda x, i, v: x.scatter_add(0, i, v), (X, PLACE, WIDE), (X[:, :2], PLACE, WIDE)),
    "scatter_reduce": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
        (X, PLACE, WIDE),
        (X, PLACE, WIDE[:, :2]),
    ),
    "repeats_below_0": (
        lambda x, n: x.repeat_interleave(n, 0, output_size=6),
        (X, torch.tensor([1, 3, 2])),
        (X, torch.tensor([3, -1, 4])),
    ),
    "repeats_of_a_size": (
        lambda n, x: x.repeat_interleave(n, output_size=PLACES[: x.shape[0] * 2].shape[0]),
        (torch.tensor([1, 3, 2]), ROW[:3]),
        (torch.tensor([1, 3, 1]), ROW[:3]),
    ),
    "narrow": (lambda x, y: x.narrow(0, 1, y.shape[0]), (X, X[:2]), (X, X)),
    "narrow_by_its_end": (
        lambda x, y: x.narrow(0, x.shape[0] - y.shape[0], y.shape[0]),
        (X, X[:2]),
        (X, X.repeat(2, 1)),
    ),
    "view_as_another": (lambda x, y: x.view(y.shape), (torch.randn(6, 4), torch.randn(8, 3)), (X, X[:, :3])),
    "kernel": (
        lambda x, w: F.conv1d(x, w),
        (torch.randn(2, 3, 8), torch.randn(4, 3, 3)),
        (torch.randn(2, 3, 2), torch.randn(4, 3, 3)),
    ),
    "padded_kernel": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)),
        (torch.randn(2, 3, 2, 8), torch.randn(4, 3, 5, 3)),
    ),
    "size_of_nothing": (
        lambda x, y: F.interpolate(x, size=y.shape[2:], mode="bilinear"),
        (torch.randn(2, 3, 4, 4), torch.randn(2, 3, 5, 6)),
        (torch.randn(2, 3, 4, 4), torch.randn(2, 3, 5, 0)),
    ),
    "bags_of_nothing": (
        lambda w, i: F.embedding_bag(i, w),
        (torch.randn(6, 2), PLACES.view(2, 3)),
        (X, PLACES[:0].view(2, 0)),
    ),
    "flat_places": (lambda x, i: torch.take_along_dim(x, i), (X, PLACES), (X, PLACES * 3)),
}


@pytest.fixture(autouse=True)
def _iree(request):
    if "stablehlo" in request.node.name:
        pytest.importorskip("iree.compiler")  # which `nox -s stablehlo` has


def pairs(names):
    """A target and a name, of what the target expresses."""
    return [(t, n) for n in names for t in TARGETS if t != "stablehlo" or n not in ABSENT]


def exported(function, x, sizes, target):
    model = type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()
    return ir.export(model, (x,), dynamic_shapes=(sizes,), target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_of_no_elements(name, dtype, target):
    x = torch.arange(12).view(3, 4).to(dtype)
    program = exported(EXTREMES[name], x, {0: "rows", 1: "columns"}, target)
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(torch.empty(3, 0, dtype=dtype))
    program.verify((x[:2, :1],))


@pytest.mark.parametrize(("target", "name"), pairs(WINDOWS))
def test_windows_wider_than_an_image(name, target):
    function, size = WINDOWS[name]
    program = exported(function, torch.randn(2, 3, 8, 8), {2: "height", 3: "width"}, target)
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(torch.randn(2, 3, 8, size))
    program.verify((torch.randn(2, 3, 6, 4),))


@pytest.mark.parametrize("target", TARGETS)
def test_an_extreme_of_what_data_selects(target):
    """torch.export has no bound for the size; the file itself stops, whatever runs it."""
    program = exported(lambda x: x[x > 0].max(), torch.randn(9), {0: "n"}, target)
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(-torch.ones(5))
    program.verify((torch.arange(-3.0, 3.0),))


@pytest.mark.parametrize("target", TARGETS)
def test_the_refusal_says_what_torch_says(target):
    program = exported(lambda x: x.amax(1), torch.randn(3, 4), {1: "columns"}, target)
    with pytest.raises((IndexError, ir.RefusedError), match="non-zero size"):
        program(torch.empty(3, 0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("place", [3, -4])
def test_a_place_out_of_range_of_one_of_two_indices(place, target):
    """As one number for both axes it would be a place of another row."""
    x, i = torch.arange(12.0).view(4, 3), torch.tensor([0, 1])
    model = type("Model", (torch.nn.Module,), {"forward": lambda self, x, i, j: x[i, j]})()
    program = ir.export(model, (x, i, i), dynamic_shapes=({0: "rows"}, {0: "n"}, {0: "n"}), target=target)
    program.verify((x, i, torch.tensor([2, -3])))
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(x, i, torch.tensor([place, 0]))


@pytest.mark.parametrize(("target", "name"), pairs(DISAGREEING))
def test_operands_whose_sizes_do_not_agree(name, target):
    function, example, other = DISAGREEING[name]
    model = type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()
    sizes = tuple(dict.fromkeys(range(x.ndim), torch.export.Dim.AUTO) for x in example)
    program = ir.export(model, example, dynamic_shapes=sizes, target=target)
    program.verify(example)
    with pytest.raises((IndexError, RuntimeError)):
        model(*other)
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(*other)


@pytest.mark.parametrize(("target", "transposed"), [(t, b) for t in TARGETS for b in (False, True) if t != "eager"])
def test_convolutions_of_no_rows(target, transposed):
    """Padded by so much, the image has a result, which eager's kernel gives: that of the padding."""
    make = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    model = make(2, 3, 3, padding=0 if transposed else 2)
    program = ir.export(model, (torch.randn(2, 2, 5, 6),), dynamic_shapes=({0: "batch", 2: "height"},), target=target)
    program.verify((torch.randn(0, 2, 5, 6),))
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(torch.randn(2, 2, 0, 6))


@pytest.mark.parametrize("target", TARGETS)
def test_a_dropped_term_is_broadcast(target):
    model = type("Model", (torch.nn.Module,), {"forward": lambda self, b, x: torch.addmm(b, x, x.mT, beta=0)})()
    sizes = ({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO})
    program = ir.export(model, (ROW[:3], X), dynamic_shapes=sizes, target=target)
    program.verify((ROW[:1], X))
    program.verify((ROW[:2], X[:2]))


RECURRENT = {"lstm": torch.nn.LSTM(3, 4), "gru": torch.nn.GRU(3, 4, batch_first=True), "rnn": torch.nn.RNN(3, 4, 2)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_networks_of_no_steps(name, target):
    """onnxruntime ends the process, or gives states of zeros."""
    model = RECURRENT[name].eval()
    program = ir.export(model, (torch.randn(5, 6, 3),), dynamic_shapes=({0: "a", 1: "b"},), target=target)
    program.verify((torch.randn(1, 2, 3),))
    empty = (2, 0, 3) if model.batch_first else (0, 2, 3)
    with pytest.raises((RuntimeError, ir.ExportError)):
        program(torch.randn(empty))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_window_longer_than_a_row(size, target):
    model = torch.nn.Sequential(torch.nn.MaxPool1d(4), torch.nn.ReLU())
    program = ir.export(model, (torch.randn(2, 3, 10),), dynamic_shapes=({2: "t"},), target=target)
    program.verify((torch.randn(2, 3, 4),))
    with pytest.raises((RuntimeError, ir.ExportError)):
        program(torch.randn(2, 3, size))


@pytest.mark.parametrize(("target", "name"), pairs(["rounded_window"]))
def test_a_window_over_what_is_rounded_up(target, name):
    model = torch.nn.MaxPool1d(3, padding=1, dilation=2, ceil_mode=True)
    program = ir.export(model, (torch.randn(2, 3, 10),), dynamic_shapes=({2: "t"},), target=target)
    program.verify((torch.randn(2, 3, 2),))


CHECKED = {
    "number": (lambda x, n: (torch._check((k := n.item()) >= 1), torch._check(k < 4), x * k)[-1], 2, 7),
    "number_of_a_sum": (lambda x, n: (torch._check((k := n.item()) >= 1), (x * k).sum())[-1], 2, -1),
    "float": (lambda x, n: (torch._check((k := n.item()) > 0.5), x * k)[-1], 2.0, 0.25),
    "tensor": (lambda x, n: (torch._assert_async((n > 0).all(), "n isn't positive"), x * n)[-1], 2, -1),
    "count": (lambda x, n: (torch._check((y := x[x > n]).shape[0] < 3), y)[-1], 1, 0),
    "fixed_count": (lambda x, n: (torch._check((y := x[x > n]).shape[0] == 2), y.reshape(2) * 2)[-1], 1, 0),
    "fixed_selection": (
        lambda x, n: (torch._check((y := torch.masked_select(x, x > n)).shape[0] == 2), y.reshape(2) * 2)[-1],
        *(1, 0),
    ),
    "assigned": (lambda x, n: x.clone().index_put((x > n,), x[:2]), 1, 0),
}


@pytest.mark.parametrize(("target", "name"), pairs(CHECKED))
def test_what_a_model_asserts_of_data(name, target):
    """A file has no assertions: a result of it is held to them."""
    function, good, bad = CHECKED[name]
    x = torch.tensor([0.0, 1, 2, 3])
    model = type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()
    program = ir.export(model, (x, torch.tensor(good)), target=target, verify=True)
    with pytest.raises((RuntimeError, ValueError)):
        torch.export.export(model, (x, torch.tensor(good))).module()(x, torch.tensor(bad))
    with pytest.raises((RuntimeError, ir.ExportError)):
        program(x, torch.tensor(bad))


BROADCAST = {  # torch gives each operand sizes of its own
    "masked_select": (lambda x, m: x.masked_select(m > 0), lambda a, b: (torch.randn(a), torch.arange(b) - 1)),
    "indices": (
        lambda i, j: torch.zeros(8, 8).index_put((i, j), torch.ones(1), accumulate=True),
        lambda a, b: (torch.arange(a), torch.arange(b)),
    ),
}


@pytest.mark.parametrize(("target", "name"), pairs(BROADCAST))
def test_either_operand_may_have_one_place(target, name):
    function, operands = BROADCAST[name]
    model = type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()
    sizes = ({0: torch.export.Dim.AUTO},) * 2
    program = ir.export(model, operands(5, 5), dynamic_shapes=sizes, target=target)
    for one, other in ((1, 5), (5, 1), (1, 1), (0, 1), (4, 4)):
        program.verify(operands(one, other))
    with pytest.raises((IndexError, RuntimeError, ir.ExportError)):
        program(*operands(4, 3))


def test_stablehlo_is_asked_for_one_size():
    function, operands = BROADCAST["masked_select"]
    model = type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()
    with pytest.raises(ir.ExportError, match="its mask has sizes of its own"):
        ir.export(model, operands(5, 5), dynamic_shapes=({0: torch.export.Dim.AUTO},) * 2, target="stablehlo")


@pytest.mark.parametrize("name", RECURRENT)
def test_a_file_of_a_recurrent_network_refuses_no_steps(name, tmp_path):
    """Where another program opens it: onnxruntime would end the process."""
    model = RECURRENT[name].eval()
    path = tmp_path / "model.onnx"
    names = {0: "batch", 1: "steps"} if model.batch_first else {0: "steps", 1: "batch"}
    ir.export(model, (torch.randn(5, 6, 3),), dynamic_shapes=(names,), target="onnx", path=path)
    opened = open_artifact(path)
    shape = (0, 2, 3) if model.batch_first else (2, 0, 3)
    assert opened(torch.randn(shape))[0].shape == (*shape[:2], 4)
    with pytest.raises(ir.RefusedError, match="needs steps > 0"):
        opened(torch.randn(shape[1], shape[0], 3))


@pytest.mark.parametrize("target", TARGETS)
def test_a_source_of_nothing_for_a_mask_of_nothing(target):
    """Of a batch without images, the embeddings of text stay as they are."""
    function = lambda x, ids, v: x.masked_scatter((ids == 7)[..., None], v)  # noqa: E731
    model = type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()
    names = ({0: "b", 1: "s"}, {0: "b", 1: "s"}, {0: "k"})
    x, ids, v = torch.randn(2, 5, 4), torch.tensor([[1, 7, 7, 2, 3]] * 2), torch.randn(4, 4)
    program = ir.export(model, (x, ids, v), target=target, dynamic_shapes=names)
    for given in ((x, ids, v), (x, ids * 0, v[:0]), (x[:, :2], ids[:, :2], v[:2]), (x[:1], ids[:1], v)):
        program.verify(given)
    with pytest.raises((RuntimeError, ir.ExportError)):
        program(x, ids, v[:3])


def test_negative_numbers_are_not_counted():
    model = type("Model", (torch.nn.Module,), {"forward": lambda self, n: torch.bincount(n, minlength=4)})()
    program = ir.export(model, (torch.tensor([1, 2, 2]),), dynamic_shapes=({0: "n"},), target="onnx")
    program.verify((torch.tensor([5, 0]),))
    program.verify((torch.tensor([], dtype=torch.int64),))
    with pytest.raises(ir.RefusedError, match="no number that bincount counts is negative"):
        program(torch.tensor([1, -1]))


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_a_slice_in_a_branch_that_is_too_short_is_told_with_its_line(target):
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x[:2].clone(), lambda x: x[:2] * 2, (x,))

    program = ir.export(branch, (torch.ones(4, 3),), target=target, dynamic_shapes=({0: "b"},))
    program.verify((torch.ones(2, 3),))
    with pytest.raises(ir.RefusedError, match=r"slice .* at b=1.*\n  at .*test_refused_sizes.py"):
        program(torch.ones(1, 3))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_a_join_with_an_empty_slice_is_refused_as_torch_refuses_it(target):
    """onnxruntime joins `[1, 3]` and `[0, 1]` to `[1, 4]`, and leaves the last element as it was in memory."""
    program = ir.export(lambda x: torch.cat([torch.zeros(1, 3), x[:1, :1]], 1), (torch.randn(4, 3),), target=target,
                        dynamic_shapes=({0: "b"},))  # fmt: skip
    assert program(torch.ones(1, 3)).tolist() == [[0, 0, 0, 1]]
    with pytest.raises(ir.ExportError, match=r"(cat|slice|x\[0:1:1\]) .*"):
        program(torch.ones(0, 3))
