"""What the hooks of emitted variants cost on the scores of a warp of an attention kernel.

Of 16 x 64 scores a lane has 32, in 2 rows and 16 columns.
"""

from __future__ import annotations

from attnhub.testing.gates import Gate, suite
from attnhub.variant import Variant
from tests.variant.hooks import spec
from tests.variant.test_cuda_emitter import VARIANTS
from tests.variant.test_emitted_attention import EXAMPLES
from tests.variant.test_emitted_operations import OPERATIONS, all_of

ARCHS = ("sm_80", "sm_90a")
BY_NAME = {example.name: example.variant for example in EXAMPLES} | VARIANTS
EVERY_OPERATION = Variant(score_mod=all_of([operation.graph() for operation in OPERATIONS]))
LOCAL_MEMORY = Gate().forbidden

# The scores themselves and nothing else.
UNUSED = Gate(max_registers=32, census={"LDG": 32, "MUFU": 0, "FFMA": 0})
# One slope, of the one head; ex2 and rcp for each score, and an FFMA for the cap and for the bias.
CAP_AND_ALIBI = Gate(max_registers=40, census={"LDG": 32 + 1, "MUFU": 64, "FFMA": 64})
# A score's ex2 and rcp. Its own share of the scalar's load is gone in a kernel that has a loop.
SIGMOID = Gate(max_registers=48, census={"MUFU": 64}, forbidden=(*LOCAL_MEMORY, "CALL"))
# Documents of the rows and of the columns; on sm_90a, those of the rows twice.
DOCUMENTS = {"sm_80": 2 + 16, "sm_90a": 2 + 16 + 2}
# Rows are 8 apart, so all but the first and the last distances come twice.
BIAS = Gate(max_registers=48, census={"LDG": 32 + 16 + 2})
# No operation but a power takes a subroutine.
FEATURES = Gate(max_registers=80, forbidden=(*LOCAL_MEMORY, "CALL"))

test_kernels = suite(
    [
        *(
            (spec("fragment", BY_NAME[name], name, arch), gate)
            for arch in ARCHS
            for name, gate in (
                ("plain", UNUSED),
                ("elements", UNUSED),
                ("soft_cap_and_alibi", CAP_AND_ALIBI),
                ("flash_sigmoid", SIGMOID),
                ("documents", Gate(max_registers=48, census={"LDG": 32 + DOCUMENTS[arch]})),
                ("learned_bias", BIAS),
                ("every_feature", FEATURES),
            )
        ),
        *((spec("grid", EVERY_OPERATION, "operations", arch), Gate()) for arch in ARCHS),
    ]
)
