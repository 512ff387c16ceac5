"""Writes ``ptx/wgmma_products.cuh``, whose instructions name up to 128 registers each.

``python -m tests.emulator.make_wgmma`` after a change; a test compares the file with this.
"""

from __future__ import annotations

from attnhub.testing.emulator import INCLUDE_DIR

OUTPUT = INCLUDE_DIR / "attnhub" / "ptx" / "wgmma_products.cuh"
#: N of the products that kernels use; each width costs every user some compile time.
WIDTHS = (64, 96, 128, 192, 256)

_HEAD = """\
// Made by tests/emulator/make_wgmma.py: change that, not this.
//
// wgmma_smem: d (+)= A B with both operands in shared memory; wgmma_registers: A in registers. T is
// Half or Bf16, kA and kB say which dimension is contiguous. Without `adds`, d is overwritten.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

// clang-format off
"""

_FUNCTION = """
template <class T, int kN, {majors}>
ATTNHUB_DEVICE void {name}(float (&d)[kN / 2], {a_type}, u64 b, bool adds) {{
  static_assert(kIsSame<T, Half> || kIsSame<T, Bf16>, "T: Half or Bf16");
  static_assert({widths},
                "no product of this width: add it to make_wgmma.py");
#ifdef ATTNHUB_EMULATOR
  emulator::wgmma(d, {emulated}, b,
                  {{kN, {a_major}, kB == Major::kMn, adds, kIsSame<T, Bf16>}});
#else
{cases}
#endif
}}
"""


def _names(count: int) -> str:
    """%0, %1, ... as string literals, eight a line."""
    rows = [", ".join(f"%{i + j}" for j in range(8)) for i in range(0, count, 8)]
    return " \\\n  ".join(f'"{row}, "' for row in rows[:-1]) + f' \\\n  "{rows[-1]}"'


def _values(count: int) -> str:
    """The constraints of d[0], d[1], ..., six a line at most."""
    items = [f'"+f"(d[{i}])' for i in range(count)]
    rows = [", ".join(items[i : i + 6]) for i in range(0, count, 6)]
    return ", \\\n  ".join(rows)


def _macros(n: int) -> str:
    """The register lists of width n, and its two instructions with the type left open."""
    count = n // 2

    def instruction(kind: str, a: str, inputs: str, num_inputs: int, immediates: str) -> str:
        first = count + num_inputs
        majors = ", ".join(f"%{first + i}" for i in range(len(immediates.split("), "))))
        return f"""
#define ATTNHUB_WGMMA_{kind}_{n}(TYPE) \\
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{first - 1}, 0; " \\
               "wgmma.mma_async.sync.aligned.m64n{n}k16.f32." TYPE "." TYPE " {{" \\
               ATTNHUB_NAMES_{n} "}}, {a}, %{first - 2}, p, 1, 1, {majors}; }}" \\
               : ATTNHUB_VALUES_{n} \\
               : {inputs}, "l"(b), "r"(int(adds)), \\
                 {immediates})"""

    registers = ", ".join(f"%{count + i}" for i in range(4))
    fragments = ", ".join(f'"r"(a[{i}])' for i in range(4))
    major_a, major_b = (f'"n"(int({k} == Major::kMn))' for k in ("kA", "kB"))
    return (
        f"\n#define ATTNHUB_NAMES_{n} \\\n  {_names(count)}"
        f"\n#define ATTNHUB_VALUES_{n} \\\n  {_values(count)}"
        + instruction("SMEM", f"%{count}", '"l"(a)', 3, f"{major_a}, {major_b}")
        + instruction("REGISTERS", f"{{{registers}}}", fragments, 6, major_b)
        + "\n"
    )


def _cases(kind: str) -> str:
    lines = [
        f"  if constexpr (kN == {n} && kIsSame<T, {name}>) ATTNHUB_WGMMA_{kind}_{n}({text!r});"
        for n in WIDTHS
        for name, text in (("Half", "f16"), ("Bf16", "bf16"))
    ]
    return "\n".join(lines).replace("'", '"')


def text() -> str:
    """The whole header."""
    widths = " || ".join(f"kN == {n}" for n in WIDTHS)
    smem = _FUNCTION.format(
        majors="Major kA, Major kB",
        name="wgmma_smem",
        a_type="u64 a",
        emulated="nullptr, a",
        a_major="kA == Major::kMn",
        widths=widths,
        cases=_cases("SMEM"),
    )
    registers = _FUNCTION.format(
        majors="Major kB",
        name="wgmma_registers",
        a_type="const u32 (&a)[4]",
        emulated="a, 0",
        a_major="false",
        widths=widths,
        cases=_cases("REGISTERS"),
    )
    macros = "".join(_macros(n) for n in WIDTHS)
    return f"{_HEAD}{macros}{smem}{registers}\n}}  // namespace attnhub::ptx\n"


if __name__ == "__main__":
    OUTPUT.write_text(text(), encoding="utf-8")
