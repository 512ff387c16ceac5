"""The layout of a parameter struct; tests/kernels/test_emulated.py holds it against a compiler."""

from __future__ import annotations

import dataclasses
import pickle
import re
import struct
from typing import Any

import pytest

from attnhub.errors import InvalidArgument
from attnhub.jit.params import ParamLayout
from tests.jit.fakes import OnDevice, spec

INNER = ParamLayout({"flag": "bool", "count": "i64"})
OUTER = ParamLayout({"a": "bool", "inner": INNER, "b": "int", "p": "const ns::T<int, 2>*"})


def test_every_type_has_its_place() -> None:
    names = "bool int i32 u32 i64 u64 float double".split()
    layout = ParamLayout({f"{name}_": name for name in names} | {"p": "Half *", "last": "bool"})
    assert [field.offset for field in layout.fields] == [0, 4, 8, 12, 16, 24, 32, 40, 48, 56]
    assert (layout.size, layout.alignment) == (64, 8)
    values = [True, -1, -(2**31), 2**32 - 1, -(2**63), 2**64 - 1, 0.1, 0.1, 2**63 + 5, False]
    by_hand = struct.pack("<?3xiiIqQf4xdQ?7x", *values)
    assert layout.pack(values) == by_hand


def test_an_inner_struct_keeps_its_own_alignment_and_padding() -> None:
    assert [(field.name, field.offset) for field in OUTER.fields] == [
        ("a", 0),
        ("inner.flag", 8),
        ("inner.count", 16),
        ("b", 24),
        ("p", 32),
    ]
    assert OUTER.size == 40
    assert OUTER.pack([1, 0, 7, 8, 9]) == struct.pack("<?7x?7xqi4xQ", 1, 0, 7, 8, 9)


def test_structs_in_structs() -> None:
    deep = ParamLayout({"c": "int", "outer": OUTER})
    assert [field.name for field in deep.fields][2] == "outer.inner.flag"
    assert [field.offset for field in deep.fields] == [0, 8, 16, 24, 32, 40]


def test_tensor_maps_are_aligned() -> None:
    layout = ParamLayout({"n": "int", "x": "ptx::TensorMap", "y": "TensorMap", "m": "int"})
    assert [field.offset for field in layout.fields] == [0, 64, 192, 320]
    assert (layout.size, layout.alignment) == (384, 64)
    packed = layout.pack([1, b"x" * 128, b"y" * 128, 2])
    assert packed[64:320] == b"x" * 128 + b"y" * 128


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"a": 1, "inner": {"flag": 2, "count": 3}, "b": 4, "p": 5}, id="as a mapping"),
        pytest.param(
            {"p": 5, "b": 4, "inner.count": 3, "inner.flag": 2, "a": 1}, id="by full name"
        ),
    ],
)
def test_values_by_name(values: dict[str, Any]) -> None:
    assert OUTER.ordered(values) == [1, 2, 3, 4, 5]


def test_names_that_do_not_fit_are_listed() -> None:
    with pytest.raises(InvalidArgument, match=r"\['inner\.count', 'inner\.size'\] are missing or"):
        OUTER.ordered({"a": 1, "inner": {"flag": 2, "size": 3}, "b": 4, "p": 5})


@pytest.mark.parametrize(
    ("values", "error"),
    [
        pytest.param([1, 2, 3], r"3 values for 5 parameters: give a, inner\.flag, ", id="too few"),
        pytest.param([1, 0, 2**63, 8, 9], r"inner\.count=9223372036854775808 does", id="too large"),
        pytest.param([1, 0, 7, 8.5, 9], r"b=8\.5 does not fit int", id="a float"),
        pytest.param([1, 0, 7, 8, None], r"p=None .*tensor\.data_ptr\(\)", id="no address"),
        pytest.param([1, 0, 7, 8, "x"], r"p='x' .*tensor\.data_ptr\(\)", id="no number"),
    ],
)
def test_values_that_do_not_fit(values: list[Any], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        OUTER.pack(values)


@pytest.mark.parametrize(
    "kind", [*"bool int i32 u32 i64 u64 float double TensorMap".split(), "const float*"]
)
def test_no_number_is_made_of_an_object(kind: str) -> None:
    layout = ParamLayout({"x": kind})
    with pytest.raises(InvalidArgument, match=rf"x=a OnDevice does not fit {re.escape(kind)} \("):
        layout.pack([OnDevice()])


@pytest.mark.parametrize("value", [1.0, "yes", None])
def test_a_flag_is_a_bool_or_an_int(value: object) -> None:
    flag = ParamLayout({"x": "bool"})
    assert [flag.pack([x]) for x in (True, False, 1, 0, 7)] == [b"\1", b"\0", b"\1", b"\0", b"\1"]
    with pytest.raises(InvalidArgument, match=rf"x={value!r} does not fit bool \(give a bool\)"):
        flag.pack([value])


def test_a_struct_without_members_takes_a_byte() -> None:
    """As the parameters of a variant that has none."""
    nothing = ParamLayout({})
    assert (nothing.size, nothing.pack([])) == (1, b"\0")
    layout = ParamLayout({"n": "int", "variant": nothing, "x": "bool"})
    assert [(field.name, field.offset) for field in layout.fields] == [("n", 0), ("x", 5)]
    assert layout.ordered({"n": 1, "variant": {}, "x": True}) == [1, True]


def test_refuses_a_type_of_unknown_size() -> None:
    with pytest.raises(InvalidArgument, match="field 'n' has type 'size_t': give a pointer, Ten"):
        ParamLayout({"n": "size_t"})


def test_layouts_are_values() -> None:
    same = ParamLayout({"a": "bool", "inner": INNER, "b": "int", "p": "const ns::T<int, 2>*"})
    assert same == OUTER
    assert hash(same) == hash(OUTER)
    assert pickle.loads(pickle.dumps(OUTER)) == OUTER
    # The same fields in the same places, but the inner struct is not padded to the same end.
    assert ParamLayout({"s": ParamLayout({"x": "i64", "y": "int"})}) != ParamLayout(
        {"s": ParamLayout({"x": "i64", "y": "float"})}
    )


def test_a_spec_with_other_parameters_is_another_spec() -> None:
    other = dataclasses.replace(spec(), params=ParamLayout({"data": "float*", "size": "i64"}))
    assert other != spec()
    assert len({other, spec()}) == 2
