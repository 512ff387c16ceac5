"""Kernels in Triton by our launcher: what is told apart, what is packed, what comes out."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.kernels import triton_launch
from attnhub.kernels.triton_launch import launch_triton
from attnhub.testing.triton_interpreter import interprets

pytest.importorskip("triton", reason="triton is not installed")
ROOT = Path(__file__).parents[2]
INTS = st.one_of(st.integers(-40, 40), st.integers(-(2**63), 2**63 - 1)).map(
    lambda n: n // 16 * 16 if n % 3 else n
)


def kinds(*args: Any) -> tuple[Any, ...]:
    structure = triton_launch._structure(args)
    return structure, triton_launch._reader(None, structure).read(args)[1]


def of_triton(*args: Any) -> tuple[Any, ...]:
    """What Triton compiles another kernel for."""
    specialize = importlib.import_module("triton.runtime.jit").native_specialize_impl
    compiler = importlib.import_module("triton.backends.nvidia.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    backend = compiler.CUDABackend(target)
    return tuple(specialize(backend, x, False, True, True) for x in args)


STORAGE = torch.zeros(64)
TENSORS = st.sampled_from(
    [STORAGE, STORAGE[1:], STORAGE[4:], STORAGE.half(), torch.nn.Parameter(STORAGE), STORAGE.int()]
)
VALUES = st.recursive(
    st.one_of(INTS, TENSORS, st.none(), st.booleans(), st.floats(allow_nan=False)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


@given(st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=4))
def test_what_triton_tells_apart_is_told_apart(a: list[Any], b: list[Any]) -> None:
    if kinds(*a) == kinds(*b):
        assert of_triton(*a) == of_triton(*b)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 16), (1, 17), (0, 1), (16, 17), (2**31, 2**31 - 16), (1.0, 1), (None, 0), (True, 1)],
)
def test_numbers_that_are_told_apart(one: Any, other: Any) -> None:
    assert kinds(one) != kinds(other)
    assert kinds((one,)) != kinds((other,))


@pytest.mark.parametrize("other", [torch.zeros(2), None, 1.0, True, (3,)])
@pytest.mark.parametrize("read", [3, torch.zeros(2), None, 1.0, (3,)])
def test_arguments_of_another_structure_are_never_taken_for_those(read: Any, other: Any) -> None:
    reader = triton_launch._reader(None, triton_launch._structure((read,)))
    usual = reader.read((read,))[1]
    if type(other) is not type(read):
        # A launch expects these.
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            assert reader.read((other,))[1] != usual


def test_tensors_elsewhere_are_refused() -> None:
    x = torch.zeros(3)
    with pytest.raises(InvalidArgument, match="a tensor is on cpu, the kernel is launched on"):
        triton_launch._check_devices((1, (None, x)), torch.device("cuda:0"))
    triton_launch._check_devices((1, (None, x)), torch.device("cpu"))


def test_what_is_interpreted_triton_launches() -> None:
    cuda = torch.device("cuda:0")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(torch.version, "cuda", "13.0")
        assert not triton_launch._is_direct(SimpleNamespace(warmup=lambda: None), cuda)
        assert triton_launch._is_direct(SimpleNamespace(device_caches={}), cuda)


def test_an_empty_grid_launches_nothing() -> None:
    launch_triton(None, (3, 0), torch.device("cpu"))


def test_what_is_packed() -> None:
    """In a process whose Triton compiles, as it seldom does in tests, and without a C compiler."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT), "PATH": ""}
    command = [sys.executable, "-m", "tests.kernels.test_triton_launch"]
    done = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def check_what_is_packed() -> None:
    from tests.kernels import triton_kernels as kernels

    packed: list[tuple[Any, ...]] = []
    archs: list[str] = []

    class Loaded:
        def __init__(self, image: bytes, entry: Any) -> None:
            assert image[:4] == b"\x7fELF"
            archs.append(next(x for x in ("sm_90a", "sm_80") if x.encode() in image))
            self._kinds = [field.kind for field in entry.params.fields]

        def launcher(self, device: int, **shape: Any) -> Any:
            self._shape = (device, shape)
            return self

        def bind(self, *last: int) -> Any:
            self._bound = last
            return self

        def __call__(self, grid: Any, stream: int, *values: Any) -> None:
            assert len(self._kinds) == len(values) + len(self._bound)
            given = dict(zip(self._kinds, (*values, *self._bound), strict=True))
            packed.append((self._shape, grid, stream, given, len(values)))

    runtime = importlib.import_module("triton.runtime.driver").driver
    assert runtime._active is None
    device = SimpleNamespace(type="cuda", index=3)
    x, out = torch.zeros(1000), torch.zeros(1000)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(torch.version, "cuda", "13.0")
        patches.setattr(torch.cuda, "device", lambda _: triton_launch.nullcontext())
        patches.setattr(triton_launch, "LoadedKernel", Loaded)
        patches.setattr(triton_launch, "stream", lambda index: 70 + index)
        patches.setattr(triton_launch, "_sm", lambda index: {3: 90, 4: 80}[index])
        patches.setattr(triton_launch, "_check_devices", lambda args, device: None)

        def launch(*given: Any, add: bool = True, pdl: bool = True) -> None:
            args = kernels.arguments(x, out, *given, add=add)
            launch_triton(
                kernels.affine, (8,), device, *args, pdl=pdl, BLOCK=kernels.BLOCK, num_warps=2
            )

        launch(None, 1, 7)
        launch(None, 1, 23)  # of the same kind
        launch(x, 4, 16)
        device = SimpleNamespace(type="cuda", index=4)  # another architecture
        launch(None, 1, 7)
    assert runtime._active is None
    assert archs == ["sm_90a", "sm_90a", "sm_80"]
    first, again, other, _ = packed
    shape = (3, {"block": 64, "smem": 0, "pdl": True})
    # None and 1 are compiled in; `count` is not, whatever it is.
    values = {"void*": 0, "i32": 1000, "float": 2.0, "bool": True}  # the last of each kind
    assert first == (shape, (8, 1, 1), 73, values, 6)
    assert again == first
    assert other[-1] == 8  # the bias and its stride too


@pytest.fixture
def kernels() -> Any:
    if interprets():
        pytest.skip("Triton interprets here: TRITON_INTERPRET is set")
    return importlib.import_module("tests.kernels.triton_kernels")


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("gcc") is None, reason="Triton's own launch needs a C compiler")
@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize("size", [1, 1000, 4096])
def test_results_are_those_of_tritons_launch(kernels: Any, size: int, pdl: bool) -> None:
    device = torch.device("cuda:0")
    x, bias = torch.randn(size, device=device), torch.randn(4 * size, device=device)

    def expected(found: Tensor, args: tuple[Any, ...]) -> Tensor:
        found.fill_(torch.nan)
        grid = (-(-size // kernels.BLOCK),)
        kernels.affine[grid](*args, BLOCK=kernels.BLOCK, PDL=False)
        return found.clone()

    def actual(found: Tensor, args: tuple[Any, ...]) -> Tensor:
        found.fill_(torch.nan)
        grid = (-(-size // kernels.BLOCK),)
        if pdl:
            launch_triton(kernels.affine, grid, device, *args, pdl=True, BLOCK=kernels.BLOCK)
        else:
            launch_triton(kernels.affine, grid, device, *args, BLOCK=kernels.BLOCK, PDL=False)
        return found.clone()

    out = torch.empty(size, device=device)
    for more in ((None, 1, 7), (bias, 4, 16), (bias, 1, 2**33), (bias[1:], 3, -5)):
        for add in (False, True):
            args = kernels.arguments(x, out, *more, add=add)
            assert torch.equal(actual(out, args), expected(out, args))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        args = kernels.arguments(x, out, None, 1, 7, add=True)
        assert torch.equal(actual(out, args), expected(out, args))


@pytest.mark.gpu
def test_a_chain_in_a_graph(kernels: Any) -> None:
    """Each reads what the one before wrote: by programmatic launches, only if it waits."""
    device = torch.device("cuda:0")
    a, b = torch.ones(1 << 20, device=device), torch.empty(1 << 20, device=device)

    def step() -> None:
        for source, target in ((a, b), (b, a)) * 8:
            args = kernels.arguments(source, target, None, 1, 1, add=True)
            launch_triton(kernels.affine, (1 << 13,), device, *args, pdl=True, BLOCK=kernels.BLOCK)

    step()
    a.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    a.fill_(1)
    graph.replay()
    assert torch.equal(a, torch.full_like(a, 2.0 * 2**16 - 1))  # y -> 2 y + 1, 16 times


if __name__ == "__main__":
    check_what_is_packed()
