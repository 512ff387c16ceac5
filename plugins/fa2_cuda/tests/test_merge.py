"""The merges through the public API: what the conformance suite asks, in the kernel emulator."""

from __future__ import annotations

import pytest

from attnhub.plugin import Registry
from attnhub.testing.conformance import cases
from attnhub.testing.emulator import EmulatedGpu
from attnhub_fa2_cuda import manifest

OPS = ["cascade.merge_state", "cascade.merge_state_in_place", "cascade.merge_states"]


@pytest.mark.parametrize("op", OPS)
def test_conformance(op: str, emulated_gpu: EmulatedGpu, isolated_registry: Registry) -> None:
    isolated_registry.register(emulated_gpu.plugin(manifest.attnhub_backends()), "emulated")
    refused, ran = 0, 0
    for case in cases("fa2_cuda", op=op, pairs=8):
        assert case.check() == "", case.id
        ran += "-serves-" in case.id
        refused += "-refuses-head_dim=111" in case.id
    assert ran > 15
    assert refused == 1
    assert emulated_gpu.launches
