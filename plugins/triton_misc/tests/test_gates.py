"""What Triton and ptxas make of the kernels that plans launch on an H200; needs no GPU."""

from __future__ import annotations

import pytest

from attnhub.testing.gates.triton import triton_builds
from attnhub_triton_misc import manifest

MANIFEST = "attnhub_triton_misc.manifest"
OPS = [backend.op for backend in manifest.attnhub_backends()]
#: Twice the budget of a kernel.
MOST_CPU_SECONDS = 8.0
#: Ops whose rows, in their workloads, are aligned and of a multiple of 16 bytes.
VECTORS = ("norm.", "activation.", "rope.", "page.append")


@pytest.mark.gates
def test_kernels_compile_without_spills_and_move_rows_by_16_bytes() -> None:
    builds = triton_builds(MANIFEST, "triton_misc", sm=90, ops=OPS)
    assert {build.spec.op for build in builds} == set(OPS)
    for build in builds:
        assert (build.spill_stores, build.spill_loads) == (0, 0), build.spec
        assert build.cpu_seconds < MOST_CPU_SECONDS, build.spec
        if build.spec.op.startswith(VECTORS):
            assert build.count("LDG.128") > 0, build.spec
            assert build.count("STG.128") > 0, build.spec
