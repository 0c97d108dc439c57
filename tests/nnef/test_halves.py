"""What torch adds up and multiplies in float32, or float64, is not added up in halves: long rows, and far sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ir

pytest.importorskip("tract")
pytestmark = pytest.mark.filterwarnings("ignore")

SIZE = 6000
HALF = torch.float16
WHERE = torch.zeros(SIZE, dtype=torch.int64)
LONG = {
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: (1 + x / 512).cumprod(1),
    "scatter_add": lambda x: torch.zeros(3, 2, dtype=HALF).scatter_add(1, WHERE.expand(3, -1), x),
    "scatter products": lambda x: torch.ones(3, 2, dtype=HALF).scatter_reduce(
        1, WHERE.expand(3, -1), 1 + x / 512, "prod"
    ),
    "scatter mean": lambda x: torch.zeros(3, 2, dtype=HALF).scatter_reduce(1, WHERE.expand(3, -1), x, "mean"),
    "index_add": lambda x: torch.zeros(2, 3, dtype=HALF).index_add(0, WHERE, x.t()),
    "index_put": lambda x: torch.zeros(2, dtype=HALF).index_put((WHERE,), x[0], accumulate=True),
    "norms": lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (0, 0.5, 1, 2, 3)],
    "losses": lambda x: (F.mse_loss(x, -x), F.l1_loss(x, -x), F.huber_loss(x, -x), F.cross_entropy(x, WHERE[:3])),
    "similar": lambda x: (F.cosine_similarity(x, x + 1), F.pairwise_distance(x, -x)),
    "norm layers": lambda x: (F.layer_norm(x, (SIZE,)), F.rms_norm(x, (SIZE,)), F.group_norm(x.reshape(3, 6, -1), 2)),
    "logsumexp": lambda x: (x.logsumexp(1), x.log_softmax(1)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_rows(name):
    x = torch.rand(3, SIZE, generator=torch.Generator().manual_seed(2)).to(HALF)
    found, wanted = ir.export(LONG[name], (x,), target="nnef")(x), LONG[name](x)
    for a, b in zip(*((v if isinstance(v, (tuple, list)) else [v]) for v in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 60000.0), (torch.float32, 3e38)], ids=str)
def test_running_totals_come_back_from_beyond_their_type(dtype, large):
    x, y = torch.tensor([large, large, -large, 1.0]).to(dtype), torch.tensor([large, large, 1 / large, 0.5]).to(dtype)
    program = ir.export(lambda x, y: (x.cumsum(0), y.cumprod(0)), (x, y), target="nnef")
    for a, b in zip(program(x, y), (x.cumsum(0), y.cumprod(0)), strict=True):
        torch.testing.assert_close(a, b)


def test_indexed_means():
    x = torch.rand(SIZE, 3, generator=torch.Generator().manual_seed(3)).to(HALF)
    program = ir.export(lambda x: torch.zeros(2, 3, dtype=HALF).index_reduce(0, WHERE, x, "mean"), (x,), target="nnef")
    wanted = x.double().sum(0) / (SIZE + 1)  # torch's own sum is one of halves here, and far from it
    torch.testing.assert_close(program(x)[0].double(), wanted, rtol=1e-3, atol=0)


STEPS = {
    "softplus": lambda x: (F.softplus(x), F.softplus(x, 1.7, 0.3), F.logsigmoid(x)),
    "mish": F.mish,
    "addcmul": lambda x: (torch.addcmul(x, x, x, value=0.3), torch.addcmul(x, 300 * x, x + 300, value=0.001)),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_between_are_not_rounded(name):
    x = torch.linspace(-16, 16, 4001).to(HALF)
    found, wanted = ir.export(STEPS[name], (x,), target="nnef")(x), STEPS[name](x)
    for a, b in zip(*((v if isinstance(v, (tuple, list)) else [v]) for v in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1.2e-3, atol=1e-7)
