"""What the kernels are given, grouped: tensors with their strides, and what is fixed when compiled.

Field names in lower case, as Triton reads them: a tuple of values is an argument, and a tuple of
constants is compiled in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Queries(NamedTuple):
    """Queries or outputs ``[batch, tokens, heads, dim]`` and the strides of the first three axes.

    Those of a ragged batch lie end to end: their ``batch`` is 0.
    """

    data: Tensor
    batch: int
    token: int
    head: int


class Keys(NamedTuple):
    """K or V and the strides of pages, slots and heads.

    Dense ones have a page a request, ragged ones have no pages.
    """

    data: Tensor
    page: int
    slot: int
    head: int


class Logs(NamedTuple):
    """LSE ``[batch, tokens, heads]`` or None, and its strides as in :class:`Queries`."""

    data: Tensor | None
    batch: int
    token: int


class Partial(NamedTuple):
    """Of each share of the keys: output and LSE in units of log 2, contiguous; or nothing.

    ``out`` is ``[shares, tokens, heads, dim]`` and ``lse`` ``[shares, tokens, heads]``, float32.
    """

    out: Tensor | None
    lse: Tensor | None


class Requests(NamedTuple):
    """Metadata on the device; what a problem has not is None.

    The masks of dense requests lie apart by a stride, 0 where they are one, those of others begin
    where a tensor says.
    """

    qo_indptr: Tensor | None = None
    kv_indptr: Tensor | None = None
    last_page_len: Tensor | None = None
    indices: Tensor | None = None
    mask: Tensor | None = None
    mask_offsets: Tensor | int | None = None


class Factors(NamedTuple):
    """The scale of scores, and those of Q, K and V: numbers, or tensors of one element a head.

    A stride is None where the factor is a number.
    """

    score: float
    q: float | Tensor
    q_stride: int | None
    k: float | Tensor
    k_stride: int | None
    v: float | Tensor
    v_stride: int | None


class Hooks(NamedTuple):
    """Functions of the variant, each None where it has none; compiled in."""

    query: Any
    key: Any
    score: Any
    mask: Any
    output: Any
    sink: Any


class Form(NamedTuple):
    """What a problem fixes; compiled in.

    ``dense`` says that requests lie apart by a stride, not end to end. ``page`` is 0 where keys are
    not paged, ``exponent`` has the bits of the exponent where K and V are FP8, else 0. ``left`` and
    ``right`` are the reach of a query, -1 being open.
    """

    dense: bool
    group: int
    page: int
    exponent: int
    dim_qk: int
    dim_vo: int
    left: int
    right: int
    softmax: bool
    packed_mask: bool


class Tile(NamedTuple):
    """Rows and keys of a block, and the head dims as powers of two; compiled in."""

    rows: int
    keys: int
    d_qk: int
    d_vo: int
