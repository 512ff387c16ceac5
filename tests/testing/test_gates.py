"""Gates against kernels that spill, serialise or do not compile, by both compilers and for real."""

from __future__ import annotations

import dataclasses
import importlib.util
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from attnhub.errors import InvalidArgument
from attnhub.jit import CompileError, discover
from attnhub.testing.gates import AtLeast, Build, Gate, GateError, Notice, build, check, sass
from tests.testing import gate_kernels
from tests.testing.gate_kernels import KernelFolder


@pytest.fixture(params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest) -> str:
    finding = {f.name: f for f in discover()}[request.param]
    if finding.compiler is None:
        pytest.skip(finding.why)
    return request.param


def _violations(made: Build, gate: Gate) -> list[str]:
    with pytest.raises(GateError) as raised:
        check(made, gate)
    assert raised.value.build is made
    assert all(line in str(raised.value) for line in raised.value.violations)
    return list(raised.value.violations)


def test_a_kernel_as_it_should_be(compiler: str, kernels: KernelFolder) -> None:
    made = build(kernels.spec(gate_kernels.CLEAN), compiler)
    assert made.image[:4] == b"\x7fELF"
    assert 4 <= made.registers <= 16
    assert (made.stack, made.spill_stores, made.spill_loads, made.smem) == (0, 0, 0, 0)
    assert made.notices == ()
    assert made.cpu_seconds > 0
    gate = Gate(max_registers=16, max_smem=0, census={"LDG.64": 1, "STG": AtLeast(1)})
    if why := check(made, gate):
        pytest.skip(why)
    assert made.count("LDG") == 1
    shown = str(made)
    assert shown.startswith(f"kernel 'k' for sm_80 by {compiler}")
    assert f"registers {made.registers}, smem 0, barriers 0" in shown
    assert "LDG 1, " in shown


def test_spills(compiler: str, kernels: KernelFolder) -> None:
    made = build(kernels.spec(gate_kernels.SPILLS, bounds="1024, 2"), compiler)
    assert made.registers == 32
    assert min(made.spill_stores, made.spill_loads, made.stack) > 64
    lines = _violations(made, Gate())
    assert lines[0] == f"spills=0: {made.spill_stores} bytes stored, {made.spill_loads} loaded"
    assert lines[1] == f"stack=0: it takes {made.stack} bytes"
    if made.instructions is not None:
        assert [line.split()[-1] for line in lines[2:]] == ["LDL", "STL"]
    known = made.spill_stores + made.spill_loads
    assert check(made, Gate(spills=known, stack=made.stack, forbidden=())) == ""


def test_stack_frame_without_a_spill(compiler: str, kernels: KernelFolder) -> None:
    made = build(kernels.spec(gate_kernels.STACK), compiler)
    assert (made.stack, made.spill_stores) == (256, 0)
    assert "stack=0: it takes 256 bytes" in _violations(made, Gate())


def test_serialised_products(compiler: str, kernels: KernelFolder) -> None:
    made = build(kernels.spec(gate_kernels.SERIALISED, arch="sm_90a"), compiler)
    codes = {notice.code for notice in made.notices}
    assert codes & {"C7510", "C7511", "C7514", "C7515"}
    assert codes & {"C7517", "C7519"}
    told = "\n".join(_violations(made, Gate(allowed_warnings=("C7517", "C7519"))))
    assert "wgmma.mma_async instructions are serialized" in told
    assert "is injected" not in told


def test_a_warning_of_the_front_end(compiler: str, kernels: KernelFolder) -> None:
    made = build(kernels.spec("  int unused;\n"), compiler)
    [line] = _violations(made, Gate())
    assert line.startswith("allowed_warnings=()")
    assert 'warning #177-D: variable "unused"' in line
    assert check(made, Gate(allowed_warnings=("#177-D",), forbidden=())) == ""


def test_a_kernel_that_does_not_compile(
    compiler: str, kernels: KernelFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CompileError, match='identifier "missing" is undefined') as raised:
        build(kernels.spec("  p.x[0] = missing;\n"), compiler)
    assert "= missing;" in raised.value.source.read_text()
    assert "missing" in (raised.value.source.parent / "build.log").read_text()
    assert str(raised.value.source) in raised.value.command


def _made(kernels: KernelFolder, **changes: object) -> Build:
    """A build that no compiler made."""
    made = Build(
        spec=kernels.spec(gate_kernels.CLEAN),
        compiler="nvcc",
        registers=128,
        smem=1024,
        stack=0,
        spill_stores=0,
        spill_loads=0,
        barriers=1,
        notices=(),
        instructions=Counter({"HMMA.16816.F32": 64, "LDGSTS.E.BYPASS.128": 8, "BAR.SYNC": 2}),
        cpu_seconds=4.0,
        image=b"",
        log="",
    )
    return dataclasses.replace(made, **changes)


GATE = Gate(
    max_registers=128,
    max_smem=1024,
    census={"HMMA": 64, "LDGSTS.128": AtLeast(8)},
    cpu_seconds=2.0,
)


def test_limits_hold_up_to_their_values(kernels: KernelFolder) -> None:
    assert check(_made(kernels), GATE) == ""


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"registers": 129}, "max_registers=128: it takes 129"),
        ({"smem": 1025}, "max_smem=1024: it takes 1025 bytes"),
        ({"spill_loads": 4}, "spills=0: 0 bytes stored, 4 loaded"),
        ({"stack": 8}, "stack=0: it takes 8 bytes"),
        ({"cpu_seconds": 4.01}, "cpu_seconds=2.0: 4.01 is more than 2 times that"),
        (
            {"notices": (Notice(code="C7519", text="(C7519) injected"),)},
            "allowed_warnings=(): (C7519) injected",
        ),
        (
            {"instructions": Counter({"HMMA.1688": 65, "LDGSTS.128": 9})},
            "census['HMMA']=64: there are 65",
        ),
        (
            {"instructions": Counter({"HMMA": 64, "LDGSTS.128": 7})},
            "census['LDGSTS.128']=AtLeast(8): there are 7",
        ),
        (
            {"instructions": Counter({"HMMA": 64, "LDGSTS.128": 8, "STL.64": 3})},
            "forbidden=('LDL', 'STL'): 3 STL",
        ),
    ],
    ids=lambda value: value.partition("=")[0] if isinstance(value, str) else "",
)
def test_each_limit_names_itself_and_what_was_found(
    kernels: KernelFolder, changes: dict[str, object], line: str
) -> None:
    assert _violations(_made(kernels, **changes), GATE) == [line]


def test_all_that_is_wrong_is_told_at_once(kernels: KernelFolder) -> None:
    made = _made(kernels, registers=200, stack=16, instructions=Counter({"LDL": 1}))
    lines = _violations(made, GATE)
    begins = [line.partition(":")[0].partition("=")[0] for line in lines]
    assert begins == [
        *("max_registers", "stack", "census['HMMA']", "census['LDGSTS.128']", "forbidden")
    ]


@pytest.mark.parametrize("code", ["C7508", "C7510", "C7511", "C7514", "C7515"])
def test_what_is_always_slow_cannot_be_allowed(code: str) -> None:
    with pytest.raises(InvalidArgument, match=f"allowed_warnings has {code}: a kernel with it is"):
        Gate(allowed_warnings=("C7519", code))


def test_without_a_disassembler_the_rest_is_checked(
    kernels: KernelFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(sass.NoDisassembler, match="pip install triton") as raised:
        sass.disassemble(b"")
    made = _made(kernels, instructions=None, no_instructions=str(raised.value))
    assert check(made, GATE) == (
        "the rest holds, but instructions were not counted: no nvdisasm in triton's wheel or on "
        "the PATH; pip install triton"
    )
    assert check(made, Gate(forbidden=(), cpu_seconds=2.0)) == "", "no instruction is asked about"
    assert len(_violations(made, Gate(max_registers=1))) == 1
    with pytest.raises(sass.NoDisassembler, match="pip install triton"):
        made.count("HMMA")


def test_what_is_no_cubin_is_not_counted() -> None:
    try:
        sass._nvdisasm()
    except sass.NoDisassembler as error:
        pytest.skip(str(error))
    with pytest.raises(sass.NoDisassembler, match="nvdisasm refuses the cubin: "):
        sass.disassemble(b"no ELF file")
