"""What changes a key, and what does not: all content, and nothing but content."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attnhub.errors import InvalidArgument
from attnhub.jit import render
from attnhub.jit.build import compile_kernels
from attnhub.jit.cache import Cache
from attnhub.jit.compilers import locate
from attnhub.jit.fingerprint import content_key, headers, template_key
from tests.jit.fakes import FakeCompiler, spec


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def _header(folder: Path) -> None:
    _append(folder / "include/demo/scale.cuh", "// more\n")


def _inner_header(folder: Path) -> None:
    _append(folder / "include/demo/index.cuh", "// more\n")


def _same_size_and_time(folder: Path) -> None:
    """An edit that keeps the size; only the time tells."""
    path = folder / "include/demo/index.cuh"
    path.write_text(path.read_text().replace("unroll", "UNROLL"))


def _template(folder: Path) -> None:
    _append(folder / "templates/scale.cu.jinja", "// more\n")


@pytest.mark.parametrize("edit", [_header, _inner_header, _same_size_and_time, _template])
def test_edit_rebuilds(
    edit: Callable[[Path], None], demo_copy: Path, cache: Cache, fake: FakeCompiler
) -> None:
    kernel = spec(package="demo_copy")
    [first] = compile_kernels([kernel], cache=cache, compiler=fake)
    [again] = compile_kernels([kernel], cache=cache, compiler=fake)
    assert (first.cached, again.cached) == (False, True)
    edit(demo_copy)
    [after] = compile_kernels([kernel], cache=cache, compiler=fake)
    assert not after.cached
    assert after.key != first.key


def test_every_part_is_in_the_key(cache: Cache, tmp_path: Path) -> None:
    kernels = [
        spec(),
        spec(3.0),
        spec(arch="sm_90"),
        spec(arch="sm_90a"),
        spec(flags=("--fmad=false",)),
    ]
    keys = set()
    for tag in ("fake-1", "fake-2"):
        compiler = FakeCompiler(journal=tmp_path / tag, tag=tag)
        made = compile_kernels(kernels, cache=cache, compiler=compiler)
        assert not any(cubin.cached for cubin in made)
        keys |= {cubin.key for cubin in made}
    assert len(keys) == 2 * len(kernels)
    assert len({key.partition(".")[0] for key in keys}) == len(kernels)


def test_place_and_name_are_not_content(demo_copy: Path) -> None:
    body = render.render(spec())
    assert content_key(spec(), body) == content_key(spec(package="demo_copy", name="else"), body)
    assert template_key(spec()) == template_key(spec(arch="sm_90a"))


def test_equal_content_is_built_once(cache: Cache, fake: FakeCompiler) -> None:
    made = compile_kernels([spec(), spec(name="other"), spec()], cache=cache, compiler=fake)
    assert [cubin.spec.name for cubin in made] == ["scale", "other", "scale"]
    assert len({cubin.key for cubin in made}) == 1
    assert fake.built() == ["2.0"]


def test_headers_are_followed(demo_copy: Path) -> None:
    include = demo_copy / "include"
    (include / "demo/loop.cuh").write_text('#if 0\n#  include "loop.cuh"\n#endif\n')
    source = "#include <cuda_fp16.h>\n #include <demo/scale.cuh>\n#include <demo/loop.cuh>\n"
    found = headers(source, [include])
    assert sorted(found) == ["0/demo/index.cuh", "0/demo/loop.cuh", "0/demo/scale.cuh"]


def test_new_header_in_front_counts(demo_copy: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "front", demo_copy / "include"]
    before = headers("#include <demo/scale.cuh>\n", folders)
    shutil.copytree(demo_copy / "include", folders[0])
    assert headers("#include <demo/scale.cuh>\n", folders) != before


def test_macro_include_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="`#include HEADER` names no file"):
        headers("#include HEADER\n", [])


def test_compiler_build_is_content(tmp_path: Path) -> None:
    """A compiler of the same name and size but another build, and one that merely moved."""
    first, second = tmp_path / "a/libnvrtc.so", tmp_path / "b/libnvrtc.so"
    for path in (first, second):
        path.parent.mkdir()
        path.write_bytes(b"build one" + bytes(1 << 18))
    os.utime(second, (0, 0))
    assert locate.build_of([first]) == locate.build_of([second])
    second.write_bytes(b"build two" + bytes(1 << 18))
    assert locate.build_of([first]) != locate.build_of([second])
    assert locate.build_of([first], text="headers") != locate.build_of([first])
