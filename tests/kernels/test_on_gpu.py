"""The launcher on a GPU: kernels from their source to right numbers, in all ways to launch them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnhub.core.env import environment
from attnhub.errors import InvalidArgument
from attnhub.jit import Launcher
from attnhub.jit.errors import DriverError, LaunchError
from attnhub.kernels import load
from attnhub.plugin import Cache, LoadedKernel, arch, compile_kernels, kernel, stream, tensor_map
from tests.kernels import launch as kernels

pytestmark = pytest.mark.gpu
DEVICE = "cuda:0"
N = 1000
GRID, BLOCK = 8, 128


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """So that kernels are compiled here, and by the compiler of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNHUB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        environment.cache_clear()
        yield
    environment.cache_clear()


def scale_launcher(*, pdl: bool = False, device: int = 0) -> Launcher:
    loaded = kernel(kernels.scale(arch(f"cuda:{device}")))
    return loaded.launcher(device, block=BLOCK, pdl=pdl)


def scale_values(x: Tensor, y: Tensor, factor: float) -> tuple[int | float, ...]:
    """All of x by a factor."""
    return x.data_ptr(), False, 0, len(x), y.data_ptr(), factor, len(x)


def test_values_and_range() -> None:
    x = torch.randn(N, device=DEVICE)
    y = torch.full_like(x, torch.nan)
    scale_launcher()(GRID, stream(0), x.data_ptr(), True, 100, 2**40, y.data_ptr(), 2.5, len(x))
    inside = torch.arange(N, device=DEVICE) >= 100
    assert torch.equal(y, torch.where(inside, -2.5 * x, x))


@pytest.mark.gpu(sm=90)
@pytest.mark.parametrize(
    "ctas",
    [
        pytest.param(2, id="a pair"),
        pytest.param(8, id="the largest that every device has"),
        pytest.param(16, id="one that must be allowed"),
    ],
)
def test_clusters(ctas: int) -> None:
    x = torch.randn(3, ctas, 32, device=DEVICE)
    y = torch.full_like(x, torch.nan)
    loaded = kernel(kernels.pass_left(arch(DEVICE), ctas))
    launch = loaded.launcher(0, block=32, smem=128, cluster=ctas)
    launch(3 * ctas, stream(0), x.data_ptr(), y.data_ptr())
    assert torch.equal(y, x.roll(-1, dims=1))


@pytest.mark.gpu(sm=90)
def test_tma_moves_boxes_and_fills_with_zeros() -> None:
    x = torch.randn(20, 128, device=DEVICE).half()
    y = torch.full((30, 128), torch.nan, device=DEVICE).half()
    # Both maps end inside the last boxes: zeros are read there, and what lies behind y stays.
    maps = [tensor_map(t, (8, 64), swizzle=0).encode() for t in (x, y[:22])]
    loaded = kernel(kernels.copy_boxes(arch(DEVICE)))
    loaded.launcher(0, block=32, smem=1032)((2, 3, 1), stream(0), 7.0, *maps)
    assert y.view(torch.int16)[0, 0] == 7
    y[0, 0] = x[0, 0]
    assert torch.equal(y[:20], x)
    assert (y[20:22] == 0).all()
    assert y[22:].isnan().all()


@pytest.mark.gpu(sm=90)
def test_kernels_that_overlap_still_see_what_comes_before() -> None:
    first = torch.randn(1 << 20, device=DEVICE)
    buffers = [first.clone(), torch.empty_like(first)]
    launch, current = scale_launcher(pdl=True), stream(0)
    for step in range(200):
        x, y = buffers[step % 2], buffers[1 - step % 2]
        launch(len(x) // BLOCK, current, *scale_values(x, y, -1.0 if step % 3 else 2.0))
    expected = first.double() * 2.0**67  # steps 0, 3, ..., 198; the other 133 change the sign
    assert torch.equal(buffers[0].double(), -expected)


@pytest.mark.parametrize("raw", [0, None], ids=["the default stream", "a stream of its own"])
def test_a_thread_that_never_touched_cuda(raw: int | None) -> None:
    x = torch.randn(N, device=DEVICE)
    y = torch.full_like(x, torch.nan)
    own = torch.cuda.Stream(DEVICE)
    launch = scale_launcher()
    torch.cuda.synchronize()
    arguments = (GRID, own.cuda_stream if raw is None else raw, *scale_values(x, y, 3.0))
    thread = threading.Thread(target=launch, args=arguments)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(y, 3.0 * x)


def test_threads_share_a_launcher() -> None:
    x = torch.randn(N, device=DEVICE)
    results = torch.full((8, 50, N), torch.nan, device=DEVICE)
    launch, current = scale_launcher(), stream(0)

    def many(thread: int) -> None:
        for i in range(50):
            launch(GRID, current, *scale_values(x, results[thread, i], float(50 * thread + i)))

    threads = [threading.Thread(target=many, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    factors = torch.arange(400, device=DEVICE, dtype=torch.float32).view(8, 50, 1)
    assert torch.equal(results, factors * x)


def test_a_side_stream_is_the_current_one_inside_its_context() -> None:
    x = torch.zeros(N, device=DEVICE)
    y = torch.full_like(x, torch.nan)
    side = torch.cuda.Stream(DEVICE)
    launch = scale_launcher()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        assert stream(0) == side.cuda_stream
        torch.cuda._sleep(20_000_000)  # what follows in this stream must wait for it
        x.fill_(4.0)
        launch(GRID, stream(0), *scale_values(x, y, 0.5))
    assert stream(0) == torch.cuda.current_stream(DEVICE).cuda_stream != side.cuda_stream
    side.synchronize()
    assert (y == 2.0).all()


@pytest.mark.parametrize("pdl", [False, pytest.param(True, marks=pytest.mark.gpu(sm=90))])
def test_capture_in_a_graph(pdl: bool) -> None:
    """The kernel's first launch of all is captured, so nothing may be left to load by then."""
    spec = dataclasses.replace(kernels.scale(arch(DEVICE)), name=f"captured {pdl}")
    launch = kernel(spec).launcher(0, block=BLOCK, pdl=pdl)
    x = torch.randn(N, device=DEVICE)
    y, z = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(GRID, stream(0), *scale_values(x, y, 2.0))
        launch(GRID, stream(0), *scale_values(y, z, 3.0))
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(z, 6.0 * x)


def test_ctas_per_sm() -> None:
    loaded = kernel(kernels.scale(arch(DEVICE)))
    limit = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
    assert loaded.ctas_per_sm(0, block=BLOCK) > 1
    assert loaded.ctas_per_sm(0, block=BLOCK, smem=limit) == 1
    with pytest.raises(LaunchError, match=f"smem={limit + 1}: .* give 0 to {limit}"):
        loaded.launcher(0, block=BLOCK, smem=limit + 1)
    with pytest.raises(LaunchError, match=f"block=256: .* takes 1 to {BLOCK} threads"):
        loaded.launcher(0, block=256)


def test_the_driver_tells_the_size_of_parameters(tmp_path: Path) -> None:
    spec = kernels.scale(arch(DEVICE))
    [cubin] = compile_kernels([spec], cache=Cache(tmp_path))
    loaded = LoadedKernel(cubin.image, dataclasses.replace(spec, params=kernels.PASS))
    with pytest.raises(LaunchError, match=r"a parameter of 56 bytes, but .* struct of 16"):
        loaded.launcher(0, block=BLOCK)
    with pytest.raises(DriverError, match='no such extern "C" symbol'):
        LoadedKernel(cubin.image, dataclasses.replace(spec, entry="absent"))


def test_a_kernel_for_another_gpu(tmp_path: Path) -> None:
    other = "sm_80" if arch(DEVICE) != "sm_80" else "sm_90a"
    [cubin] = compile_kernels([kernels.scale(other)], cache=Cache(tmp_path))
    with pytest.raises(DriverError, match="made for another architecture"):
        LoadedKernel(cubin.image, cubin.spec).launcher(0, block=BLOCK)


@pytest.mark.parametrize("grid", [0, (1, 65536, 1)])
def test_a_grid_that_the_driver_refuses(grid: int | tuple[int, int, int]) -> None:
    x = torch.zeros(N, device=DEVICE)
    with pytest.raises(InvalidArgument, match="the extents of a grid are 1 to"):
        scale_launcher()(grid, stream(0), *scale_values(x, x, 1.0))


def test_the_default_stream_of_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(N, device="cuda:1")
    y = torch.full_like(x, torch.nan)
    torch.cuda.synchronize("cuda:1")
    launch = scale_launcher(device=1)
    with torch.cuda.device(0):
        launch(GRID, stream(1), *scale_values(x, y, 3.0))
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize("cuda:1")
    assert torch.equal(y, 3.0 * x)


def test_torchs_private_function_is_still_there() -> None:
    """Without it each launch makes a Stream object, which works too, but costs more."""
    assert load.raw_stream is torch._C._cuda_getCurrentRawStream
    assert load._current_stream(0) == stream(0)
