"""Triton's interpreter with what it lacks: kernels in Triton tested on a CPU, bfloat16 included.

The interpreter (``TRITON_INTERPRET=1`` before triton is imported) runs a kernel program by program
on numpy arrays. Some things it computes otherwise than any GPU does:

* float32 becomes bfloat16 or float8 by cutting bits off, or by rounding ties away from zero, and
  what float8 cannot hold wraps round: NaN becomes a number;
* ``tl.dot`` multiplies the *bit patterns* of bfloat16 operands;
* the result of a comparison of scalars becomes a float when it is broadcast;
* ``tl.maximum``, ``tl.minimum`` and ``tl.clamp`` keep a NaN without ``propagate_nan`` too, which
  PTX's ``max`` and ``min`` drop; ``tl.max`` and ``tl.min``, which also drop it, are right;
* ``tl.fma`` rounds its product;
* a scalar that was loaded or computed cannot bound a loop, with a numpy of 2.4 or later;
* numpy warns where a GPU gives an infinity or a NaN.

:func:`repaired` puts in their place what the PTX instructions do: nearest, ties to even, float8
saturating, the operand that is no NaN.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnhub.plugin import Backend, Registry, describe, isolated
from attnhub.testing.conformance import Case, cases
from attnhub.testing.on_cpu import OnCpu

#: Triton's name of a dtype -> torch's; only these are converted here.
_TORCH = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}


def interprets() -> bool:
    """Whether kernels that are defined from now on run in the interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "on")


def missing() -> str:
    """Why no kernel can be interpreted here, or ``""``."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not interprets():
        return "TRITON_INTERPRET=1 was not set before triton was imported: kernels run on the GPU"
    return ""


@contextmanager
def repaired() -> Iterator[None]:
    """While it lasts, the interpreter rounds and multiplies as GPUs do, and does not warn."""
    import numpy as np

    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    convert, dot = interpreter._convert_float, builder.create_dot  # noqa: SLF001
    patch_tensor = interpreter._patch_lang_tensor  # noqa: SLF001

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        wide = [_widened(interpreter, x) for x in (a, b)]
        return dot(self, *wide, d, *rest)

    with (
        pytest.MonkeyPatch.context() as patches,
        np.errstate(all="ignore"),
        warnings.catch_warnings(category=RuntimeWarning, action="ignore"),
    ):
        patches.setattr(interpreter, "_convert_float", lambda *args: _converted(convert, *args))
        patches.setattr(interpreter, "_patch_lang", _once_a_launch(interpreter))
        patches.setattr(interpreter, "_patch_lang_tensor", patch_lang_tensor)
        patches.setattr(builder, "create_dot", create_dot)
        # The others of the builder, create_maximumf and create_minimumf, are those that keep NaN.
        patches.setattr(builder, "create_maxnumf", lambda self, a, b: self.binary_op(a, b, np.fmax))
        patches.setattr(builder, "create_minnumf", lambda self, a, b: self.binary_op(a, b, np.fmin))
        patches.setattr(builder, "create_fma", _fma(interpreter, builder.create_fma))
        patches.setattr(builder, "create_clampf", _clamped(builder.create_clampf))
        for name in dir(builder):
            if name.startswith(("create_icmp", "create_fcmp")):
                patches.setattr(builder, name, _as_bool(interpreter, getattr(builder, name)))
        yield


def _once_a_launch(interpreter: Any) -> Any:
    """Its patching of the language, but not anew for each function that a kernel calls.

    That would take most of the time. Kernels see ``triton.language``, and functions of the language
    see its ``core``.
    """
    import triton.language as tl

    patch, is_patched = interpreter._patch_lang, False  # noqa: SLF001
    everything = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})

    def patch_once(function: Any) -> Any:
        nonlocal is_patched
        if is_patched:
            return None  # only a launch restores
        scope, is_patched = patch(everything), True
        restore = scope.restore

        def restored() -> None:
            nonlocal is_patched
            is_patched = False
            restore()

        scope.restore = restored
        return scope

    return patch_once


def _as_bool(interpreter: Any, compare: Any) -> Any:
    import triton.language as tl

    def compared(self: Any, a: Any, b: Any) -> Any:
        return interpreter.TensorHandle(compare(self, a, b).data, tl.int1)

    return compared


def _fma(interpreter: Any, otherwise: Any) -> Any:
    import numpy as np

    def fma(self: Any, a: Any, b: Any, c: Any) -> Any:
        if c.data.dtype != np.float32:
            return otherwise(self, a, b, c)
        wide = a.data.astype(np.float64) * b.data + c.data
        return interpreter.TensorHandle(wide.astype(np.float32), c.dtype.scalar)

    return fma


def _clamped(propagating: Any) -> Any:
    """``max`` and then ``min``, unless NaN is asked for."""
    import triton.language as tl

    def clamped(self: Any, x: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        if propagate_nan == tl.PropagateNan.ALL:
            return propagating(self, x, low, high, propagate_nan)
        return self.create_minnumf(self.create_maxnumf(x, low), high)

    return clamped


def _converted(otherwise: Any, data: Any, source: Any, target: Any, rounding: Any) -> Any:
    import numpy as np

    if source.name not in _TORCH or target.name not in _TORCH:
        return otherwise(data, source, target, rounding)
    bits = torch.from_numpy(np.ascontiguousarray(data).view(f"i{data.itemsize}").copy())
    wide = bits.view(_TORCH[source.name]).float()
    to = _TORCH[target.name]
    if to.itemsize == 1:
        limit = torch.finfo(to).max
        wide = wide.clamp(-limit, limit)
    found = wide.to(to).view(getattr(torch, f"int{8 * to.itemsize}")).numpy()
    return found.view(f"u{to.itemsize}").reshape(data.shape)


def _widened(interpreter: Any, operand: Any) -> Any:
    """bfloat16 as float32, whose products are exact there as they are in a tensor core."""
    import triton.language as tl

    if operand.dtype.scalar != tl.bfloat16:
        return operand
    data = _converted(None, operand.data, tl.bfloat16, tl.float32, None)
    return interpreter.TensorHandle(data.view("f4"), tl.float32)


@contextmanager
def interpreting(
    backend: str, backends: Iterable[Backend], *, num_sms: int = 0
) -> Iterator[Registry]:
    """While it lasts, the backends of a plugin serve the device "cpu", their kernels interpreted.

    Args:
        backend: the name the backends have.
        backends: those of the plugin's manifest; what they declare of a GPU is asked of the CPU.
        num_sms: how many SMs host sides are told that the device has.

    Yields:
        The registry of the time, without other plugins.

    Raises:
        pytest.skip.Exception: no kernel can be interpreted here; it says why.

    Example::

        with interpreting("mine", manifest.attnhub_backends()), attnhub.use("mine"):
            y = attnhub.norm.rmsnorm(x, weight)
    """
    if why := missing():
        pytest.skip(why)
    cpu = replace(describe("cpu"), num_sms=num_sms)
    with isolated() as registry, repaired(), pytest.MonkeyPatch.context() as patches:
        patches.setattr("attnhub.core.device.CPU", cpu)
        registry.register(OnCpu.of(backends), backend)
        yield registry


def interpreted(
    backend: str, backends: Iterable[Backend], *, op: str = "", pairs: int = 24, seed: int = 0
) -> Any:
    """:func:`attnhub.testing.suite` on the CPU, its kernels interpreted.

    Args:
        backend: as in :func:`interpreting`.
        backends: as there.
        op: one of their ops; default all of them.
        pairs: as in :func:`attnhub.testing.suite`.
        seed: as there.

    Example::

        test_interpreted = interpreted("mine", manifest.attnhub_backends())
    """
    backends = list(backends)
    with isolated() as hub:
        hub.register(OnCpu.of(backends), backend)
        found = list(cases(backend, op=op, pairs=pairs, seed=seed))

    @pytest.mark.parametrize("case", found, ids=[case.id for case in found])
    def test_interpreted(case: Case) -> None:
        with interpreting(backend, backends):
            if why := case.check():
                pytest.skip(why)

    return test_interpreted
