"""What every sampling function checks alike: per-request parameters, rows, random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attnhub.core import check, metadata

Order = Literal["top_k_first", "joint"]

_LARGEST = torch.finfo(torch.float32).max
_SEEDS = 2**63 - 1  # how many seeds a generator chooses from: all that an int64 bound can say


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingParams:
    """How to draw a batch: Python numbers for all of it, or ``[batch]`` tensors.

    Args:
        temperature: >= 0; float32. Divides the logits; 0 takes the largest one, and of equals that
            of the lowest index.
        top_k: >= 1; int32. None keeps all.
        top_p: in (0, 1]; float32. None keeps all.
        min_p: in [0, 1]; float32, of the distribution before ``top_k`` and ``top_p``. None keeps
            all.
        order: ``"top_k_first"``: ``top_p`` looks at what ``top_k`` has left; ``"joint"``: both look
            at the whole distribution.

    Example::

        SamplingParams(temperature=0.7, top_k=50, top_p=0.9)
    """

    temperature: Tensor | float = 1.0
    top_k: Tensor | int | None = None
    top_p: Tensor | float | None = None
    min_p: Tensor | float | None = None
    order: Order = "top_k_first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number per request.

    ``fits`` tells for a Python number and elementwise for a tensor whether it is in ``range``.
    ``unused`` is the number that changes nothing. Code under ``torch.compile`` would be compiled
    anew for each real number, since its ops take them as constants; there it becomes a tensor.
    """

    name: str
    dtype: torch.dtype
    kinds: tuple[type, ...]
    range: str
    fits: Callable[[Any], Any]
    unused: float | None = None

    def take(self, value: Any, batch: int, device: torch.device) -> Any:
        """The checked value as ops take it: a number, a ``[batch]`` tensor, or None if unused."""
        if value is None:
            return None
        if not isinstance(value, Tensor):
            if not isinstance(value, self.kinds) or isinstance(value, bool) or not self.fits(value):
                self._refuse(repr(value), batch)
            if value == self.unused:
                return None
            if torch.compiler.is_compiling() and self.dtype is torch.float32:
                # Multiplied, not filled in: a product is what the compiler can keep symbolic.
                return torch.ones(batch, dtype=torch.float32, device=device) * value
            return value
        if value.shape != (batch,):
            self._refuse(f"a tensor of shape {list(value.shape)}", batch)
        check_per_request(value, self.name, self.dtype, batch, device)
        if device.type == "cpu" and not torch.compiler.is_compiling():
            self._check_values(value, batch)
        return value

    def _check_values(self, value: Tensor, batch: int) -> None:
        fits = self.fits(value)
        if not fits.all():
            at = int((~fits).nonzero()[0])
            self._refuse(f"{value[at].item():g} at [{at}]", batch)

    def _refuse(self, given: str, batch: int) -> None:
        dtype = check.dtype_name(self.dtype)
        check.fail(
            f"{self.name} is {given}, needs a Python number {self.range} for all requests "
            f"or a 1-D {dtype} tensor [{batch}] of such numbers, one per request"
        )


TEMPERATURE = Parameter(
    name="temperature",
    dtype=torch.float32,
    kinds=(int, float),
    range=">= 0 and finite in float32",
    fits=lambda t: (t >= 0) & (t <= _LARGEST),
    unused=1.0,
)
TOP_K = Parameter(
    name="top_k", dtype=torch.int32, kinds=(int,), range=">= 1 (an int)", fits=lambda k: k >= 1
)
TOP_P = Parameter(
    name="top_p",
    dtype=torch.float32,
    kinds=(int, float),
    range="in (0, 1]",
    fits=lambda p: (p > 0) & (p <= 1),
    unused=1.0,
)
MIN_P = Parameter(
    name="min_p",
    dtype=torch.float32,
    kinds=(int, float),
    range="in [0, 1]",
    fits=lambda p: (p >= 0) & (p <= 1),
    unused=0.0,
)


def take_top_k(value: Any, vocab: int, batch: int, device: torch.device) -> Any:
    """``TOP_K.take``, and None where a number keeps the whole row."""
    k = TOP_K.take(value, batch, device)
    return None if isinstance(k, int) and k >= vocab else k


def per_request(start: int, stop: int) -> dict[str, Any]:
    """``flatten`` and ``unflatten`` of a FunctionalOp whose arguments start..stop are parameters.

    A plan's ``run`` takes each as a number, a tensor or None; a torch schema has two arguments for
    it, ``Tensor? name, float? name_value``. So a number never costs a kernel that fills a tensor.
    """
    last = start + 2 * (stop - start)

    def flatten(*args: Any) -> tuple[Any, ...]:
        pairs = [(v, None) if isinstance(v, Tensor) else (None, v) for v in args[start:stop]]
        return (*args[:start], *(half for pair in pairs for half in pair), *args[stop:])

    def unflatten(*flat: Any) -> tuple[Any, ...]:
        tensors, numbers = flat[start:last:2], flat[start + 1 : last : 2]
        values = (n if t is None else t for t, n in zip(tensors, numbers, strict=True))
        return (*flat[:start], *values, *flat[last:])

    return {"flatten": flatten, "unflatten": unflatten}


def check_per_request(
    x: Tensor, name: str, dtype: torch.dtype, batch: int, device: torch.device
) -> None:
    """Require a contiguous ``[batch]`` tensor."""
    check.is_tensor(x, name)
    if x.dtype is not dtype:
        check.dtype(x, name, (dtype,))
    if x.shape != (batch,):
        check.shape(x, name, (batch,))
    if x.device != device:
        check.device(x, name, device, "the input")
    if not x.is_contiguous():
        check.last_contiguous(x, name)
    if x.requires_grad:
        check.no_grad(x)


def check_rows(x: Tensor, name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Require ``[batch, vocab]`` with vocab >= 1."""
    check.is_tensor(x, name)
    if x.dtype not in dtypes:
        check.dtype(x, name, dtypes)
    if x.dim() != 2 or x.shape[1] == 0:
        check.fail(f"{name} has shape {list(x.shape)}, needs [batch, vocab] with vocab >= 1")
    check.last_contiguous(x, name)
    check.no_grad(x)


def check_indices(indices: Tensor, x: Tensor, name: str) -> None:
    """Require int32 ``[batch]`` row numbers of ``x``, by value if they are on the host."""
    metadata.index_tensor(indices, "indices", None)
    if indices.device != x.device:
        check.device(indices, "indices", x.device, name)
    if indices.device.type == "cpu" and not torch.compiler.is_compiling():
        metadata.in_range(indices, "indices", 0, x.shape[0], f"a row of {name}")


def random_state(
    batch: int,
    device: torch.device,
    generator: torch.Generator | None,
    seed: Tensor | None,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Seed and offset of each request, int64 ``[batch]``: those given, or fresh ones."""
    if seed is None and offset is None:
        fresh = _fresh_seeds(batch, device, generator)
        # Requests differ in their seed; the offset may then be anything, so it needs no kernel.
        return fresh, fresh
    if generator is not None:
        check.fail("generator and seed/offset are both given; give one of them")
    if seed is None or offset is None:
        missing = "seed" if seed is None else "offset"
        check.fail(f"{missing} is missing; give seed and offset together, int64 [{batch}] each")
    check_per_request(seed, "seed", torch.int64, batch, device)
    check_per_request(offset, "offset", torch.int64, batch, device)
    return seed, offset


def _fresh_seeds(batch: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        # The argument is left out, not None: with it a compiler cannot keep the batch symbolic.
        return torch.randint(_SEEDS, (batch,), dtype=torch.int64, device=device)
    if not isinstance(generator, torch.Generator):
        check.fail(f"generator is a {type(generator).__name__}, needs a torch.Generator or None")
    if not _serves(generator.device, device):
        check.fail(
            f"generator is on {generator.device}, but the input is on {device}; "
            f"use torch.Generator({str(device)!r})"
        )
    return torch.randint(_SEEDS, (batch,), generator=generator, dtype=torch.int64, device=device)


def _serves(generator: torch.device, device: torch.device) -> bool:
    """Whether it is a generator of ``device``; one without an index is of the current device."""
    return generator.type == device.type and generator.index in (None, device.index)
