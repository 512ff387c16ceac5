"""CuTe's own layouts, read from its headers and computed with pycute: both in `nvidia-cutlass`.

A layout in a header is a type such as ``Layout<Shape<_4,_8>, Stride<_32,_1>>``. Written as calls it
is Python, and then pycute's Layout evaluates it.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

pycute = pytest.importorskip("pycute", reason="pycute comes with the nvidia-cutlass wheel")


@functools.cache
def _header(path: str) -> str:
    found = importlib.util.find_spec("cutlass_library")
    assert found is not None, "the wheel has pycute but not the headers"
    (root,) = found.submodule_search_locations or []
    return (Path(root) / "source/include/cute" / path).read_text(encoding="utf-8")


def layout(header: str, name: str, *, within: str = "", **constants: int) -> Any:
    """The layout that a header calls ``name``, in the first struct of that specialisation.

    Args:
        header: its path in CuTe, as ``atom/mma_traits_sm80.hpp``.
        name: of the alias.
        within: the struct it is a member of, as ``MMA_Traits<SM80_16x8x16_F16F16F16F16_TN>``.
        constants: the header's template parameters.
    """
    text = _header(header)
    inner = text[text.index(f"struct {within}") :] if within else text
    match = re.search(rf"using\s+{name}\s*=\s*([^;]+);", inner)
    assert match is not None, f"{header} has no {name}"
    source = re.sub(r"\s", "", match[1])
    if re.fullmatch(r"\w+", source):  # an alias of an alias
        return layout(header, source, **constants)
    source = re.sub(r"\b_(\d+)\b", r"\1", source).replace("/", "//")
    source = source.replace("<", "(").replace(">", ")")
    words = {"Layout": pycute.Layout, "Swizzle": pycute.Swizzle, "Int": int, "smem_ptr_flag": 0}
    words |= {"ComposedLayout": pycute.ComposedLayout, "Shape": _tuple, "Stride": _tuple}
    return eval(source, words | constants)


def _tuple(*modes: Any) -> tuple[Any, ...]:
    return modes


def places(
    atom: Any, rows: int, columns: int, *, element_bytes: int, right_first: bool = False
) -> list[list[int]]:
    """The byte where each element ``[rows, columns]`` lies in a tile of GMMA atoms.

    An atom is a layout of bits, and its swizzle one of bytes, as CuTe applies it to the pointer.
    Atoms follow one another down and then right, or right and then down.
    """
    inner, bits = atom.layoutA, 8 * element_bytes
    unit = [bits if stride == 1 else 1 for stride in inner.stride]
    extent = [size // step for size, step in zip(inner.shape, unit, strict=True)]
    tiles = (rows // extent[0], columns // extent[1])
    atoms = pycute.Layout(tiles, (tiles[1], 1) if right_first else (1, tiles[0]))

    def place(row: int, column: int) -> int:
        within = inner(row % extent[0] * unit[0], column % extent[1] * unit[1])
        before = atoms(row // extent[0], column // extent[1]) * inner.size()
        return int(atom.layoutB((before + within) // 8))

    return [[place(row, column) for column in range(columns)] for row in range(rows)]
