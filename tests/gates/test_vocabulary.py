"""What becomes of the shared device functions, each in a small kernel of its own."""

from __future__ import annotations

from attnhub.testing.gates import Gate, suite
from tests.vocabulary import spec

ARCHS = ("sm_80", "sm_89", "sm_90a")
WITH_FP8 = ARCHS[1:]
LOCAL_MEMORY = Gate().forbidden
TYPES = "attnhub::Half, attnhub::E4m3"

# The scores and the output of 16 queries: two n8 tiles by two k16 steps, two chunks by two halves.
PRODUCTS = Gate(census={"HMMA": 4, "LDSM": 1})
# Sine and cosine by the special-function unit; the exact ones reduce large angles in local memory.
ROPE = Gate(census={"MUFU.SIN": 1, "MUFU.COS": 1, "MUFU": 2})
# The point of FastDiv.
NO_DIVISION = Gate(forbidden=(*LOCAL_MEMORY, "MUFU", "I2F", "F2I", "CALL"))

test_kernels = suite(
    [
        (spec(f"widen_fp8<{TYPES}>", "WidenParams", "sm_80"), Gate()),
        (spec("narrow_to_fp8<attnhub::E4m3>", "NarrowParams", "sm_80"), Gate()),
        *(
            (spec(f"widen_fp8<{TYPES}>", "WidenParams", arch), Gate(census={"F2FP.E4M3": 5}))
            for arch in WITH_FP8
        ),
        *(
            (
                spec("narrow_to_fp8<attnhub::E4m3>", "NarrowParams", arch),
                Gate(census={"F2FP.E4M3": 1}),
            )
            for arch in WITH_FP8
        ),
        *((spec(f"fp8_scores<{TYPES}>", "ScoresParams", arch), PRODUCTS) for arch in ARCHS),
        *((spec(f"fp8_output<{TYPES}>", "OutputParams", arch), PRODUCTS) for arch in ARCHS),
        *((spec("rope<64, true>", "RopeParams", arch), ROPE) for arch in ARCHS),
        *((spec("read_mask<true>", "MaskParams", arch), Gate()) for arch in ARCHS),
        *((spec("divide", "DivideParams", arch), NO_DIVISION) for arch in ARCHS),
    ]
)
