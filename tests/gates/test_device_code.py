"""The emulator's own kernels compile for GPUs, to the instructions that they name."""

from __future__ import annotations

from attnhub.plugin import KernelSpec
from attnhub.testing.gates import AtLeast, Gate, suite
from tests.emulator.specs import spec

VECTOR = "attnhub::Vec<float, 4>"
EVERY_ARCH = ("sm_80", "sm_90a")

# 8 m16 and 16 n8 tiles over 4 warps, 4 steps of K; 4 + 4 loads of 4 matrices a step.
GEMM = Gate(census={"HMMA": 8 * 16 // 4 * 4, "LDSM": (4 + 4) * 4, "LDGSTS": AtLeast(1)})
# Of 16 bytes each: cp.async and three other loads, and what goes through shared memory.
WIDEST = Gate(census={"LDGSTS.128": 1, "LDG.128": 3, "STS.128": 1, "LDS.128": 2, "STG.128": 4})
# 4 steps of K; a ldmatrix for each, where A goes through registers.
HOPPER = {"HGMMA": 4, "UTMALDG": 2, "UTMASTG": 1, "USETMAXREG": 2}
# Six forms, each in 4 steps of K.
PRODUCTS = Gate(census={"HGMMA": 6 * 4, "LDSM": 2 * 4})
CLUSTER = {"UCGABAR_ARV": AtLeast(2)}


def gemm_hopper(arguments: str) -> KernelSpec:
    return spec(f"gemm_hopper::gemm<{arguments}>", bounds=(256, 1))


test_kernels = suite(
    [
        *((spec("gemm_tile::gemm<gemm_tile::Wide>", arch=arch), GEMM) for arch in EVERY_ARCH),
        *((spec(f"primitives::widths<{VECTOR}>", arch=arch), WIDEST) for arch in EVERY_ARCH),
        *(
            (
                spec("primitives::hand_over<true>", arch=arch),
                Gate(census={"BAR": AtLeast(4), "SHFL": 1}),
            )
            for arch in EVERY_ARCH
        ),
        *(
            (spec("primitives::matrix<1, true>", arch=arch), Gate(census={"LDSM": 1}))
            for arch in EVERY_ARCH
        ),
        (spec("primitives::copies_arrive"), Gate(census={"ARRIVES.LDGSTSBAR": 1})),
        *(
            (
                spec(f"primitives::transpose<{count}, {transposed}>"),
                Gate(census={"STSM": 1, "LDSM": 1}),
            )
            for count in (2, 4)
            for transposed in ("false", "true")
        ),
        (gemm_hopper("attnhub::Half, false"), Gate(census=HOPPER)),
        (gemm_hopper("attnhub::Bf16, true"), Gate(census=HOPPER | {"LDSM": 4})),
        (spec("wgmma::products<attnhub::Half, 256>"), PRODUCTS),
        (spec("wgmma::products<attnhub::Bf16, 96>"), PRODUCTS),
        (
            spec("clusters::exchange<clusters::Bug::kNone>"),
            Gate(census=CLUSTER | {"ACQBULK": 1, "PREEXIT": 1}),
        ),
        (spec("clusters::push"), Gate(census=CLUSTER)),
        (
            spec("clusters::multicast<clusters::Bug::kNone>"),
            Gate(census=CLUSTER | {"SYNCS": AtLeast(1), "UTMALDG.MULTICAST": AtLeast(1)}),
        ),
        (spec("tma::copy_box<5>"), Gate(census={"UTMALDG.5D": 1, "UTMASTG.5D": 1})),
        (spec("tma::share_box<4>"), Gate(census=CLUSTER | {"UTMALDG.4D.MULTICAST": 1})),
    ]
)
