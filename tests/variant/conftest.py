from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.machines import MACHINES


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The dtype of the scores, which torch is told to use for quotients of ints as well."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.fixture(params=MACHINES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where kernels run: a GPU, or for the emulator the CPU."""
    if request.param == "gpu":
        return torch.device("cuda:0")
    request.getfixturevalue("emulated_gpu")
    return torch.device("cpu")
