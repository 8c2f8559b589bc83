"""Rows of sampling parameters from columns of values, for tests of many kinds at once."""

from collections.abc import Sequence
from typing import Any

import torch

from pagoda_kernels.sampling.rows import SamplingRows, plan_sampling, sampling_column


def rows_of(num_rows: int, device: torch.device, **parameters: Any) -> SamplingRows:
    """Return rows of values by name, as `sampling_column` has them, and of ``index``.

    A single value stands for all rows.
    """
    lists = {
        name: list(values) if isinstance(values, Sequence | range) else [values] * num_rows
        for name, values in parameters.items()
    }
    indices = lists.pop("index", [0] * num_rows)
    columns = [
        sampling_column(**{name: values[row] for name, values in lists.items()})
        for row in range(num_rows)
    ]
    return plan_sampling(columns, indices, device)
