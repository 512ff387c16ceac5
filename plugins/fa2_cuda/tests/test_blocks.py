"""Block-sparse K and V, and rows that see nothing, in the emulator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub.plugin import Registry, Variant
from attnhub.testing.compare import assert_close
from attnhub.testing.emulator import EmulatedGpu
from attnhub.testing.generators import seeded
from attnhub_fa2_cuda import manifest

HEADS, DIM = 2, 32


@pytest.fixture(autouse=True)
def gpu(emulated_gpu: EmulatedGpu, isolated_registry: Registry) -> EmulatedGpu:
    isolated_registry.register(emulated_gpu.plugin(manifest.attnhub_backends()), "emulated")
    return emulated_gpu


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rows(count: int, seed: int) -> Tensor:
    return torch.randn((count, HEADS, DIM), generator=seeded(seed)).half()


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("custom", ["none", "bool", "packed"])
def test_ids_in_any_order_and_twice(custom: str, with_mask: bool) -> None:
    """Two requests of 10 and 5 queries over 10 and 6 keys, in blocks of 4 by 4."""
    ids = [2, 0, 2, 1, 0, 0, 1, 2, 1, 1, 0]
    indptr = ints(0, 5, 6, 8, 10, 11)
    q, k, v = rows(15, 1), rows(16, 2), rows(16, 3)
    generator = seeded(4)
    inside = torch.rand(len(ids), 4, 4, generator=generator) > 0.3 if with_mask else None
    mask = None
    if custom != "none":
        mask = torch.rand(10 * 10 + 5 * 6, generator=generator) > 0.2
        if custom == "packed":
            mask, _ = attnhub.quantization.segment_packbits(mask, ints(0, 100, 130))
    found = {}
    for backend in ("fa2_cuda", "reference"):
        attn = attnhub.BatchAttention(
            HEADS,
            HEADS,
            DIM,
            "float16",
            attnhub.BlockSparse(4, 4),
            variant=Variant(soft_cap=5.0),
            device="cpu",
            backend=backend,
        )
        kv = attnhub.BlockSparseKV(ints(0, 10, 16), indptr, ints(*ids), inside)
        attn.plan(ints(0, 10, 15), kv, mask=mask)
        out = torch.full_like(q, math.nan)
        found[backend] = attn.run(q, (k, v), out=out, return_lse=True)
    for got, expected, kind in zip(*found.values(), ("output", "lse"), strict=True):
        assert_close(got, expected.float(), dtype=torch.float16, kind=kind)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("variant", [Variant(causal=True), Variant(causal=True, softmax=False)])
@pytest.mark.parametrize("queries", [3, 40])
def test_rows_that_see_no_key_are_zero_whatever_values_are(
    queries: int, variant: Variant, value: float
) -> None:
    q, k, v = rows(queries, 1), rows(2, 2), rows(2, 3)
    v[1, 0, 3] = value
    found = {}
    for backend in ("fa2_cuda", "reference"):
        attn = attnhub.BatchAttention(
            HEADS, HEADS, DIM, "float16", device="cpu", variant=variant, backend=backend
        )
        attn.plan(ints(0, queries), attnhub.RaggedKV(ints(0, 2)))
        found[backend] = attn.run(q, (k, v))
    assert not found["fa2_cuda"][: queries - 2].any()
    assert_close(found["fa2_cuda"], found["reference"].float(), dtype=torch.float16)
