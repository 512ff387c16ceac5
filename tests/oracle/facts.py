"""What defines a small problem: plain hashable facts. All numbers follow from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["paged", "ragged", "blocks", "variable_blocks"]
ScaleKind = Literal["scalar", "per_head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How keys and values lie in memory; a field is used only by the kinds that have it.

    `joined` is one 5-D cache, else a tuple of two 4-D ones. `strided` leaves gaps between rows and
    heads. `spare_pages` belong to no request. `block` is `(R, C)`.
    """

    kind: Kind = "paged"
    layout: Literal["NHD", "HND"] = "NHD"
    page_size: int = 1
    joined: bool = True
    strided: bool = False
    spare_pages: int = 0
    block: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeFacts:
    """Rotary embedding; `offsets` draws positions per request, `inv_freq` draws the frequencies."""

    theta: float = 10000.0
    interleaved: bool = False
    rotary_dim: int | None = None
    offsets: bool = False
    inv_freq: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What is computed between QK and PV. A flag asks for values drawn from the seed.

    The mods are names in `mods`; `scales` is the kind of the q, k and v scales.
    """

    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    soft_cap: float | None = None
    alibi: bool = False
    sinks: bool = False
    custom_mask: bool = False
    rope: RopeFacts | None = None
    scales: ScaleKind | None = None
    query_mod: str | None = None
    key_mod: str | None = None
    score_mod: str | None = None
    mask_mod: str | None = None
    output_mod: str | None = None
    softmax: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallProblem:
    """One small problem; `lens` holds `(qo_len, kv_len)` per request, dtypes are torch's names."""

    seed: int
    lens: tuple[tuple[int, int], ...]
    num_kv_heads: int = 1
    group: int = 1
    head_dim_qk: int = 4
    head_dim_vo: int = 4
    q_dtype: str = "float32"
    kv_dtype: str = "float32"
    storage: Storage = Storage()
    features: Features = Features()

    @property
    def num_qo_heads(self) -> int:
        """Return the number of query heads."""
        return self.num_kv_heads * self.group
