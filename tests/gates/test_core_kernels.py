"""What the compilers make of the core's own kernels."""

from __future__ import annotations

from dataclasses import replace

from attnhub.kernels.merge import ManyStatesMerge, TwoStatesMerge
from attnhub.kernels.schedule import plan_spec
from attnhub.testing.gates import Gate, suite

ARCHS = ("sm_80", "sm_89", "sm_90a")
DTYPES = ("bfloat16", "float32")
LOCAL_MEMORY = Gate().forbidden

# Aligned rows move 16 bytes at a time: two chunks of each of two states, and of the result.
TWO_STATES = Gate(max_registers=40, max_smem=0, census={"LDG.128": 2 * 2, "STG.128": 2})
# Four states are in flight, and three CTAs of 256 threads on an SM.
MANY_STATES = Gate(max_registers=80, max_smem=0, census={"LDG.128": 4 * 2, "STG.128": 2})
# Every plan of a batch is the same, so nothing in it may depend on who came first.
NO_ATOMICS = (*LOCAL_MEMORY, "ATOM", "ATOMG", "ATOMS", "RED")
# 1024 threads leave 64 registers for each; they wait for each other twice.
PLAN = Gate(max_registers=64, max_smem=0, census={"BAR": 2}, forbidden=NO_ATOMICS)
# And what reads the plan may start before it is there.
PLAN_SM90 = replace(PLAN, census={"BAR": 2, "ACQBULK": 1, "PREEXIT": 1})

test_merge_two = suite(
    [(TwoStatesMerge.spec(a, dtype, 128), TWO_STATES) for a in ARCHS for dtype in DTYPES]
)
test_merge_many = suite(
    [(ManyStatesMerge.spec(a, dtype, 128), MANY_STATES) for a in ARCHS for dtype in DTYPES]
)
test_plan = suite([(plan_spec(arch), PLAN_SM90 if arch == "sm_90a" else PLAN) for arch in ARCHS])
