"""A kernel that cannot be made or launched: another backend serves, unless this one is required."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path

import pytest

from attnhub.core import options
from attnhub.core.options import Override
from attnhub.jit import CompileError, DriverError, LaunchError, NoCompiler
from attnhub.plugin import Backend
from tests.core.fakes import EVERYTHING, Giving, backend, dispatcher, fixed, problem, told

not_compiling = Giving(
    CompileError(
        kernel="kernel 'k' for sm_80",
        command="nvcc",
        source=Path("failed/k/kernel.cu"),
        error="kernel.cu(9): error: no x\nmore",
        log="",
    )
)
no_compiler = Giving(NoCompiler("no compiler; install NVRTC", {}))
no_driver = Giving(DriverError("no NVIDIA driver: update it\nand more"))
too_large = Giving(LaunchError("smem=400000: a CTA takes 0 to 232448"))


def planner(name: str) -> Backend:
    return backend("wrong", cost=fixed(0.1), load=f"{__name__}:{name}")


KERNELS = [
    pytest.param(
        "not_compiling",
        CompileError,
        "plan() failed: CompileError: kernel 'k' for sm_80 does not compile: kernel.cu(9): error: "
        "no x; this is a defect, so please report it to whoever maintains the kernel, with "
        "failed/k/kernel.cu and the build.log beside it",
        id="compile",
    ),
    pytest.param(
        "no_compiler",
        NoCompiler,
        "plan() failed: NoCompiler: no compiler; install NVRTC",
        id="no compiler",
    ),
    pytest.param(
        "no_driver",
        DriverError,
        "plan() failed: DriverError: no NVIDIA driver: update it",
        id="driver",
    ),
    pytest.param(
        "too_large",
        LaunchError,
        "plan() failed: LaunchError: smem=400000: a CTA takes 0 to 232448",
        id="launch",
    ),
]


@pytest.mark.parametrize(("load", "error", "text"), KERNELS)
def test_a_kernel_that_cannot_be_made_or_launched_sets_the_backend_aside(
    load: str, error: type[Exception], text: str
) -> None:
    d = dispatcher(planner(load), EVERYTHING)

    def twice() -> list[str]:
        return [d.plan(problem("cpu", tokens=n))[0].run() for n in (1, 4096)]

    served, reports = told(twice)
    assert served == ["everything"] * 2
    assert reports == [f"plugin 'fakes': backend 'wrong' set aside: {text}"]
    assert text in str(d.decide(problem("cpu")))


@pytest.mark.parametrize("how", ["argument", "use", "environment"])
@pytest.mark.parametrize(("load", "error", "text"), KERNELS)
def test_a_required_backend_raises_the_error_of_its_kernel_itself(
    load: str, error: type[Exception], text: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = dispatcher(planner(load), EVERYTHING)
    use = options.push(Override(backend="wrong", scope="use"))
    if how == "environment":
        monkeypatch.setattr(options, "environment", lambda: types.SimpleNamespace(backend="wrong"))
    with use if how == "use" else contextlib.nullcontext():
        for _ in range(2):  # nothing is set aside
            with pytest.raises(error):
                d.plan(problem("cpu"), backend="wrong" if how == "argument" else "")


def test_the_only_backend_that_fits_raises_the_error_of_its_kernel_itself() -> None:
    with pytest.raises(LaunchError, match="smem=400000"):
        dispatcher(planner("too_large")).plan(problem("cpu"))
