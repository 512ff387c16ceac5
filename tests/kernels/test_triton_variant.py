"""Code of variants for kernels in Triton: what names it in Triton's cache, and what is kept."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attnhub.variant
from attnhub.plugin import TritonVariant
from attnhub.variant import Variant
from attnhub.variant.triton_emitter import emit

triton = pytest.importorskip("triton")
compiler = pytest.importorskip("triton.compiler")

HELPERS = "attnhub.variant.triton_functions"


@triton.jit
def kernel(out_ptr, HOOKS: triton.language.constexpr):
    triton.language.store(out_ptr, HOOKS[0](1.0, 0, 0, 0, 0, ()))


def compiled(function: Any) -> Any:
    """The function as Triton compiles it, where the interpreter has it too."""
    jit = importlib.import_module("triton.runtime.jit").JITFunction
    return function if isinstance(function, jit) else jit(function.fn)


def disk_key(variant: Variant) -> str:
    """What Triton's cache on disk knows a kernel by that takes the functions in a tuple."""
    code = TritonVariant.of(variant, {})
    hooks = (compiled(code.functions["score_mod"]), None)
    signature = {"out_ptr": "*fp32", "HOOKS": "constexpr"}
    source = compiler.ASTSource(compiled(kernel), signature, {"HOOKS": hooks})
    return str(source.hash())


def changed_helpers(folder: Path) -> ModuleType:
    """The helpers as another release may have them: what is emitted does not change."""
    text = inspect.getsource(importlib.import_module(HELPERS))
    file = folder / "triton_functions.py"
    file.write_text(text.replace("0.053968254", "0.05"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(HELPERS, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_other_text_has_another_key_on_disk() -> None:
    assert disk_key(Variant(soft_cap=3.0)) != disk_key(Variant(soft_cap=4.0))


def test_other_helpers_have_another_key_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the same text, but none is in the cache because of another.
    first, second, third = (Variant(soft_cap=5.0, window=(size, 0)) for size in range(3))
    assert emit(first) == emit(second) == emit(third)
    key = disk_key(first)
    with monkeypatch.context() as patches:
        changed = changed_helpers(tmp_path)
        patches.setitem(sys.modules, HELPERS, changed)
        patches.setattr(attnhub.variant, "triton_functions", changed)
        assert disk_key(second) != key
    assert disk_key(third) == key


def texts() -> list[str]:
    return [name for name in linecache.cache if "attnhub.variant.emitted" in name]


def test_texts_are_forgotten_with_the_code() -> None:
    for number in range(1100):
        code = TritonVariant.of(Variant(soft_cap=10.0 + number), {})
    assert len(texts()) == 1024
    assert inspect.getsource(code.functions["score_mod"].fn) in emit(Variant(soft_cap=1109.0))


def test_equal_texts_are_forgotten_one_by_one() -> None:
    """What is used last stays readable when other code of its text goes."""
    one, other = (Variant(soft_cap=7.0, window=(size, 0)) for size in range(2))
    code = TritonVariant.of(one, {}), TritonVariant.of(other, {})
    for number in range(1023):
        TritonVariant.of(one, {})
        TritonVariant.of(Variant(soft_cap=10.0 + number), {})
    assert inspect.getsource(code[0].functions["score_mod"].fn)
    with pytest.raises(OSError, match="source"):
        inspect.getsource(code[1].functions["score_mod"].fn)
