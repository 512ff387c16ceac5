"""The launcher against a fake libcuda that reads its structs by CUDA's own header."""

from __future__ import annotations

import dataclasses
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from attnhub.errors import InvalidArgument
from attnhub.jit import driver
from attnhub.jit.driver import Driver
from attnhub.jit.errors import DriverError, LaunchError
from attnhub.jit.launcher import LoadedKernel
from attnhub.jit.params import ParamLayout
from attnhub.jit.spec import EntryPoint
from tests.jit import fake_driver
from tests.jit.fake_driver import CONTEXT, KERNEL, LIBRARY, Fake
from tests.jit.fakes import spec
from tests.kernels import launch as kernels

SCALE = kernels.scale("sm_90a")
STREAM = 0x7F12_3456_7890
VALUES = (0x7F00_0000_0010, True, 2**40, 2**41, 0x7F00_0000_0020, 2.5, 2**32 - 1)
PACKED = struct.pack("<Q?7xqqQdI4x", *VALUES)


def load(fake: Fake, params: ParamLayout = SCALE.params) -> LoadedKernel:
    fake.set("parameter size", params.size)
    return LoadedKernel(b"a cubin", dataclasses.replace(SCALE, params=params))


def test_loading_names_the_entry_and_forces_it_into_the_context(fake_cuda: Fake) -> None:
    load(fake_cuda).launcher(0, block=128)
    assert fake_cuda.journal() == [
        "init 0",
        "load a cubin 0 0",
        f"kernel {LIBRARY:x} scale",
        "retain 0",
        f"push {CONTEXT:x}",
        f"function {KERNEL:x} in {CONTEXT:x}",
        f"parameter 0 in {CONTEXT:x}",
    ]


@pytest.mark.parametrize("grid", [7, (7, 1, 1), (3, 65535, 2)])
def test_what_is_launched(fake_cuda: Fake, grid: Any) -> None:
    load(fake_cuda).launcher(0, block=96, smem=1000)(grid, STREAM, *VALUES)
    x, y, z = grid if isinstance(grid, tuple) else (grid, 1, 1)
    [line] = fake_cuda.journal("launch")
    told, _, parameters = line.partition(" with ")
    shape = f"grid {x} {y} {z} block 96 1 1 smem 1000"
    assert told == f"launch {KERNEL:x} {shape} stream {STREAM:x} in 0"
    assert parameters == PACKED.hex()


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_parameters_each_by_itself(fake_cuda: Fake, bound: int) -> None:
    """As kernels take them that others compiled; a struct's size is not asked for."""
    params = ParamLayout({"x": "void*", "small": "i32", "n": "i32", "gain": "float"})
    fake_cuda.set("parameters", 4)
    fake_cuda.set("parameter size", 4)
    loaded = LoadedKernel(b"a cubin", EntryPoint(name="axpy", entry="axpy", params=params))
    values = (0x12345678, -2, 7, 0.5)
    launch = loaded.launcher(0, block=64).bind(*values[4 - bound :])
    launch(3, STREAM, *values[: 4 - bound])
    [line] = fake_cuda.journal("launch")
    assert line.partition(" with ")[2] == "78563412 feffffff 07000000 0000003f"
    assert not fake_cuda.journal("parameter")
    with pytest.raises(InvalidArgument, match=r"kernel 'axpy': .* values for .* parameters"):
        launch(3, STREAM, *values, 1)


@pytest.mark.parametrize("count", range(len(VALUES) + 1))
def test_the_last_values_may_be_bound(fake_cuda: Fake, count: int) -> None:
    first, last = VALUES[: len(VALUES) - count], VALUES[len(VALUES) - count :]
    launch = load(fake_cuda).launcher(0, block=96)
    bound = launch.bind(*last)
    launch(2, STREAM, 1, False, 2, 3, 4, 5.0, 6)  # has a buffer of its own
    bound((7, 2, 3), STREAM, *first)
    told, _, parameters = fake_cuda.journal("launch")[-1].partition(" with ")
    assert "grid 7 2 3 block 96 1 1" in told
    assert parameters == PACKED.hex()


@pytest.mark.parametrize(
    ("bound", "values", "error"),
    [
        ((2.5, 1), VALUES, "7 values for 5 parameters: give x, range.is_negated, "),
        ((2.5, 1), (*VALUES[:4], 0.5), r"y=0\.5 does not fit"),
    ],
)
def test_wrong_values_after_bound_ones(
    fake_cuda: Fake, bound: Any, values: Any, error: str
) -> None:
    launch = load(fake_cuda).launcher(0, block=32).bind(*bound)
    with pytest.raises(InvalidArgument, match=error):
        launch(1, STREAM, *values)


@pytest.mark.parametrize(
    ("bound", "error"),
    [
        ((1, 2.5), r"n=2\.5 does not fit"),
        ((1, *VALUES), "8 values for 7 parameters"),
    ],
)
def test_wrong_bound_values(fake_cuda: Fake, bound: Any, error: str) -> None:
    with pytest.raises(LaunchError, match=error):
        load(fake_cuda).launcher(0, block=32).bind(*bound)


def test_tensor_maps_arrive_whole_and_aligned(fake_cuda: Fake) -> None:
    x, y = bytes(range(128)), bytes(range(128, 256))
    launch = load(fake_cuda, kernels.COPY).launcher(0, block=32)
    launch(1, STREAM, 0.5, x, y)
    expected = struct.pack("<f60x", 0.5) + x + y
    [line] = fake_cuda.journal("launch")
    assert line.endswith(f" with {expected.hex()}")


def test_values_of_one_launch_do_not_stay_for_the_next(fake_cuda: Fake) -> None:
    launch = load(fake_cuda).launcher(0, block=32)
    launch((2, 3, 4), STREAM, *VALUES)
    launch(1, STREAM + 1, *(0,) * len(VALUES))
    line = fake_cuda.journal("launch")[1]
    assert f"grid 1 1 1 block 32 1 1 smem 0 stream {STREAM + 1:x}" in line
    assert line.endswith("with " + "00" * SCALE.params.size)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param({}, "", id="neither"),
        pytest.param({"cluster": 2}, " cluster 2 1 1", id="cluster"),
        pytest.param({"pdl": True}, " pdl 1", id="pdl"),
        pytest.param({"cluster": 4, "pdl": True}, " cluster 4 1 1 pdl 1", id="both"),
    ],
)
def test_launch_attributes(fake_cuda: Fake, options: dict[str, Any], told: str) -> None:
    load(fake_cuda).launcher(0, block=32, **options)(8, STREAM, *VALUES)
    [line] = fake_cuda.journal("launch")
    assert line.partition(" in 0")[2].partition(" with ")[0] == told


def test_shared_memory_is_allowed_once_for_each_device_and_never_lowered(fake_cuda: Fake) -> None:
    fake_cuda.set("devices", 2)
    kernel = load(fake_cuda)
    kernel.launcher(0, block=32, smem=48 * 1024 - 1024)
    assert fake_cuda.journal("set") == []
    for smem in (100_000, 90_000, 100_000, 231_424):
        kernel.launcher(0, block=32, smem=smem)
        kernel.launcher(0, block=64, smem=smem)
    kernel.launcher(1, block=32, smem=100_000)
    assert fake_cuda.journal("set") == [
        f"set 8 to 100000 for {KERNEL:x} on 0",
        f"set 8 to 231424 for {KERNEL:x} on 0",
        f"set 8 to 100000 for {KERNEL:x} on 1",
    ]


@pytest.mark.parametrize(
    ("cluster", "asked"), [(8, []), (16, [f"set 14 to 1 for {KERNEL:x} on 0"])]
)
def test_large_clusters_are_allowed_first(fake_cuda: Fake, cluster: int, asked: list[str]) -> None:
    load(fake_cuda).launcher(0, block=32, cluster=cluster)(16, STREAM, *VALUES)
    assert fake_cuda.journal("set") == asked


def test_equal_launchers_are_one(fake_cuda: Fake) -> None:
    kernel = load(fake_cuda)
    assert kernel.launcher(0, block=32) is kernel.launcher(0, block=32, smem=0, cluster=1)
    assert kernel.launcher(0, block=32) is not kernel.launcher(0, block=32, pdl=True)


def test_ctas_per_sm_is_asked_in_the_context_of_the_device(fake_cuda: Fake) -> None:
    fake_cuda.set("devices", 2)
    assert load(fake_cuda).ctas_per_sm(1, block=256, smem=70_000) == 3
    assert fake_cuda.journal("set 8 to 70000")
    assert fake_cuda.journal("occupancy") == [
        f"occupancy of {KERNEL:x} with 256 and 70000 in {CONTEXT + 1:x}"
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param(
            {"smem": 231_425}, r"smem=231425: .* 1024 bytes of static .* 232448 in all; give 0 to "
            "231424", id="a byte too much",
        ),
        pytest.param({"smem": -1}, "smem=-1: .* give 0 to 231424", id="less than none"),
        pytest.param({"block": 1025}, "block=1025: .* takes 1 to 1024", id="threads"),
        pytest.param({"block": 0}, "block=0: .* takes 1 to 1024 threads", id="no threads"),
        pytest.param({"cluster": 17}, "cluster=17: .* takes 1 to 16 CTAs", id="a large cluster"),
    ],
)  # fmt: skip
def test_more_than_a_device_has(fake_cuda: Fake, options: dict[str, int], error: str) -> None:
    with pytest.raises(LaunchError, match=error):
        load(fake_cuda).launcher(0, **{"block": 32} | options)


@pytest.mark.parametrize(
    ("grid", "error"),
    [
        pytest.param(0, r"grid=\(0, 1, 1\), .*extents of a grid are 1 to \(2147483647", id="none"),
        pytest.param((1, 65536, 1), r"grid=\(1, 65536, 1\).* 65535, 65535\)", id="too many"),
        pytest.param(7, "grid=.* multiple of cluster", id="half a cluster"),
    ],
)
def test_the_driver_refuses_a_grid_and_we_say_why(fake_cuda: Fake, grid: Any, error: str) -> None:
    launch = load(fake_cuda).launcher(0, block=32, cluster=2)
    fake_cuda.set("cuLaunchKernelEx", 1)
    with pytest.raises(InvalidArgument, match=error):
        launch(grid, STREAM, *VALUES)


@pytest.mark.parametrize(
    ("grid", "stream", "values", "error"),
    [
        pytest.param(1, 0, VALUES[:-1], "6 values for 7 parameters: give x, range.is", id="few"),
        pytest.param(1, 0, (*VALUES, 1), "8 values for 7 parameters", id="one too many"),
        pytest.param(1, 0, ("x", *VALUES[1:]), r"x='x' does not fit const float\*", id="type"),
        pytest.param([1], 0, VALUES, r"grid=\[1\], stream=0", id="a list for a grid"),
        pytest.param(-1, 0, VALUES, r"grid=-1, stream=0", id="a negative grid"),
        pytest.param(1, None, VALUES, r"grid=1, stream=None", id="no stream"),
        pytest.param((1, 2), 0, VALUES, r"grid=\(1, 2\)", id="two extents"),
    ],
)
def test_wrong_calls(fake_cuda: Fake, grid: Any, stream: Any, values: Any, error: str) -> None:
    launch = load(fake_cuda).launcher(0, block=32)
    with pytest.raises(InvalidArgument, match=f"kernel 'scale' for sm_90a: {error}"):
        launch(grid, stream, *values)
    assert fake_cuda.journal("launch") == []


@pytest.mark.parametrize(
    ("function", "status", "error"),
    [
        pytest.param(
            "cuLaunchKernelEx", 1,
            r"cuLaunchKernelEx failed for kernel 'scale' for sm_90a with grid=\(1, 1, 1\), .*: "
            r"CUDA_ERROR_INVALID_VALUE \(invalid argument\)$", id="launch",
        ),
        pytest.param(
            "cuKernelGetFunction", 209,
            r"cuKernelGetFunction failed for .* on cuda:0: CUDA_ERROR_NO_BINARY_FOR_GPU .*; the "
            r"kernel is made for another architecture", id="another architecture",
        ),
        pytest.param("cuLibraryGetKernel", 500, 'no such extern "C" symbol', id="no such entry"),
        pytest.param("cuLaunchKernelEx", 700, "a kernel before this one went wrong", id="sticky"),
        pytest.param("cuLibraryLoadData", 4321, r"CUDA error 4321 \(unknown to", id="unknown"),
    ],
)  # fmt: skip
def test_what_the_driver_refuses(fake_cuda: Fake, function: str, status: int, error: str) -> None:
    fake_cuda.set(function, status)
    with pytest.raises(DriverError, match=error) as raised:
        load(fake_cuda).launcher(0, block=32)(1, STREAM, *VALUES)
    assert (raised.value.call, raised.value.status) == (function, status)


def test_a_device_that_is_not_there(fake_cuda: Fake) -> None:
    with pytest.raises(DriverError, match=r"cuDevicePrimaryCtxRetain failed for cuda:1: .* index"):
        load(fake_cuda).launcher(1, block=32)


@pytest.mark.parametrize("size", [48, 64], ids=["shorter", "longer"])
def test_a_layout_that_is_not_the_kernels(fake_cuda: Fake, size: int) -> None:
    fake_cuda.set("parameter size", size)
    kernel = LoadedKernel(b"a cubin", SCALE)
    with pytest.raises(LaunchError, match=rf"of {size} bytes, but .* struct of 56: make"):
        kernel.launcher(0, block=32)


@pytest.mark.parametrize("status", [1, 201], ids=["invalid value", "no context"])
def test_a_driver_that_does_not_tell_the_size_of_parameters(fake_cuda: Fake, status: int) -> None:
    """It refused before torch had touched CUDA, which was taken for a kernel without parameters."""
    fake_cuda.set("cuKernelGetParamInfo", status)
    load(fake_cuda).launcher(0, block=32)(1, STREAM, *VALUES)
    assert len(fake_cuda.journal("launch")) == 1


def test_the_size_of_parameters_is_asked_for_in_a_context(fake_cuda: Fake) -> None:
    load(fake_cuda)
    assert fake_cuda.journal("parameter") == []
    load(fake_cuda).launcher(0, block=32)
    assert fake_cuda.journal("parameter") == [f"parameter 0 in {CONTEXT:x}"]


def test_no_driver() -> None:
    with pytest.raises(DriverError, match=r"no NVIDIA driver: libno-such-cuda.*emulator") as raised:
        Driver("libno-such-cuda.so.1")
    assert "\n" not in str(raised.value)


def test_a_driver_that_finds_no_device(fake_cuda: Fake) -> None:
    fake_cuda.set("cuInit", 100)
    with pytest.raises(DriverError, match=r"CUDA error 100 .*; check nvidia-smi and CUDA_"):
        driver.get()


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    fake = fake_driver.make(tmp_path, "FAKE_IS_OLD")
    fake.set("version", 11080)
    with pytest.raises(DriverError, match=r"CUDA 11\.8 and has no cuLibraryLoadData; .* 12\.0 or"):
        Driver(fake.library).load(b"a cubin", "a kernel")


def test_a_driver_that_cannot_tell_the_size_of_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_cuda: Fake
) -> None:
    (tmp_path / "older").mkdir()
    fake = fake_driver.make(tmp_path / "older", "FAKE_HAS_NO_PARAM_INFO")
    monkeypatch.setattr(driver, "_LIBRARY", fake.library)
    load(fake).launcher(0, block=32)(1, STREAM, *VALUES)
    assert len(fake.journal("launch")) == 1


def _contexts(fake: Fake) -> list[str]:
    return [line.partition(" in ")[2].split()[0] for line in fake.journal("launch")]


@pytest.fixture
def current(fake_cuda: Fake) -> Iterator[int]:
    """Another device's context is this thread's."""
    fake_cuda.set("devices", 2)
    with driver.get().current(1):
        yield CONTEXT + 1


def test_a_thread_without_a_context_gets_that_of_the_device(fake_cuda: Fake) -> None:
    launch = load(fake_cuda).launcher(0, block=32)
    thread = threading.Thread(target=launch, args=(1, 0, *VALUES))
    thread.start()
    thread.join()
    launch(1, STREAM, *VALUES)  # a stream knows its own
    assert _contexts(fake_cuda) == [f"{CONTEXT:x}", "0"]


def test_the_default_stream_is_that_of_the_launchers_device(fake_cuda: Fake, current: int) -> None:
    launch = load(fake_cuda).launcher(0, block=32)
    for stream in (0, STREAM, 0):
        launch(1, stream, *VALUES)
    assert _contexts(fake_cuda) == [f"{CONTEXT:x}", f"{current:x}", f"{CONTEXT:x}"]
    assert len(fake_cuda.journal("retain 0")) == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_a_context_of_the_device_is_not_changed(fake_cuda: Fake, devices: int) -> None:
    fake_cuda.set("devices", devices)
    launch = load(fake_cuda).launcher(0, block=32)
    with driver.get().current(0):
        pushed = len(fake_cuda.journal("push"))
        launch(1, 0, *VALUES)
        assert len(fake_cuda.journal("push")) == pushed
    assert _contexts(fake_cuda) == [f"{CONTEXT:x}"]


def test_threads_share_a_launcher(fake_cuda: Fake) -> None:
    """Each launch carries the grid, the stream and the values of one call, and none is lost."""
    launch = load(fake_cuda).launcher(0, block=32)

    def many(thread: int) -> None:
        for i in range(300):
            n = 1000 * thread + i
            launch(n + 1, STREAM + n, n, 0, n, n, n, float(n), n)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(many, range(8)))
    seen = set()
    for line in fake_cuda.journal("launch"):
        words = line.split()
        n = int(words[3]) - 1
        seen.add(n)
        assert int(words[words.index("stream") + 1], 16) == STREAM + n
        assert bytes.fromhex(words[-1]) == SCALE.params.pack([n, 0, n, n, n, float(n), n])
    assert seen == {1000 * thread + i for thread in range(8) for i in range(300)}


def test_a_launcher_outlives_nothing_it_needs(fake_cuda: Fake) -> None:
    """All buffers that the driver reads belong to the launcher alone."""
    launches = []
    for i in range(50):
        fake_cuda.set("parameter size", 16)
        kernel = LoadedKernel(b"a cubin", dataclasses.replace(spec(), name=str(i)))
        launches.append(kernel.launcher(0, block=32, cluster=2, pdl=True))
        del kernel
    garbage = [bytes(range(256)) * 4 for _ in range(2000)]
    for i, launch in enumerate(launches):
        launch(2, STREAM, i, i)
    lines = fake_cuda.journal("launch")
    assert len(lines) == 50
    for i, line in enumerate(lines):
        assert " cluster 2 1 1 pdl 1 with " + struct.pack("<Qi4x", i, i).hex() in line
    assert len(garbage) == 2000
