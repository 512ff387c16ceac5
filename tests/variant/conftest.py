from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The dtype of the scores, which torch is told to use for quotients of ints as well."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)
