"""Reductions, orderings and running sums."""

from eager_backend.registry import rows
from ir.importer.torch_api import VF

rows(
    VF,
    "all amax amin aminmax any argmax argmin argsort bincount count_nonzero cummax cummin cumprod cumsum diff "
    "kthvalue logcumsumexp logsumexp max mean median min mode msort nanmean nanmedian nansum prod quantile "
    "nanquantile sort std std_mean sum topk trace unique_consecutive var var_mean norm histc dist",
)
