"""What the compilers make of the kernel: registers, spills, instructions, time."""

from attnhub.testing.gates import Gate, suite
from attnhub_swiglu.kernel import spec

# Rows that are aligned move by 16 bytes: the gate, up and their product.
WIDE = {"LDG.128": 2, "STG.128": 1}
# As many registers as let an SM hold all the threads it can: 2048, and 1536 of sm_89.
GATES = {
    "sm_80": Gate(max_registers=32, max_smem=0, census=WIDE),
    "sm_89": Gate(max_registers=40, max_smem=0, census=WIDE),
    "sm_90a": Gate(max_registers=32, max_smem=0, census=WIDE),
}

test_gates = suite(
    [(spec(dtype, arch), gate) for arch, gate in GATES.items() for dtype in ("float16", "bfloat16")]
)
