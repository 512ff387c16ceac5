"""Judge draws by the exact distribution that they should follow.

With ``n`` independent draws of ``p``, the total variation distance between their histogram and
``p`` is at most ``sum(sqrt(p (1 - p) / n)) / 2`` in expectation, since each bin has a binomial
count. One draw moves it by at most ``1 / n``, so by McDiarmid's inequality it passes its
expectation by ``t`` with a chance of at most ``exp(-2 n t^2)``. The bound thus holds for every n
and p, not only in the limit. At 20000 draws of 17 outcomes it is below 0.04.

Source: McDiarmid, "On the method of bounded differences" (1989).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.testing.compare import Comparison, Mismatch

#: The chance that one sound histogram fails: a suite of a thousand stays below one in a million.
FALSE_ALARM = 1e-9
#: Outcomes expected less often than this are counted together.
_FEWEST = 5


def distance_allowed(probs: Tensor, draws: int) -> float:
    """The bound of the module docstring for ``draws`` draws of ``probs [outcomes]``."""
    spread = float((probs * (1 - probs)).clamp(min=0).sqrt().sum()) / 2
    return (spread + math.sqrt(-math.log(FALSE_ALARM) / 2)) / math.sqrt(draws)


def assert_distributed(draws: Tensor, probs: Tensor, *, name: str = "") -> None:
    """Raise :class:`Mismatch` unless ``draws`` look like independent draws of ``probs``.

    Each must be one of the outcomes 0, 1, ... and of positive probability, and their histogram must
    lie within :func:`distance_allowed` of ``probs`` in total variation; of sound draws, one
    histogram in a billion does not.

    Args:
        draws: integer ``[n]``; no draws pass.
        probs: floating ``[outcomes]``, summing to 1.
        name: what is compared, for the message.

    Raises:
        InvalidArgument: tensors of another form, or probabilities that are none.

    Example::

        assert_distributed(tokens, probs_of_a_row, name="tokens")
    """
    exact = probs.detach().double().cpu()
    if draws.dim() != 1 or draws.is_floating_point() or exact.dim() != 1:
        raise InvalidArgument(
            f"draws are {draws.dtype} {list(draws.shape)} and probs {list(probs.shape)}: needs "
            "integers [n] and [outcomes]"
        )
    if not bool((exact >= 0).all()) or abs(float(exact.sum()) - 1) > 1e-6:
        raise InvalidArgument(f"probs sum to {float(exact.sum())}: needs probabilities, sum 1")
    found = draws.detach().long().cpu()
    if not found.numel():
        return
    inside = (found >= 0) & (found < exact.numel())
    possible = inside & (exact[found.where(inside, 0)] > 0)
    if not bool(possible.all()):
        _fail(name, f"{_some(found[~possible])} of {found.numel()} draws are impossible")
    frequent = exact * found.numel() >= _FEWEST
    share = torch.bincount(found, minlength=exact.numel()).double() / found.numel()
    off = torch.cat([(share - exact)[frequent], (share - exact)[~frequent].sum()[None]])
    pooled = torch.cat([exact[frequent], exact[~frequent].sum()[None]])
    distance, allowed = float(off.abs().sum()) / 2, distance_allowed(pooled, found.numel())
    if distance > allowed:
        worst = int((share - exact).abs().argmax())
        _fail(
            name,
            f"{found.numel()} draws lie {distance:.3g} from their distribution in total variation "
            f"(allowed {allowed:.3g}, a false alarm of {FALSE_ALARM:g})\n  outcome {worst}: drawn "
            f"{share[worst]:.4f} of the time, probability {exact[worst]:.4f}",
        )


def _some(impossible: Tensor) -> str:
    values = ", ".join(map(str, impossible.unique().tolist()[:5]))
    return f"{impossible.numel()} ({values})"


def _fail(name: str, detail: str) -> None:
    raise Mismatch(name, Comparison(check="error", detail=detail))
