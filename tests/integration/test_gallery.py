"""The gallery: every op equal to a reference of its own, and on every target equal to the op; the page says so."""

from __future__ import annotations

import ast

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from ir.testing import check_op
from tests import gallery
from tests.gallery import references
from tests.gallery.__main__ import PAGE, page

NAMES = sorted(gallery.SAMPLES)


def test_every_file_is_in_the_table():
    assert sorted(p.stem for p in gallery.FOLDER.glob("*.py")) == NAMES


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run python -m tests.gallery"
    cells = len(NAMES) * len(gallery.TARGETS)
    assert len(gallery.LIMITS) <= 3 and f"{cells - len(gallery.LIMITS)} of {cells} cells" in page()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_one_short_definition(name):
    text = (gallery.FOLDER / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 60
    assert text.count("@ir.custom_op(") == 1 and gallery.op(name).name == f"gallery::{name}"
    functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    assert all(ast.get_docstring(f) for f in functions)


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_the_reference(name):
    for sample in gallery.samples(name):
        actual = pytree.tree_leaves(gallery.op(name)(*sample.args, **(sample.kwargs or {})))
        args, kwargs = pytree.tree_map_only(torch.Tensor, _numpy, (sample.args, dict(sample.kwargs or {})))
        expected = pytree.tree_leaves(getattr(references, name)(*args, **kwargs))
        for a, e in zip(actual, expected, strict=True):
            assert a.dtype == (torch.float32 if e.dtype.kind == "f" else torch.int64)
            np.testing.assert_allclose(a.numpy(), e, rtol=1e-4, atol=1e-5)


def _numpy(tensor):
    return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()


@pytest.mark.slow  # torch.library.opcheck compiles each op several times
def test_the_op_by_itself_is_sound():
    for name in NAMES:
        check_op(gallery.op(name), gallery.samples(name)[:1], targets=[])


@pytest.mark.parametrize("name", NAMES)
def test_on_every_target(name):
    """Each sample alone and all of one kind by one program with dynamic sizes; a limit must still be one."""
    report = check_op(
        gallery.op(name), gallery.samples(name), targets=gallery.TARGETS, opcheck=False, raise_exception=False
    )
    limits = {target: reason for (op, target), reason in gallery.LIMITS.items() if op == name}
    for target in gallery.TARGETS:
        found = [c for c in report.checks if c.what.startswith(target)]
        if target in limits:
            assert any(limits[target] in c.problem for c in found), str(report)
        else:
            assert any(c.what == f"{target}, dynamic" for c in found)
    assert all(c.ok or c.what.partition(",")[0] in limits for c in report.checks), str(report)
