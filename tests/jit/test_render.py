"""From spec to source: what a spec refuses, what a template sees, and the text that comes out."""

from __future__ import annotations

import dataclasses
import math
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from attnhub.errors import InvalidArgument, UnknownName
from attnhub.jit import render
from attnhub.jit.spec import KernelSpec, locate
from tests.jit.conftest import DEMO
from tests.jit.fakes import Scale, spec


@dataclasses.dataclass
class Thawed:
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class Holder:
    value: Any


def _with(context: Any, **others: Any) -> KernelSpec:
    return dataclasses.replace(spec(), context=context, **others)


def test_golden_source() -> None:
    made = _with(
        Scale(dtype="__nv_bfloat16", unroll=4, factor=0.5, uses_bf16=True),
        entry="scale_bf16",
        arch="sm_90a",
        flags=("--fmad=false",),
    )
    text = (render.banner(made) + render.render(made)).replace(
        f"attnhub {metadata.version('attnhub')} from", "attnhub VERSION from"
    )
    assert text == (DEMO / "scale_bf16.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        pytest.param(True, "true", id="a bool is no int"),
        pytest.param(-3, "-3", id="a small integer"),
        pytest.param(2**31, "2147483648ll", id="one past int"),
        pytest.param(2**64 - 1, "18446744073709551615ull", id="the last of 64 bits"),
        pytest.param(1e-5, "1e-05f", id="an exponent"),
        pytest.param(1.0, "1.0f", id="a whole float stays a float"),
        pytest.param('a "b"\\\n', '"a \\"b\\"\\\\\\n"', id="a string with all that needs escaping"),
        pytest.param((1, (2.5, False)), "{1, {2.5f, false}}", id="nested tuples"),
    ],
)
def test_literal(value: Any, literal: str) -> None:
    assert render.cpp_literal(value) == literal


@pytest.mark.parametrize("value", [None, math.inf, math.nan, [1], 2**64], ids=str)
def test_no_literal(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="cpp_literal"):
        render.cpp_literal(value)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param({"arch": "sm_90b"}, UnknownName, "sm_90a", id="nearest architecture"),
        pytest.param({"flags": ("-O1",)}, UnknownName, "compiler flag", id="a flag unknown to us"),
        pytest.param({"context": Thawed()}, InvalidArgument, "frozen", id="mutable"),
        pytest.param({"context": {"factor": 1}}, InvalidArgument, "holds a dict", id="a dict"),
        pytest.param({"context": Holder([1])}, InvalidArgument, "holds a list", id="a list"),
        pytest.param({"entry": "demo::scale"}, InvalidArgument, "as C has them", id="a namespace"),
        pytest.param({"entry": ""}, InvalidArgument, "entry=''", id="no name"),
        pytest.param({"context": Holder({1})}, InvalidArgument, "holds a set", id="no fixed order"),
    ],
)
def test_refused_spec(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dataclasses.replace(spec(), **change)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param("a\n{{ factor }} {{ unrol }}\n", "'unrol' is undefined", id="no such field"),
        pytest.param("a\n{% if %}\n", "line 2", id="does not parse"),
        pytest.param("{{ dtype | cpp }}\n", "cpp", id="no such filter"),
    ],
)
def test_bad_template(template: str, message: str, demo_copy: Path) -> None:
    (demo_copy / "templates/scale.cu.jinja").write_text(template)
    with pytest.raises(InvalidArgument, match=message) as raised:
        render.render(spec(package="demo_copy"))
    assert "demo_copy:templates/scale.cu.jinja" in str(raised.value)
    assert "dtype, unroll, factor, uses_bf16" in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param('extern "C" __global__ void scaled(P p) {}', id="a name that begins alike"),
        pytest.param('// extern "C" __global__ void scale(P p) {}', id="in a comment"),
        pytest.param("__global__ void scale(P p) {}", id="a name that C++ mangles"),
        pytest.param(
            'extern "C" __global__ void other(P p) { scale(p); } void scale(P);', id="not a kernel"
        ),
    ],
)
def test_template_without_the_entry(text: str, demo_copy: Path) -> None:
    (demo_copy / "templates/scale.cu.jinja").write_text(text)
    message = (
        r"demo_copy:templates/scale.cu.jinja: .* called 'scale'; write \{\{ entry \}\}\(\.\.\.\)"
    )
    with pytest.raises(InvalidArgument, match=message):
        spec(package="demo_copy").source()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            'extern "C" __global__ void __launch_bounds__(9, 2)\n// of p; {}\n{{ entry }}(P p) {}',
            id="bounds and a comment between",
        ),
        pytest.param('extern "C" {\n__global__ void scale (P p) {}\n}', id="a block of C"),
    ],
)
def test_template_with_the_entry(text: str, demo_copy: Path) -> None:
    (demo_copy / "templates/scale.cu.jinja").write_text(text)
    assert spec(package="demo_copy").source().endswith(text.replace("{{ entry }}", "scale"))


def test_banner_is_one_comment() -> None:
    """Neither a line break nor a backslash at the end of a value may reach into the code."""
    banner = render.banner(_with(Scale(dtype="a\nb\\" + "x" * 200 + "\\")))
    lines = banner.splitlines()
    assert lines.pop() == ""
    assert all(line.startswith("//") and not line.endswith("\\") for line in lines)
    assert max(map(len, lines)) < 110


class Kind(Enum):
    FULL = "full"


@dataclasses.dataclass(frozen=True)
class Inner:
    width: int = 3

    @property
    def area(self) -> int:
        return self.width**2


@pytest.mark.parametrize(
    ("context", "template", "text"),
    [
        pytest.param(Holder(Kind.FULL), "{{ value }}", "full", id="an enum is its value"),
        pytest.param(Holder(Inner()), "{{ value.width }}", "3", id="an inner field"),
        pytest.param(Holder((1, Inner(5))), "{{ value[1].width }}", "5", id="in a tuple"),
        pytest.param(Holder(Inner()), "{{ value.area }}", None, id="code is not in the key"),
    ],
)
def test_what_a_template_sees(
    context: Any, template: str, text: str | None, demo_copy: Path
) -> None:
    kernel_text = 'extern "C" __global__ void scale() {}\n'
    (demo_copy / "templates/scale.cu.jinja").write_text(kernel_text + template)
    kernel = dataclasses.replace(spec(package="demo_copy"), context=context)
    if text is not None:
        assert render.render(kernel) == kernel_text + text
    else:
        with pytest.raises(InvalidArgument, match="area"):
            render.render(kernel)


def test_equal_to_python_is_not_equal_in_cpp() -> None:
    assert len({_with(Holder(value)) for value in (1, 1.0, True)}) == 3
    assert _with(Holder(1)) == _with(Holder(1))


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        pytest.param("nowhere.at.all:x", "no package 'nowhere.at.all'", id="no package"),
        pytest.param("tests.jit.demo:x.jinja", "has no 'x.jinja'", id="no file"),
        pytest.param("json.decoder:x", "no package", id="a module without a folder"),
        pytest.param(":x", "no package ''", id="no name"),
    ],
)
def test_bad_resource(resource: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        locate(resource)
