"""What the compilers make of the attention kernel: registers, spills, instructions, time."""

from __future__ import annotations

from attnhub.plugin import AttentionProblem, KernelSpec, Variant, describe
from attnhub.testing.gates import AtLeast, Gate, suite
from attnhub_fa2_cuda.attention import spec
from attnhub_fa2_cuda.tiles import DECODE, PREFILL, Tile

DEVICES = ("a100", "rtx4090", "h100", "rtx5090")


def kernel(device: str, tile: Tile, variant: Variant) -> KernelSpec:
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
    return spec(problem, tile)


# A warp multiplies 2 m16 and 8 n8 tiles of scores 8 times, and 2 by 16 tiles of output 4 times. Keys
# and values are 16-byte copies: 8 of each for a thread and block, in the prologue and in the loop.
PREFILL_GATE = Gate(
    max_registers=255,
    max_smem=0,
    census={"HMMA": 2 * 8 * 8 + 2 * 16 * 4, "LDGSTS": AtLeast(2 * 2 * 8), "LDSM": AtLeast(80)},
)
# 16 rows and 16 keys of a warp: 2 n8 tiles of scores 8 times, 16 tiles of output once.
DECODE_GATE = Gate(
    max_registers=170,
    max_smem=0,
    census={"HMMA": 2 * 8 + 16, "LDGSTS": AtLeast(3 * 2 * 8), "LDSM": AtLeast(24)},
)

test_prefill = suite([(kernel(d, PREFILL, Variant(causal=True)), PREFILL_GATE) for d in DEVICES])
test_decode = suite([(kernel(d, DECODE, Variant(causal=True)), DECODE_GATE) for d in DEVICES])
test_soft_cap = suite([(kernel("h100", PREFILL, Variant(soft_cap=30.0)), PREFILL_GATE)])
