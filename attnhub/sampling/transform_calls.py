"""Calls of softmax, renormalisation, masking and top-k for any of their problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnhub.core.calls import Calls, Run, spaced
from attnhub.core.device import Device
from attnhub.sampling import transform
from attnhub.sampling.calls import BASE, refused_rows, two_rows
from attnhub.sampling.problem import (
    SoftmaxProblem,
    TopKMaskLogitsProblem,
    TopKProblem,
    TopKRenormProblem,
    TopPRenormProblem,
)

#: A setting for each row of :func:`_rows`.
_HEATS = (0.5, 0.0, 1.5, 1.0, 0.25, 2.0, 1.0, 0.0, 1.0, 0.5)
_TOP_KS = (4, 2, 3, 1, 5, 10**6, 1, 2, 3, 4)
_TOP_PS = (0.8, 0.6, 0.9, 0.5, 1.0, 1.0, 0.9, 0.9, 1.0, 0.5)


def _rows(
    problem: Any, device: torch.device, generator: torch.Generator, *, logits: bool
) -> Tensor:
    """``[10, vocab]``: two rows with a few likely tokens, all tokens alike, one alone, two random.

    The last four cannot be sampled.
    """
    vocab = problem.vocab
    flat, alone = torch.ones(1, vocab), torch.zeros(1, vocab)
    alone[0, vocab // 3] = 2.0
    drawn = torch.randn(2, vocab, generator=generator).exp()
    good = torch.cat([two_rows(vocab), flat, alone, drawn])
    rows = torch.cat([good.log() if logits else good, refused_rows(vocab, logits=logits)])
    return rows.to(device, getattr(torch, getattr(problem, "dtype", "float32")))


def _ways(
    call: Callable[..., Tensor],
    x: Tensor,
    settings: Sequence[Any],
    *,
    out: torch.dtype,
    contiguous: bool,
) -> Run:
    """With each setting, into the memory of ``x`` where it will do, and of no rows."""

    def own(rows: Tensor) -> Tensor:
        return rows.clone() if contiguous else spaced(rows)

    def into_new(rows: Tensor, setting: Any) -> Tensor:
        return call(own(rows), setting, out=own(torch.full_like(rows, math.nan, dtype=out)))

    def run() -> dict[str, Tensor]:
        found = {f"setting {i}": into_new(x, setting) for i, setting in enumerate(settings)}
        found["no rows"] = into_new(x[:0], settings[0])
        if x.dtype == out:
            same = own(x)
            found["in place"] = call(same, settings[0], out=same[:])
        return found

    return run


def _tensor(values: Sequence[float], device: torch.device) -> Tensor:
    dtype = torch.int32 if isinstance(values[0], int) else torch.float32
    return torch.tensor(values, dtype=dtype, device=device)


def _softmax(problem: SoftmaxProblem, device: torch.device, generator: torch.Generator) -> Run:
    x = _rows(problem, device, generator, logits=True)
    return _ways(
        lambda x, heat, out: transform.softmax(x, temperature=heat, out=out),
        x,
        [0.7, _tensor(_HEATS, device), 0.0] if problem.temperature else [1.0],
        out=torch.float32,
        contiguous=problem.contiguous,
    )


def _top_k_renorm(
    problem: TopKRenormProblem, device: torch.device, generator: torch.Generator
) -> Run:
    return _ways(
        lambda x, k, out: transform.top_k_renorm(x, k, out=out),
        _rows(problem, device, generator, logits=False),
        [4, _tensor(_TOP_KS, device)],
        out=torch.float32,
        contiguous=problem.contiguous,
    )


def _top_p_renorm(
    problem: TopPRenormProblem, device: torch.device, generator: torch.Generator
) -> Run:
    """No number but 1 for the random rows: they may have a sum near any other."""
    x = _rows(problem, device, generator, logits=False)
    x[4:6] = x[:2]
    return _ways(
        lambda x, p, out: transform.top_p_renorm(x, p, out=out),
        x,
        [0.8, _tensor(_TOP_PS, device), 1.0],
        out=torch.float32,
        contiguous=problem.contiguous,
    )


def _told_apart(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each output without its NaN, the bits of which may be any, and where they are."""
    numbers = {name: x.masked_fill(x.isnan(), 0.0) for name, x in found.items()}
    return {**numbers, **{f"NaN of {name}": x.isnan() for name, x in found.items()}}


def _top_k_mask_logits(
    problem: TopKMaskLogitsProblem, device: torch.device, generator: torch.Generator
) -> Run:
    x = _rows(problem, device, generator, logits=True)
    run = _ways(
        lambda x, k, out: transform.top_k_mask_logits(x, k, out=out),
        x,
        [4, _tensor(_TOP_KS, device)],
        out=x.dtype,
        contiguous=problem.contiguous,
    )
    return lambda: _told_apart(run())


def _top_k(problem: TopKProblem, device: torch.device, generator: torch.Generator) -> Run:
    """Rows with equals, -inf, +inf and NaN among the largest."""
    x = _rows(problem, device, generator, logits=True)
    x = x if problem.contiguous else spaced(x)

    def run() -> dict[str, Tensor]:
        values, indices = transform.top_k(x, problem.k)
        none, nowhere = transform.top_k(x[:0], problem.k)
        found = _told_apart({"values": values, "values of no rows": none})
        return {**found, "indices": indices, "indices of no rows": nowhere}

    return run


def _more_than_there_are(facts: Mapping[str, Any], _: Device) -> set[str]:
    return {"k", "vocab"} if facts["k"] > facts["vocab"] else set()


_LOGITS = {**BASE, "dtype": "float32"}
calls = {
    "sampling.softmax": Calls(build=_softmax, base=_LOGITS),
    "sampling.top_k_renorm": Calls(build=_top_k_renorm, base=BASE),
    "sampling.top_p_renorm": Calls(build=_top_p_renorm, base=BASE),
    "sampling.top_k_mask_logits": Calls(build=_top_k_mask_logits, base=_LOGITS),
    "sampling.top_k": Calls(
        build=_top_k,
        base={"vocab": 1024, "k": 50, "dtype": "float32"},
        clashes=_more_than_there_are,
    ),
}
