"""Prompts as a decoder takes them: checked, every row's tokens side by side, padded on the left.

What they are checked by a model's own tables say: how many tokens it has an embedding for, and how many positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ir.errors import RefusedError
from ir.importer.torch_api import FakeTensorMode, TorchDispatchMode, pytree, quiet_export


def integers(name: str, value: Any) -> np.ndarray:
    """Integers of shape [rows, length], from a tensor, an array or lists.

    Raises:
        RefusedError: they are none, or there is no element.
    """
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):  # lists of different lengths, types that numpy has not
        array = np.asarray(None)
    if array.dtype.kind not in "iub" or array.ndim != 2 or not array.size:
        said = f"{array.dtype} of shape {list(array.shape)}" if array.dtype.kind != "O" else f"a {type(value).__name__}"
        raise RefusedError(f"{name}: integers of shape [batch, length] are wanted, one at least; these are {said}")
    return array.astype(np.int64)


def check_tokens(name: str, tokens: np.ndarray, vocabulary: int) -> None:
    """Raises RefusedError for a token that the model has no embedding for."""
    beyond = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if beyond.size:
        raise RefusedError(f"{name} has the token {beyond[0]}, and the vocabulary is 0 to {vocabulary - 1}")


def texts(name: str, input_ids: Any, attention_mask: Any, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of shape [rows, length] and their mask of the same shape, all of ones where none is given.

    Raises:
        RefusedError: shapes or tokens that the model does not take, or a row of padding alone.
    """
    given = integers(name, input_ids)
    mask = np.ones_like(given) if attention_mask is None else integers("attention_mask", attention_mask)
    if mask.shape != given.shape or not np.isin(mask, (0, 1)).all():
        raise RefusedError(
            f"attention_mask: 1 for each token and 0 for padding, of the shape {list(given.shape)} that {name} has"
        )
    seen = mask.sum(1)
    if not seen.all():
        raise RefusedError(f"row {int(seen.argmin())} of attention_mask has no token: a text begins with one at least")
    check_tokens(name, given[mask > 0], vocabulary)
    return given, mask


def check_length(name: str, length: int, positions: int | None) -> None:
    """Raises RefusedError for rows that are longer than a model's table of positions, where it has one."""
    if positions is not None and length > positions:
        raise RefusedError(f"{name} has rows of {length} tokens, padding among them, and the model has positions for "
                           f"{positions}: cut them off")  # fmt: skip


def check_count(max_new_tokens: Any) -> None:
    """Raises RefusedError for a number of tokens that is none."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 0:
        raise RefusedError(f"max_new_tokens={max_new_tokens!r:.40}: 0 or more")


def prompts(
    vocabulary: int, context: int, input_ids: Any, attention_mask: Any, max_new_tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens as given, and the same padded on the left with their mask.

    What the mask leaves out, on either side or between tokens, is left out of the text: positions count the others
    alone, as in transformers.

    Raises:
        RefusedError: shapes, tokens or lengths that the model does not take.
    """
    given, mask = texts("input_ids", input_ids, attention_mask, vocabulary)
    check_count(max_new_tokens)
    longest = int(mask.sum(1).max())
    if longest + max_new_tokens > context:
        raise RefusedError(
            f"{longest} tokens and max_new_tokens={max_new_tokens} are more than the context of "
            f"{context} tokens that the model was made for"
        )
    order = np.argsort(mask, axis=1, kind="stable")[:, -longest:]
    return given, np.take_along_axis(given, order, 1), np.take_along_axis(mask, order, 1)


class _Tables(TorchDispatchMode):
    """Every look-up in a table of rows: how many rows it has, and which are looked up."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[int, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is aten.embedding.default:
            self.found.append((len(args[0]), args[1]))
        elif func is aten.index_select.default and args[0].dim() == 2 and args[1] == 0:
            self.found.append((len(args[0]), args[2]))
        elif func is aten.index.Tensor and args[0].dim() == 2 and len(args[1]) == 1:
            self.found.append((len(args[0]), args[1][0]))
        return func(*args, **(kwargs or {}))


def limits(run: Callable[[torch.Tensor], Any], padding: int | None) -> tuple[int | None, int | None]:
    """How many tokens a model has an embedding for, and how long its longest text is, by its tables; None without one.

    Args:
        run: a call of the model with tokens [1, length].
        padding: the token whose place is none to some models.
    """
    one, other = [t for t in (2, 3, 4) if t != padding][:2]
    tokens = [torch.tensor([[one, other, other, one, other][:length]]) for length in (3, 5)]
    found = []
    for text in tokens:
        try:
            with torch.no_grad(), _Tables() as tables:
                run(text)
        except Exception:  # whatever a model says of a text that is too short for it: nothing is known of its tables
            return None, None
        found.append(tables.found)
    vocabulary, longest = None, []
    for (rows, short), (again, long) in zip(*found, strict=False):
        if torch.equal(short.reshape(-1), tokens[0][0]) and torch.equal(long.reshape(-1), tokens[1][0]):
            vocabulary = vocabulary or rows
            continue
        # a place for each token, or for each of a window that the model fills up
        places = (short.numel(), long.numel()) == (3, 5) or short.numel() == long.numel() > 0
        if rows == again and places and int(long.max()) - int(short.max()) == 2:
            longest.append(rows - (int(long.max()) - 4))
    return vocabulary, min(longest, default=None)


class _Sizes(TorchDispatchMode):
    """Every size of what is computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found.update(n for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) for n in t.shape)
        return result


def fails_beyond(run: Callable[[torch.Tensor], Any], length: int) -> bool:
    """True of a model that makes something of this length for a short text, too, and takes no text longer than that.

    So are biases of attention by distance (MPT's) that no row is looked up in. Long texts are run on fake tensors.
    """
    sizes = _Sizes()
    if not _runs(run, 3, sizes) or length not in sizes.found:
        return False
    with quiet_export():
        fits, beyond = (_runs(run, n, FakeTensorMode(allow_non_fake_inputs=True)) for n in (length, length + 1))
    return fits and not beyond


def _runs(run: Callable[[torch.Tensor], Any], length: int, mode: Any) -> bool:
    try:
        with torch.no_grad(), mode:
            run(torch.ones(1, length, dtype=torch.int64))
    except Exception:  # whatever a model says of a text that it does not take
        return False
    return True
