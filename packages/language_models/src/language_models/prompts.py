"""Prompts as a decoder takes them: checked, every row's tokens side by side, padded on the left."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir.errors import RefusedError


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
