"""Where kernels run here: on the GPU, or on the CPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import attnhub
from attnhub.testing.triton_interpreter import interpreting
from attnhub_triton_misc import manifest

#: Enough that few requests are cut into shares.
NUM_SMS = 8


@pytest.fixture
def device() -> Iterator[torch.device]:
    """A device whose calls this plugin serves, and no other."""
    if torch.cuda.is_available():
        with attnhub.use("triton_misc"):
            yield torch.device("cuda:0")
        return
    with (
        interpreting("triton_misc", manifest.attnhub_backends(), num_sms=NUM_SMS),
        attnhub.use("triton_misc"),
    ):
        yield torch.device("cpu")
