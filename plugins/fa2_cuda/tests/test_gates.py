"""What the compilers make of the attention kernel: registers, spills, instructions, time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnhub.plugin import AttentionProblem, KernelSpec, Variant, describe
from attnhub.testing.gates import AtLeast, Gate, suite
from attnhub_fa2_cuda.kernel import spec
from attnhub_fa2_cuda.tiles import DECODE, PREFILL, Tile, choose

CAUSAL = Variant(causal=True)
DEVICES = ("a100", "rtx4090", "h100", "rtx5090")


def kernel(device: str, tiles: Sequence[Tile], variant: Variant) -> KernelSpec:
    problem = AttentionProblem.of(
        describe(device),
        num_qo_heads=32,
        num_kv_heads=8,
        head_dim=128,
        dtype="bfloat16",
        kv="paged",
        page_size=16,
        variant=variant,
    )
    return spec(problem, choose(tiles, problem.device.sm))


# A warp multiplies 2 m16 and 8 n8 tiles of scores 8 times, and 2 by 16 tiles of output 4 times.
# Keys and values are 16-byte copies: 8 of each for a thread and block, in prologue and loop.
# NOTE: the products of a block leave no register: a number comes from local memory each block.
WIDE = Gate(
    max_registers=255,
    max_smem=0,
    stack=16,
    spills=24,
    forbidden=(),
    census={"HMMA": 2 * 8 * 8 + 2 * 16 * 4, "LDGSTS": AtLeast(2 * 2 * 8), "LDSM": AtLeast(80)},
)
# Of an A100: half the keys, and so half the products.
SHORT = replace(WIDE, census={"HMMA": 256 // 2, "LDGSTS": AtLeast(2 * 2 * 4)})
# 16 rows and 16 keys of a warp: 2 n8 tiles of scores 8 times, 16 tiles of output once.
DECODE_GATE = Gate(
    max_registers=240,
    max_smem=0,
    census={"HMMA": 2 * 8 + 16, "LDGSTS": AtLeast(2 * 2 * 8), "LDSM": AtLeast(24)},
)

test_prefill = suite(
    [(kernel(d, PREFILL, CAUSAL), SHORT if d == "a100" else WIDE) for d in DEVICES]
)
test_decode = suite([(kernel(d, DECODE, CAUSAL), DECODE_GATE) for d in DEVICES])
test_soft_cap = suite([(kernel("h100", PREFILL, Variant(soft_cap=30.0)), WIDE)])
