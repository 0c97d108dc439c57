"""What tract cannot do is told with the model's own line and the way out, in the body of an op too."""

from __future__ import annotations

import pytest
import torch

import ir


@ir.custom_op("refusals::noisy")
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(3)


def collatz(x):
    return torch.while_loop(lambda x: x.sum() < 10, lambda x: (x + 1,), (x,))


X, N = torch.ones(3), torch.tensor([1, 2, 3])
OUTSIDE = "no random numbers; draw them outside of the model and give them to it as an input"
REFUSED = {
    "rand": (lambda x: x + torch.rand(3), X, OUTSIDE),
    "randperm": (lambda x: x + torch.randperm(3), X, OUTSIDE),
    "in a custom op": (lambda x: noisy(x), X, f"{OUTSIDE}\n  in the body of refusals::noisy"),
    "in a decomposition": (lambda x: x.clone().cauchy_(), X, f"{OUTSIDE}\n  in the body of aten::cauchy"),
    "dropout": (lambda x: torch.dropout(x, 0.5, True), X, "no random numbers; export the model after model.eval()"),
    "bincount": (lambda n: torch.bincount(n), N, "scatter_add(0, x, torch.ones_like(x, dtype=torch.float32)) counts"),
    "repeats": (lambda n: torch.repeat_interleave(n, n), N, "give repeat_interleave their sum, output_size="),
    "a loop": (collatz, X, "write a for loop with a fixed number of steps"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("target", ["nnef", "khronos"])
def test_a_refusal_has_the_models_line_and_the_way_out(name, target):
    model, x, way = REFUSED[name]
    with pytest.raises(ir.RefusedError, match=r"\n  at .*test_refusals.py:\d+  `") as caught:
        ir.export(model, (x,), target=target)
    assert way in str(caught.value) and str(caught.value).count("\n  at ") == 1


def test_what_the_refusal_of_bincount_says_instead_is_taken():
    def counts(x):
        return torch.zeros(5).scatter_add(0, x, torch.ones_like(x, dtype=torch.float32))

    ir.export(counts, (N,), target="nnef", dynamic_shapes=({0: "n"},), verify=True)
