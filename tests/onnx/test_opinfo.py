"""A fixed slice of torch's operator database, spread over the families; the whole of it is `python -m tests.opinfo`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch

from tests.opinfo.compare import difference, results_of
from tests.opinfo.samples import Sample, name_of
from tests.opinfo.sweep import Sweep, outcome

FLOAT32 = (
    "abs add addmm addmv all amax aminmax angle any arange argmax argsort atan2 baddbmm bernoulli bitwise_and bmm "
    "broadcast_tensors bucketize cat cdist cholesky chunk clamp constant_pad_nd copysign count_nonzero cross cumprod "
    "cumsum diag_embed diagonal_scatter digamma einsum erfinv expm1 flip floor_divide fmax gather grid_sampler_2d "
    "histc hypot index_add index_put index_reduce.amax index_select isin kthvalue lerp lgamma linalg.det linalg.eigh "
    "linalg.inv linalg.lstsq linalg.lu linalg.qr linalg.solve linalg.svd linalg.vector_norm log_softmax logaddexp "
    "logcumsumexp masked_scatter masked_select matmul median mode multinomial nan_to_num nanmedian native_layer_norm "
    "nextafter nn.functional.adaptive_max_pool2d nn.functional.avg_pool2d nn.functional.batch_norm "
    "nn.functional.conv2d nn.functional.conv_transpose2d nn.functional.cross_entropy nn.functional.dropout "
    "nn.functional.embedding_bag nn.functional.gelu nn.functional.group_norm "
    "nn.functional.interpolate.bicubic nn.functional.interpolate.nearest nn.functional.max_pool2d "
    "nn.functional.multi_head_attention_forward nn.functional.pad.reflect nn.functional.rms_norm "
    "nn.functional.scaled_dot_product_attention nn.functional.unfold nonzero normal ones_like outer pow prod "
    "remainder repeat_interleave roll scatter_reduce.mean searchsorted select_scatter sort special.bessel_j0 "
    "std_mean tile topk tril unique var where "
    "_segment_reduce.lengths as_strided_scatter geqrf histogram linalg.householder_product matrix_exp "
    "native_group_norm nn.functional.fractional_max_pool2d nn.functional.instance_norm ormqr"
)
FLOAT16 = "add cumsum matmul mean nn.functional.conv2d nn.functional.batch_norm softmax sort topk var"
INT64 = "add argmax cumsum div.floor_rounding index_put mode prod remainder sort unique"


@cache
def database() -> Mapping[str, Any]:
    from tests.opinfo import samples

    return {name_of(op): op for op in samples.database()}


@pytest.mark.parametrize("name", FLOAT32.split())
def test_float32(name: str) -> None:
    status, detail = outcome(name, database()[name], Sweep())
    assert status == "pass", detail


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, "float16") for n in FLOAT16.split()] + [(n, "int64") for n in INT64.split()]
)
def test_other_dtypes(name: str, dtype: str) -> None:
    status, detail = outcome(name, database()[name], Sweep(dtype=dtype))
    assert status == "pass", detail


@pytest.mark.parametrize("name", ["matmul", "sort", "nn.functional.conv2d", "scatter_add", "linalg.svdvals"])
def test_dynamic(name: str) -> None:
    status, detail = outcome(name, database()[name], Sweep(dynamic=True))
    assert status == "pass", detail


class One:
    """A sample of the operator database, in its form."""

    def __init__(self, input: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self.input, self.args, self.kwargs = input, args, kwargs


def compared(name: str, op: Any, one: One, change: Any) -> str:
    """The comparison's verdict on torch's own results, changed."""
    sample = Sample(op, one)
    results, _ = results_of(sample, sample.inputs())
    names = [f"result_{i}" for i in range(len(results))]
    return difference(name, sample, sample.inputs(), names, change(results), results, None)


def test_comparison_takes_what_the_definition_leaves_open() -> None:
    a = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    assert compared("linalg.eigh", torch.linalg.eigh, One(a), lambda r: [r[0], -r[1]]) == ""
    assert compared("linalg.eigh", torch.linalg.eigh, One(a), lambda r: [r[0], r[1] * 1.1])
    assert compared("linalg.eigh", torch.linalg.eigh, One(a), lambda r: [r[0] + 1, r[1]])
    ties = torch.tensor([1.0, 0.0, 1.0])
    assert compared("topk", torch.topk, One(ties, 1), lambda r: [r[0], 2 - r[1]]) == ""
    assert compared("topk", torch.topk, One(ties, 1), lambda r: [r[0], torch.tensor([1])])
    assert compared("sort", torch.sort, One(ties), lambda r: [r[0], torch.tensor([1, 0, 0])])
    assert compared("sort", torch.sort, One(ties, stable=True), lambda r: [r[0], torch.tensor([1, 2, 0])])


def test_comparison_of_halves() -> None:
    x = torch.tensor([1000.0, 1.0], dtype=torch.float16)
    assert compared("abs", torch.abs, One(x), lambda r: [r[0] * torch.tensor([1.002, 1], dtype=x.dtype)]) == ""
    assert compared("abs", torch.abs, One(x), lambda r: [r[0] * torch.tensor([1.01, 1], dtype=x.dtype)])
    assert compared("abs", torch.abs, One(x), lambda r: [r[0].float()])
