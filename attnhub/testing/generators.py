"""Seeded inputs for tests and benchmarks: lengths, page tables, caches, masks, tensors.

Every function draws from the :class:`torch.Generator` it is given and from nothing else, so equal
seeds give equal inputs. With a CPU generator the same values reach every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from attnhub.errors import InvalidArgument

LengthKind = Literal["uniform", "lognormal", "constant", "with_empty"]
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def seeded(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator on ``device``, started from ``seed``."""
    return torch.Generator(device).manual_seed(seed)


def lengths(
    batch: int,
    low: int,
    high: int,
    kind: LengthKind = "uniform",
    *,
    generator: torch.Generator,
    total: int | None = None,
) -> list[int]:
    """Return ``batch`` sequence lengths between ``low`` and ``high``, both included.

    Args:
        batch: How many.
        low: Shortest length.
        high: Longest length.
        kind: ``"uniform"``; ``"lognormal"`` (many short, few long, as served prompts are);
            ``"constant"`` (each is ``high``); ``"with_empty"`` (uniform, but the first, the last
            and about a quarter of the others are 0; one request of several is never empty).
        generator: Where randomness comes from.
        total: Make the lengths sum to this.

    Example::

        >>> lengths(3, 7, 7, generator=seeded(0))
        [7, 7, 7]
    """
    if batch < 0 or not 0 <= low <= high:
        raise InvalidArgument(
            f"batch={batch}, low={low}, high={high}: needs batch >= 0 and 0 <= low <= high"
        )
    if kind == "lognormal":
        # Four standard deviations span the range, so its ends are rare but do occur.
        middle = (math.log(max(low, 1)) + math.log(max(high, 1))) / 2
        spread = (math.log(max(high, 1)) - math.log(max(low, 1))) / 4
        drawn = torch.exp(middle + spread * _normal((batch,), generator)).round().tolist()
    elif kind in ("uniform", "with_empty"):
        drawn = (low + _uniform(batch, generator) * (high - low + 1)).floor().tolist()
    elif kind == "constant":
        drawn = [high] * batch
    else:
        accepted = "'uniform', 'lognormal', 'constant', 'with_empty'"
        raise InvalidArgument(f"kind={kind!r}: accepted are {accepted}")
    result = [min(max(int(length), low), high) for length in drawn]
    filled = list(range(batch))
    if kind == "with_empty":
        filled = _filled_requests(batch, generator)
        result = [length if i in filled else 0 for i, length in enumerate(result)]
    if total is not None:
        _adjust(result, filled, low, high, total)
    return result


def _filled_requests(batch: int, generator: torch.Generator) -> list[int]:
    """Return which requests keep their length when some are made empty."""
    if batch < 3:
        return list(range(1, batch))
    drawn = (_uniform(batch, generator) >= 0.25).tolist()
    return [i for i in range(1, batch - 1) if drawn[i]] or [batch // 2]


def _adjust(result: list[int], filled: list[int], low: int, high: int, total: int) -> None:
    """Rescale the filled lengths towards ``total``, then settle the rest one by one."""
    if not len(filled) * low <= total <= len(filled) * high:
        raise InvalidArgument(
            f"total={total}: {len(filled)} filled requests of {low} to {high} hold between "
            f"{len(filled) * low} and {len(filled) * high}"
        )
    factor = total / max(sum(result), 1)
    for i in filled:
        result[i] = min(max(round(result[i] * factor), low), high)
    for i in filled:
        result[i] += min(max(total - sum(result), low - result[i]), high - result[i])


def indptr(lengths: Sequence[int]) -> torch.Tensor:
    """Return the int32 prefix sum of ``lengths``, ``[len(lengths) + 1]``, starting at 0."""
    sums = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    sums[1:] = torch.tensor(list(lengths), dtype=torch.int64).cumsum(0)
    if int(sums[-1]) > torch.iinfo(torch.int32).max:
        raise InvalidArgument(f"the lengths sum to {int(sums[-1])}, beyond an int32 indptr")
    return sums.to(torch.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageTable:
    """Which pages each request owns; int32 tensors on the CPU.

    Attributes:
        indptr: ``[batch + 1]``; request ``b`` owns ``indices[indptr[b]:indptr[b + 1]]``.
        indices: ``[indptr[-1]]`` page ids, no id twice.
        last_page_len: ``[batch]`` tokens in the last page, 1 to ``page_size``; 0 if no page.
        num_pages: Pages in the cache, more than are owned.
        page_size: Tokens a page holds.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor
    num_pages: int
    page_size: int


def page_table(
    lengths: Sequence[int],
    page_size: int,
    *,
    generator: torch.Generator,
    shuffle: bool = True,
    spare_pages: int = 3,
    max_page_id: int | None = None,
) -> PageTable:
    """Return a page table for requests of ``lengths`` tokens.

    Args:
        lengths: Tokens of each request, 0 allowed.
        page_size: Tokens a page holds.
        generator: Where randomness comes from.
        shuffle: Draw page ids at random over the whole cache; otherwise they ascend.
        spare_pages: Pages no request owns.
        max_page_id: Make the cache this large (plus one), and have a request own its last page:
            reaches offsets beyond 2**31 with few tokens.
    """
    if page_size < 1 or spare_pages < 0 or min(lengths, default=0) < 0:
        raise InvalidArgument(
            f"page_size={page_size}, spare_pages={spare_pages}, lengths={list(lengths)}: "
            "needs page_size >= 1 and nothing negative"
        )
    counts = [-(-length // page_size) for length in lengths]
    owned = sum(counts)
    num_pages = owned + spare_pages if max_page_id is None else max_page_id + 1
    if num_pages < owned + spare_pages:
        raise InvalidArgument(
            f"max_page_id={max_page_id}: {owned} owned and {spare_pages} spare pages need at least "
            f"{owned + spare_pages - 1}"
        )
    if shuffle:
        ids = torch.randperm(num_pages, generator=generator, device=generator.device)[:owned].cpu()
        if max_page_id is not None and owned and not bool((ids == max_page_id).any()):
            ids[owned // 2] = max_page_id
    else:
        first = 0 if max_page_id is None else num_pages - owned
        ids = torch.arange(first, first + owned)
    last = [(length - 1) % page_size + 1 if length else 0 for length in lengths]
    return PageTable(
        indptr=indptr(counts),
        indices=ids.to(torch.int32),
        last_page_len=torch.tensor(last, dtype=torch.int32),
        num_pages=num_pages,
        page_size=page_size,
    )


def token_slots(lengths: Sequence[int], table: PageTable) -> tuple[torch.Tensor, torch.Tensor]:
    """Return page id and place in that page of every token, two int64 ``[sum(lengths)]``."""
    pages = [-(-length // table.page_size) for length in lengths]
    if not torch.equal(indptr(pages), table.indptr):
        raise InvalidArgument(
            f"lengths={list(lengths)}: the page table was made for other lengths, its requests own "
            f"{table.indptr.diff().tolist()} pages of {table.page_size}"
        )
    counts = torch.tensor(list(lengths), dtype=torch.int64)
    starts = indptr(lengths)[:-1].to(torch.int64)
    position = torch.arange(int(counts.sum())) - starts.repeat_interleave(counts)
    first_page = table.indptr[:-1].to(torch.int64).repeat_interleave(counts)
    page = table.indices.to(torch.int64)[first_page + position // table.page_size]
    return page, position % table.page_size


def paged_cache(
    k_rows: torch.Tensor,
    v_rows: torch.Tensor,
    lengths: Sequence[int],
    table: PageTable,
    *,
    layout: Literal["NHD", "HND"] = "NHD",
    combined: bool = True,
    strided: bool = False,
    poison: bool = True,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return a paged cache that holds each request's rows where ``table`` says.

    Args:
        k_rows: ``[sum(lengths), kv_heads, dim_qk]``, requests one after another.
        v_rows: ``[sum(lengths), kv_heads, dim_vo]``.
        lengths: Tokens of each request, as given to :func:`page_table`.
        table: Where they go.
        layout: ``"NHD"``: ``[pages, page, heads, dim]``; ``"HND"``: ``[pages, heads, page, dim]``.
        combined: One 5-D tensor ``[pages, 2, ...]``; otherwise a tuple of two 4-D tensors.
        strided: Cut the cache out of a larger one, so that only its last dim is contiguous.
        poison: Fill what no request owns with NaN, the gaps of a strided cache included;
            otherwise with zeros.
    """
    if layout not in ("NHD", "HND"):
        raise InvalidArgument(f"layout={layout!r}: accepted are 'NHD' and 'HND'")
    if not k_rows.shape[0] == v_rows.shape[0] == sum(lengths):
        raise InvalidArgument(
            f"k_rows has {k_rows.shape[0]} rows and v_rows {v_rows.shape[0]}: "
            f"lengths sum to {sum(lengths)}"
        )
    if combined and (k_rows.shape != v_rows.shape or k_rows.dtype != v_rows.dtype):
        raise InvalidArgument(
            f"k_rows is {k_rows.dtype} {list(k_rows.shape)} and v_rows {v_rows.dtype} "
            f"{list(v_rows.shape)}: one combined cache holds equal ones; use combined=False"
        )
    page, place = (t.to(k_rows.device) for t in token_slots(lengths, table))

    def filled(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        _, heads, dim = rows[0].shape
        size, pages = table.page_size, table.num_pages
        inner = (size, heads, dim) if layout == "NHD" else (heads, size, dim)
        cache = _empty_cache((pages, len(rows), *inner), rows[0], strided=strided, poison=poison)
        for i, source in enumerate(rows):
            side = cache[:, i] if layout == "NHD" else cache[:, i].transpose(1, 2)
            # Written as integers, because float8 tensors cannot be scattered on every device.
            bits = _BITS[source.element_size()]
            side.view(bits)[page, place] = source.contiguous().view(bits)
        return cache

    if combined:
        return filled((k_rows, v_rows))
    return filled((k_rows,))[:, 0], filled((v_rows,))[:, 0]


def _empty_cache(
    shape: tuple[int, ...], like: torch.Tensor, *, strided: bool, poison: bool
) -> torch.Tensor:
    # Gaps of 16 bytes per row keep the alignment that vector loads need.
    *outer, dim = shape
    gap = max(16 // like.element_size(), 1)
    padded = (*(size + 1 for size in outer), dim + gap) if strided else shape
    whole = torch.zeros(padded, dtype=like.dtype, device=like.device)
    if poison:
        poison_(whole)
    return whole[tuple(slice(0, size) for size in shape)]


def poison_(tensor: torch.Tensor) -> torch.Tensor:
    """Fill ``tensor`` in place with what must not leak, and return it.

    NaN for floating dtypes (float8 included), the largest value for integers, True for bool.
    """
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    if tensor.is_floating_point():
        return tensor.fill_(math.nan)
    return tensor.fill_(torch.iinfo(tensor.dtype).max)


def masks(
    qo_lens: Sequence[int],
    kv_lens: Sequence[int],
    density: float,
    *,
    generator: torch.Generator,
) -> list[torch.Tensor]:
    """Return one random bool mask per request, ``[qo_len, kv_len]``, True where a key is seen.

    About ``density`` of the entries are True; rows that see no key occur.
    """
    if len(qo_lens) != len(kv_lens) or not 0 <= density <= 1:
        raise InvalidArgument(
            f"{len(qo_lens)} qo_lens, {len(kv_lens)} kv_lens, density={density}: "
            "needs equally many lengths and a density from 0 to 1"
        )
    return [
        (_uniform(qo_len * kv_len, generator) < density).view(qo_len, kv_len)
        for qo_len, kv_len in zip(qo_lens, kv_lens, strict=True)
    ]


def random_tensor(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str,
    generator: torch.Generator,
    scale: float = 1.0,
) -> torch.Tensor:
    """Return a tensor of normal values with standard deviation ``scale``.

    Values are drawn in float32 on the generator's device, so that every dtype gets the same ones,
    then cut at the largest finite value of ``dtype``, rounded to it and moved to ``device``.
    """
    if not dtype.is_floating_point:
        raise InvalidArgument(f"dtype={dtype}: a random tensor is floating point")
    largest = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    drawn = (_normal(tuple(shape), generator) * scale).clamp(-largest, largest)
    return drawn.to(dtype).to(device)


def _uniform(count: int, generator: torch.Generator) -> torch.Tensor:
    device = generator.device
    return torch.rand(count, generator=generator, device=device, dtype=torch.float64).cpu()


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)
