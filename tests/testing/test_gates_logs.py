"""What is read from logs and from disassembly, each as the tools really write it."""

from __future__ import annotations

import pytest

from attnhub.errors import AttnHubError
from attnhub.testing.gates import log, sass
from attnhub.testing.gates.log import Usage

NVCC = """\
kernel.cu(4): warning #177-D: variable "unused" was declared but never referenced
    int unused;
        ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'calls' for 'sm_90a'
ptxas info    : Function properties for calls
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 3 barriers, 1024 bytes smem
ptxas info    : Compile time = 2.635 ms
ptxas info    : Function properties for _Z6helperf
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'spill' for 'sm_90a'
ptxas info    : Function properties for spill
    392 bytes stack frame, 480 bytes spill stores, 504 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 408 bytes cumulative stack size
ptxas info    : Compile time = 10.613 ms
"""
NVRTC = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 34 registers, used 0 barriers, 380 bytes cmem[0]
ptxas info    : Compile time = 4.491 ms
"""
SASS = """\
//--------------------- .text.k                   --------------------------
        .global         k
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        /*0020*/               @P1 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E.LTC128B.128 R8, desc[UR4][R2.64+0x10] ;
        /*0040*/              @UP2 UTMALDG.2D [UR8], [UR6], desc[URZ] ;
        /*0050*/             @!UPT HGMMA.64x16x16.F32 R24, gdesc[UR8], R24, gsb0 ;
.L_x_0:
        /*10060*/                  LDG.E R0, desc[UR4][R2.64] ;
        /*10070*/                  BRA `(.L_x_0);
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            NVCC,
            Usage(
                registers=32,
                smem=1024,
                stack=408,
                spill_stores=488,
                spill_loads=508,
                barriers=3,
            ),
            id="the worst of several functions, and all that is spilled",
        ),
        pytest.param(
            NVRTC,
            Usage(registers=34, smem=0, stack=0, spill_stores=0, spill_loads=0, barriers=0),
            id="NVRTC marks the line of the stack otherwise",
        ),
    ],
)
def test_resources(text: str, expected: Usage) -> None:
    assert log.usage(text) == expected


@pytest.mark.parametrize(
    "text", ["", NVRTC.replace("Used", "Took"), NVRTC.replace("stack frame", "frame")]
)
def test_a_log_that_says_nothing_is_an_error_and_not_a_kernel_that_takes_nothing(text: str) -> None:
    with pytest.raises(AttnHubError, match="does not say what registers and stack"):
        log.usage(text)


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        pytest.param(
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
            "serialized due to non wgmma instructions defining accumulator registers of a wgmma "
            "between start and end of the pipeline stage in the function 'k'",
            ["C7510"],
            id="an info that is none",
        ),
        pytest.param(
            "ptxas warning : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain "
            "minimum register requirements.",
            ["C7508"],
            id="a warning of ptxas with a code",
        ),
        pytest.param(
            "ptxas warning : Value of threads per SM for entry k is out of range. .minnctapersm "
            "will be ignored",
            [""],
            id="a warning of ptxas without a code",
        ),
        pytest.param("nvcc warning : Support for x is deprecated", [""], id="nvcc's own"),
        pytest.param("k.cuh(7): warning #550-D: variable", ["#550-D"], id="the front end's"),
        pytest.param('Remark: suppress with "-diag-suppress <warning-number>"', [], id="a remark"),
        pytest.param("ptxas info    : Used 34 registers, used 0 barriers", [], id="a plain info"),
    ],
)
def test_complaints(line: str, codes: list[str]) -> None:
    assert [notice.code for notice in log.notices(NVRTC + line)] == codes


def test_a_complaint_is_told_once() -> None:
    assert len(log.notices(NVCC + NVCC)) == 1
    [notice] = log.notices(NVCC)
    assert notice.text.startswith("kernel.cu(4): warning #177-D: variable")


def test_instructions_are_counted_by_full_name() -> None:
    assert sass.census(SASS) == {
        "LDC": 1,
        "BRA": 2,
        "LDG.E.128.CONSTANT": 1,
        "LDG.E.LTC128B.128": 1,
        "LDG.E": 1,
        "UTMALDG.2D": 1,
        "HGMMA.64x16x16.F32": 1,
    }


@pytest.mark.parametrize(
    ("name", "times"),
    [
        pytest.param("LDG", 3, id="all of a name"),
        pytest.param("LDG.128", 2, id="wherever the modifier stands"),
        pytest.param("LDG.CONSTANT.128", 1, id="in any order"),
        pytest.param("LD", 0, id="the beginning of a name is another name"),
        pytest.param("LDG.12", 0, id="nor is that of a modifier"),
        pytest.param("HGMMA.64x16x16", 1, id="a shape"),
    ],
)
def test_a_name_may_leave_modifiers_out(name: str, times: int) -> None:
    assert sass.count(sass.census(SASS), name) == times
