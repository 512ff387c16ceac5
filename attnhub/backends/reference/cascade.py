"""``attnhub.cascade`` by its reference."""

from __future__ import annotations

from torch import Tensor

from attnhub.backends.reference import Reference
from attnhub.cascade import reference


def _merge_state(
    o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor, out: Tensor, lse: Tensor
) -> None:
    merged, merged_lse = reference.merge_state(o_a, lse_a, o_b, lse_b)
    out.copy_(merged)
    lse.copy_(merged_lse)


def _merge_state_in_place(
    o: Tensor, lse: Tensor, o_b: Tensor, lse_b: Tensor, mask: Tensor | None
) -> None:
    merged, merged_lse = reference.merge_state(o, lse, o_b, lse_b)
    if mask is not None:
        merged = merged.where(mask[:, None, None], o)
        merged_lse = merged_lse.where(mask[:, None], lse)
    o.copy_(merged)
    lse.copy_(merged_lse)


def _merge_states(o: Tensor, lse: Tensor, out: Tensor, out_lse: Tensor) -> None:
    merged, merged_lse = reference.merge_states(o, lse)
    out.copy_(merged)
    out_lse.copy_(merged_lse)


merge_state = Reference(_merge_state)
merge_state_in_place = Reference(_merge_state_in_place)
merge_states = Reference(_merge_states)
