"""A launch makes no bool of an object: of a tensor that would wait for its device."""

from __future__ import annotations

import dataclasses
import struct
import types

import pytest

from attnhub.errors import InvalidArgument
from attnhub.jit import Launcher, LoadedKernel, ParamLayout
from attnhub.jit.errors import LaunchError
from tests.jit.fake_driver import Fake
from tests.jit.fakes import OnDevice, spec

PARAMS = ParamLayout({"n": "int", "causal": "bool", "split": "bool", "m": "int"})
REFUSED = r"causal=a OnDevice does not fit bool \(give a bool\)"


@pytest.fixture
def launch(fake_cuda: Fake) -> Launcher:
    fake_cuda.set("parameter size", PARAMS.size)
    kernel = LoadedKernel(b"a cubin", dataclasses.replace(spec(), params=PARAMS))
    return kernel.launcher(0, block=32)


@pytest.mark.parametrize("bound", range(3), ids=lambda n: f"{n} bound")
def test_an_object_is_refused_at_a_launch(launch: Launcher, fake_cuda: Fake, bound: int) -> None:
    values = (1, OnDevice(), True, 2)
    step = launch.bind(*values[4 - bound :])
    with pytest.raises(InvalidArgument, match=REFUSED):
        step(1, 7, *values[: 4 - bound])
    assert fake_cuda.journal("launch") == []


def test_an_object_is_not_bound(launch: Launcher) -> None:
    with pytest.raises(LaunchError, match=REFUSED):
        launch.bind(OnDevice(), True, 2)


def test_too_few_values_are_told_of_as_such(launch: Launcher) -> None:
    with pytest.raises(InvalidArgument, match="0 values for 4 parameters: give n, causal"):
        launch(1, 7)


def test_bools_and_ints_are_taken(launch: Launcher, fake_cuda: Fake) -> None:
    launch(1, 7, 3, 1, False, 4)
    launch.bind(True, 4)(1, 7, 3, 5)
    found = [line.rpartition(" ")[2] for line in fake_cuda.journal("launch")]
    assert found == [struct.pack("<i??xxi", 3, 1, flag, 4).hex() for flag in (False, True)]


def test_a_launch_without_flags_is_packed_by_struct_alone(launch: Launcher) -> None:
    """So that it costs nothing where it is not needed."""
    assert isinstance(launch._pack, types.FunctionType)
    assert isinstance(launch.bind(True, False, 2)._pack, types.BuiltinFunctionType)
