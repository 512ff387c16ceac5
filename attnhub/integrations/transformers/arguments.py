"""Keywords of attention modules: which are used, which change nothing, which are refused."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.core import check
from attnhub.core.functional import constant_while_tracing
from attnhub.variant import Variant

#: Keywords that modules hand down and that change nothing in attention itself.
_HARMLESS = frozenset(
    (
        "cache_position",  # where the cache was written, which is done
        "logits_indices",  # the rows that continuous batching samples from
        "logits_processor_args",  # likewise
        "logits_to_keep",  # likewise, elsewhere
        "num_items_in_batch",  # scales a loss
        "output_hidden_states",  # collected outside attention
        "output_router_logits",  # likewise
        "position_ids",  # RoPE is applied already, and packed sequences come as a mask
        "return_dict",  # the model's own
        "use_cache",  # the cache is updated already
    )
)

_WEIGHTS = "weights are never formed; use attn_implementation='eager'"
_PACKED = "leave it out: packed position_ids make a mask, and generate_batch() packs by itself"
#: Keywords that are refused unless None or False, and what to do instead.
_REFUSED = {
    "attention_mask": "continuous batching goes by lengths; use attn_implementation='attnhub'",
    "block_table": "pages are found by read_index; leave max_blocks_per_request unset",
    "cu_seq_lens_k": _PACKED,
    "cu_seq_lens_q": _PACKED,
    "deterministic": "leave it unset; attnhub.use() picks a backend whose results repeat",
    "dropout": "AttnHub is for inference; call model.eval() or set attention_dropout=0",
    "head_mask": _WEIGHTS,
    "max_length_k": _PACKED,
    "max_length_q": _PACKED,
    "output_attentions": _WEIGHTS,
    "position_bias": "a bias on scores is not served; use attn_implementation='sdpa'",
    "seq_idx": _PACKED,
}
_UNKNOWN = "its meaning is not known here; use another attn_implementation for this model"


def refuse(keywords: Mapping[str, Any]) -> None:
    """Refuse keywords that are set and would change the result.

    Raises:
        InvalidArgument: naming the keyword, and what to do.
    """
    for name, value in keywords.items():
        if value is None or name in _HARMLESS:
            continue
        hint = _REFUSED.get(name)
        if hint is not None and not isinstance(value, Tensor) and not value:  # False or 0.0
            continue
        shown = "a tensor" if isinstance(value, Tensor) else repr(value)
        check.fail(f"{name} is {shown}, which attnhub does not serve: {hint or _UNKNOWN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What an attention module says about its scores, under its own names."""

    scaling: float | None
    softcap: float | None
    s_aux: Tensor | None

    @property
    def params(self) -> dict[str, Tensor | float]:
        """Run-time parameters of the variant."""
        return {} if self.s_aux is None else {"sinks": self.s_aux.float()}

    def variant(self, *, causal: bool, window: int | None) -> Variant:
        """The variant with these scores, where a query sees ``window`` tokens, itself included."""
        if isinstance(self.scaling, Tensor):
            check.fail("scaling is a tensor, needs a number; use another attn_implementation")
        facts = (causal, window, self.softcap, self.s_aux is not None, self.scaling)
        if torch.compiler.is_compiling():
            return getattr(_VARIANTS, _kept(*facts))
        return _variant(*facts)


@functools.lru_cache(maxsize=256)
def _variant(
    causal: bool, window: int | None, softcap: float | None, sinks: bool, scaling: float | None
) -> Variant:
    reach = None if window is None else (window - 1, 0 if causal else window - 1)
    return Variant(causal=causal, window=reach, soft_cap=softcap, sinks=sinks, scale=scaling)


#: Variants of compiled graphs, an attribute each: torch.compile can read an attribute of a global
#: where it can neither make a Variant nor use one that a function returned.
_VARIANTS = types.SimpleNamespace()


@constant_while_tracing
def _kept(*facts: Any) -> str:
    """Make a variant, while tracing, and return the attribute of _VARIANTS that holds it."""
    variant = _variant(*facts)
    name = f"v{variant.digest}"
    setattr(_VARIANTS, name, variant)
    return name


def causality(module: torch.nn.Module, given: bool | None) -> bool:
    """Whether a module's attention is causal: the keyword if there is one, else its attribute."""
    return bool(getattr(module, "is_causal", True) if given is None else given)
