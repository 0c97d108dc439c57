"""Control flow that stays in the graph, and Python's own, which does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_rows

from .base import boolean, f32, family, i64, mod, row

MATRIX = f32("B", 3)
DURATIONS = i64("S", positive=True)


def cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))


def cond_given(choice: Tensor, x: Tensor) -> Tensor:
    return torch.cond(choice, lambda x: x + 1, lambda x: x - 1, (x,))


def cond_many_outputs(x: Tensor, y: Tensor) -> Any:
    return torch.cond(x.max() > 100, lambda x, y: (x + y, y * 1), lambda x, y: (x - y, y * 3), (x, y))


def cond_captures(x: Tensor, y: Tensor) -> Tensor:
    shifted = y * 2  # reached from both branches without being an operand
    return torch.cond(x.mean() > 0, lambda x: x + shifted, lambda x: x - shifted, (x,))


def cond_nested(x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        return torch.cond(x.max() > 1, lambda x: x / x.max(), lambda x: x * 1.0, (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: -x, (x,))


def cond_on_size(x: Tensor) -> Tensor:
    return torch.cond(x.shape[0] > 2, lambda x: x + 1, lambda x: x - 1, (x,))


class CondWeights(nn.Module):
    """Each branch is a module with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.left(x), lambda x: self.right(x).relu(), (x,))


def count_up(x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 1.5 + i), (torch.tensor(0), x))


def until_large(x: Tensor) -> Tensor:
    (y,) = while_loop(lambda x: x.abs().sum() < 50, lambda x: (x * 2,), (x + 0.5,))
    return y


def for_given_steps(steps: Tensor, x: Tensor) -> Tensor:
    scale = x.sum() * 0.1  # captured by the body
    _, y = while_loop(lambda i, x: i < steps, lambda i, x: (i + 1, x + scale), (torch.tensor(0), x.clone()))
    return y


def never(x: Tensor) -> Tensor:
    _, y = while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * 0), (torch.tensor(0), x.clone()))
    return y


def running_sum(x: Tensor) -> Any:
    return scan(lambda total, x: (total + x, total * 2), torch.zeros(3), x, dim=0)


def running_sum_backwards(x: Tensor) -> Any:
    return scan(lambda total, x: (total + x, total + x), torch.zeros(3), x, dim=0, reverse=True)


def scan_over_constant(x: Tensor) -> Any:
    return scan(lambda state, step: (state * 0.5 + x * step, state * step), torch.zeros(4), torch.arange(5), dim=0)


def scan_constant_beside(x: Tensor) -> Any:
    def step(state: Tensor, inputs: list[Tensor]) -> Any:
        x, weight = inputs
        return state + x * weight, state.sin()

    return scan(step, torch.zeros(3), [x, torch.tensor([3.0, 5.0, 1.0, 7.0])], dim=0)


def scan_constant_reverse(x: Tensor) -> Any:
    def step(state: Tensor, inputs: list[Tensor]) -> Any:
        x, weight = inputs
        return state * weight + x, state * 2

    return scan(step, torch.zeros(3), [x, torch.arange(12.0).reshape(4, 3)], dim=0, reverse=True)


def scan_other_axis(x: Tensor) -> Any:
    return scan(lambda state, x: (state * 0.5 + x, state.sin()), torch.zeros(3, 4), x, dim=1)


def scan_tree(x: Tensor, y: Tensor) -> Any:
    def step(state: list[Tensor], inputs: list[Tensor]) -> Any:
        first, second = state
        x, y = inputs
        return [first + x, second * y], [first * second, x - y]

    return scan(step, [torch.zeros(3), torch.ones(3)], [x, y], dim=0)


class ScanCell(nn.Module):
    """A recurrent cell as models write it: weights captured by the body of the scan."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Any:
        def step(hidden: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = torch.tanh(self.inner(x) + self.outer(hidden))
            return hidden, hidden * 2

        return scan(step, torch.zeros(x.shape[1], 4), x, dim=0)


def cumulative_product(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a * b, x, dim=0, combine_mode="generic")


def each_row(x: Tensor, y: Tensor) -> Tensor:
    return map_rows(lambda row, y: row.softmax(-1) + y, x, y)


def each_row_captures(x: Tensor, y: Tensor) -> Tensor:
    return map_rows(lambda row: row @ y, x)


def while_with_cond(x: Tensor) -> Any:
    def body(i: Tensor, x: Tensor) -> Any:
        return i + 1, torch.cond(x.sum() > 0, lambda x: x * 0.5 - 1, lambda x: x + 2.0, (x,))

    return while_loop(lambda i, x: i < 5, body, (torch.tensor(0), x.clone()))


def scan_with_cond(x: Tensor) -> Any:
    def step(total: Tensor, x: Tensor) -> Any:
        y = torch.cond(total.sum() > 0, lambda t, x: t - x, lambda t, x: t + 2 * x, (total, x))
        return y, y.sin()

    return scan(step, torch.zeros(3), x, dim=0)


def cond_with_while(x: Tensor) -> Tensor:
    def doubled(x: Tensor) -> Tensor:
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x.clone()))[1]

    return torch.cond(x.sum() > 0, doubled, lambda x: x - 1, (x,))


def map_in_map(x: Tensor, y: Tensor) -> Tensor:
    return map_rows(lambda row, y: map_rows(lambda e, y: e * y.sum() + 1, row, y), x, y)


def while_with_scan(x: Tensor) -> Any:
    def body(i: Tensor, total: Tensor) -> Any:
        last, _ = scan(lambda t, x: (t * 0.5 + x, t + x), total, x, dim=0)
        return i + 1, last

    return while_loop(lambda i, t: i < 3, body, (torch.tensor(0), torch.zeros(3)))


def while_in_while(x: Tensor) -> Any:
    def body(i: Tensor, x: Tensor) -> Any:
        _, y = while_loop(lambda j, y: j < 2, lambda j, y: (j + 1, y * 1.1 + j), (torch.tensor(0), x.clone()))
        return i + 1, y - 1

    return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x.clone()))


def while_on_size(x: Tensor) -> Any:
    steps = x.shape[0]
    return while_loop(lambda i, x: i < steps, lambda i, x: (i + 1, x + i / steps), (torch.tensor(0), x.clone()))


def while_down(x: Tensor) -> Any:
    return while_loop(lambda i, x: i >= 0, lambda i, x: (i - 2, x + i), (torch.tensor(7), x.clone()))


def while_down_from_size(x: Tensor) -> Any:
    last = torch.scalar_tensor(x.shape[0] - 1, dtype=torch.int64)
    return while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, x * 0.5 + i), (last, x.clone()))


def while_hundred(x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 100, lambda i, x: (i + 1, x * 0.9 + i), (torch.tensor(0), x.clone()))


def scan_in_scan(x: Tensor) -> Any:
    def rows(total: Tensor, row: Tensor) -> Any:
        last, stack = scan(lambda t, e: (t + e, t * e), torch.zeros(()), row, dim=0)
        return total + last, stack

    return scan(rows, torch.zeros(()), x, dim=0)


def scan_unread_state(x: Tensor) -> Any:
    return scan(lambda t, x: (x.sin(), x * 2), torch.zeros(3), x, dim=0)


def scan_in_map(x: Tensor) -> Any:
    def one(e: Tensor) -> Any:
        return scan(lambda t, e: (t * 0.5 + e, t + e), torch.zeros(3), e, dim=0, reverse=True)[1]

    return map_rows(one, x)


def constants_in_map(x: Tensor) -> Any:
    table = torch.arange(4.0)
    return map_rows(lambda e: map_rows(lambda t: t * 2 + e.sum(), table), x)


def cond_with_size(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.reshape(-1) / x.shape[0], lambda x: x.reshape(-1) * x.shape[0], (x,))


def unrolled(x: Tensor) -> Tensor:
    for i in range(4):
        x = x * 0.5 + i if i % 2 else x.sin()
    return x


def branch_on_rank(x: Tensor) -> Tensor:
    return x.unsqueeze(0) if x.dim() == 2 and x.shape[1] == 3 else x


def length_regulated(durations: Tensor, x: Tensor) -> Tensor:
    """As a speech model spreads phonemes over frames: frame t belongs to the phoneme whose end is the first past t."""
    ends = durations.cumsum(0)
    frames = torch.arange(int(ends[-1].item()))
    return x[(frames[:, None] >= ends).sum(1)]


def asserts(x: Tensor) -> Tensor:
    assert x.shape[1] == 3
    torch._check(x.shape[0] < 1000)
    torch._assert(x.dim() == 2, "a matrix")
    return x + 1


def asserts_on_data(x: Tensor) -> Tensor:
    torch._assert_async(x.isfinite().all(), "finite")
    return x * 2


class Checkpointed(nn.Module):
    """The same submodule called twice, once under no_grad, as training code leaves it behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.layer(x)
        return self.layer(x)


def autocast_off(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return x @ y


def autocast_on(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ y


CASES = family(
    __name__,
    row("cond", cond, MATRIX),
    row("cond_true", cond_given, boolean(value=True), MATRIX),
    row("cond_false", cond_given, boolean(value=False), MATRIX),
    row("cond_many_outputs", cond_many_outputs, MATRIX, MATRIX),
    row("cond_captures", cond_captures, MATRIX, f32(3)),
    row("cond_nested", cond_nested, f32("B", 3, positive=True)),
    row("cond_on_size", cond_on_size, MATRIX),
    mod("cond_weights", CondWeights, MATRIX),
    row("while_counts", count_up, MATRIX),
    row("while_until_large", until_large, MATRIX),
    row("while_given_steps", for_given_steps, i64(value=3), MATRIX),
    row("while_never", never, MATRIX),
    row("scan", running_sum, f32("S", 3)),
    row("scan_static", running_sum, f32(4, 3)),
    row("scan_reverse", running_sum_backwards, f32("S", 3)),
    row("scan_over_constant", scan_over_constant, f32(4)),
    row("scan_constant_beside", scan_constant_beside, f32(4, 3)),
    row("scan_constant_reverse", scan_constant_reverse, f32(4, 3)),
    row("scan_other_axis", scan_other_axis, f32(3, "S", 4)),
    row("scan_tree", scan_tree, f32("S", 3), f32("S", 3)),
    mod("scan_cell", ScanCell, f32("S", "B", 3)),
    row("associative_scan", cumulative_product, f32(5, 3)),  # torch unrolls it: log2 of the length is fixed
    row("map", each_row, MATRIX, f32(3)),
    row("map_captures", each_row_captures, MATRIX, f32(3, 2)),
    row("while_with_cond", while_with_cond, MATRIX),
    row("scan_with_cond", scan_with_cond, f32("S", 3)),
    row("cond_with_while", cond_with_while, f32("B", 3, positive=True)),
    row("map_in_map", map_in_map, f32("B", 3, 4), f32(4)),
    row("while_with_scan", while_with_scan, f32("S", 3)),
    row("while_in_while", while_in_while, MATRIX),
    row("while_on_size", while_on_size, MATRIX),
    row("while_down", while_down, MATRIX),
    row("while_down_from_size", while_down_from_size, MATRIX),
    row("while_hundred", while_hundred, MATRIX),
    row("scan_in_scan", scan_in_scan, f32("S", 4)),
    row("scan_unread_state", scan_unread_state, f32("S", 3)),
    row("scan_in_map", scan_in_map, f32("B", "S", 3)),
    row("constants_in_map", constants_in_map, f32("B", 3)),
    row("cond_with_size", cond_with_size, MATRIX),
    row("loop_unrolled", unrolled, MATRIX),
    row("branch_on_rank", branch_on_rank, MATRIX),
    row("asserts", asserts, MATRIX),
    row("asserts_on_data", asserts_on_data, MATRIX),
    mod("no_grad", Checkpointed, MATRIX),
    row("autocast_off", autocast_off, MATRIX, f32(3, 4)),
    row("autocast_on", autocast_on, MATRIX, f32(3, 4)),
    row("item_bool", lambda x: x * (x.sum() > 0).item(), f32("B", 3)),
    row("item_float", lambda x, y: y * x.item() + x.item() ** 2, f32(), f32(3)),
    row("item_int", lambda n, y: y * n.item(), i64(), f32(3)),
    row("size_from_item", lambda n, y: torch.zeros(int(n.sum().item()), 3) + y.sum(), DURATIONS, f32("B", 3)),
    row("mask_from_item", lambda n: torch.arange(int(n.max().item())) < n[:, None], DURATIONS),
    row("cut_by_item", lambda n, y: y[:, : int(n.min().item())] * 2, DURATIONS, f32(2, "T")),
    row("view_by_item", lambda n, y: y.view(int(n.item()), -1).sum(0), i64(value=3), f32(12, "T")),
    row("repeat_by_durations", length_regulated, DURATIONS, f32("S", 4)),
    row("float_size", lambda x: x.new_ones(int(x.shape[0] * 0.5)) + x.sum(), MATRIX),
    row("view_swapped", lambda x: torch.softmax(x.view(x.size(1), -1), -1), f32("B", 7)),
)
