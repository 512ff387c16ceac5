"""The host side in the emulator meets the limits of the GPU that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attnhub.errors import InvalidArgument
from attnhub.plugin import LaunchError, kernel
from attnhub.testing.emulator import EmulatedGpu
from tests.kernels import launch as kernels

Install = Callable[..., Any]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Install:
    """A kernel, loaded on a GPU of a kind."""

    def install(**options: int) -> Any:
        EmulatedGpu(**options).install(monkeypatch)
        return kernel(kernels.scale("sm_90a"))

    return install


@pytest.mark.parametrize(
    ("sm", "kib"),
    [(75, 64), (80, 163), (86, 99), (87, 163), (89, 99), (90, 227), (100, 227), (103, 227),
     (120, 99), (121, 99)],
)  # fmt: skip
def test_shared_memory_of_a_cta(loaded: Install, sm: int, kib: int) -> None:
    found = loaded(sm=sm)
    found.launcher(0, block=32, smem=kib * 1024)
    with pytest.raises(LaunchError, match=rf"smem={kib * 1024 + 1}: .* sm_{sm} takes 0 to"):
        found.launcher(0, block=32, smem=kib * 1024 + 1)
    with pytest.raises(LaunchError, match="smem="):
        found.ctas_per_sm(0, block=32, smem=kib * 1024 + 1)


@pytest.mark.parametrize(
    ("sm", "options", "message"),
    [
        pytest.param(90, {"block": 1056}, "block=1056: .* takes 1 to 1024", id="threads"),
        pytest.param(90, {"block": 0}, "block=0: .* takes 1 to 1024", id="no threads"),
        pytest.param(90, {"smem": -1}, "smem=-1: .* takes 0 to 232448", id="less than none"),
        pytest.param(90, {"cluster": 17}, "cluster=17: .* takes 1 to 16", id="a large cluster"),
        pytest.param(89, {"cluster": 2}, "cluster=2: .* sm_89 takes 1 to 1", id="no clusters"),
    ],
)
def test_other_limits(loaded: Install, sm: int, options: dict[str, int], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        loaded(sm=sm).launcher(0, **{"block": 32} | options)


def test_what_fits_is_taken(loaded: Install) -> None:
    loaded(sm=90).launcher(0, block=1024, smem=227 * 1024, cluster=16)


@pytest.mark.parametrize(
    ("sm", "kib", "ctas"),
    [
        pytest.param(80, 0, 8, id="as many as are told"),
        pytest.param(80, 40, 4, id="164 hold 4 of 40 and 1"),
        pytest.param(80, 41, 3, id="but not of 41 and 1"),
        pytest.param(80, 163, 1, id="all of it"),
        pytest.param(86, 49, 2, id="100 hold 2 of 49 and 1"),
        pytest.param(90, 113, 2, id="228 hold 2 of 113 and 1"),
        pytest.param(75, 32, 2, id="Turing keeps nothing"),
    ],
)
def test_ctas_of_an_sm_share_its_memory(loaded: Install, sm: int, kib: int, ctas: int) -> None:
    assert loaded(sm=sm, ctas_per_sm=8).ctas_per_sm(0, block=32, smem=kib * 1024) == ctas


def test_values_are_refused_as_on_a_gpu(loaded: Install) -> None:
    launch = loaded().launcher(0, block=32)
    with pytest.raises(LaunchError, match=r"kernel 'scale' for sm_90a: n=2\.5 does not fit"):
        launch.bind(1.0, 2.5)
    with pytest.raises(LaunchError, match="8 values for 7 parameters"):
        launch.bind(*range(8))
    with pytest.raises(InvalidArgument, match=r"range\.is_negated=.* does not fit bool"):
        launch(1, 0, 0, 1.0, 2, 3, 0, 2.5, 7)
