"""The numbers of a small problem: drawn from its seed and rounded to their storage dtype.

Rounding comes first, so the oracle sees the very numbers that the tensors hold.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from .attention import Array, BoolArray, OracleProblem, Request, Rope
from .facts import RopeFacts, ScaleKind, SmallProblem
from .mods import KEY_MODS, MASK_MODS, OUTPUT_MODS, QUERY_MODS, SCORE_MODS

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}

Blocks = tuple[tuple[int, ...], ...]
"""Per block row, the ascending block columns it sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableBlocks:
    """Per kv head: row sizes, column sizes, and `[kv_heads, rows, cols]` which blocks are seen."""

    row_sizes: tuple[tuple[int, ...], ...]
    col_sizes: tuple[tuple[int, ...], ...]
    block_map: BoolArray


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of that name."""
    if name not in DTYPES:
        raise ValueError(f"{name!r} is not a dtype of small problems; give one of {list(DTYPES)}")
    return DTYPES[name]


def q_rows(problem: SmallProblem, b: int) -> torch.Tensor:
    """Return `[qo_len, qo_heads, head_dim_qk]` of request `b` in `q_dtype`."""
    shape = (problem.lens[b][0], problem.num_qo_heads, problem.head_dim_qk)
    return _normal(problem, f"q{b}", shape).to(torch_dtype(problem.q_dtype))


def k_rows(problem: SmallProblem, b: int) -> torch.Tensor:
    """Return `[kv_len, kv_heads, head_dim_qk]` of request `b` in `kv_dtype`."""
    shape = (problem.lens[b][1], problem.num_kv_heads, problem.head_dim_qk)
    return _normal(problem, f"k{b}", shape).to(torch_dtype(problem.kv_dtype))


def v_rows(problem: SmallProblem, b: int) -> torch.Tensor:
    """Return `[kv_len, kv_heads, head_dim_vo]` of request `b` in `kv_dtype`."""
    shape = (problem.lens[b][1], problem.num_kv_heads, problem.head_dim_vo)
    return _normal(problem, f"v{b}", shape).to(torch_dtype(problem.kv_dtype))


def alibi_slopes(problem: SmallProblem) -> Array | None:
    """Return a slope per query head, both signs, or None."""
    if not problem.features.alibi:
        return None
    return _uniform(problem, "alibi", problem.num_qo_heads, -0.5, 0.5)


def sinks(problem: SmallProblem) -> Array | None:
    """Return a sink logit per query head, or None."""
    if not problem.features.sinks:
        return None
    return _uniform(problem, "sinks", problem.num_qo_heads, -2.0, 2.0)


def scale_of(problem: SmallProblem, name: str) -> float | Array:
    """Return the scale of "q", "k" or "v": a number, or one per head of that tensor."""
    kind: ScaleKind | None = problem.features.scales
    if kind is None:
        return 1.0
    heads = problem.num_qo_heads if name == "q" else problem.num_kv_heads
    values = _uniform(problem, f"scale_{name}", heads, 0.25, 2.0)
    return values if kind == "per_head" else float(values[0])


def rope_offsets(problem: SmallProblem) -> tuple[tuple[int, int], ...] | None:
    """Return the `(q_offset, k_offset)` of each request, or None for the default positions."""
    rope = problem.features.rope
    if rope is None or not rope.offsets:
        return None
    # Small, because positions times float32 frequencies lose digits that the oracle keeps.
    drawn = rng(problem, "offsets").integers(0, 16, size=(len(problem.lens), 2))
    return tuple((int(q), int(k)) for q, k in drawn)


def inv_freq(problem: SmallProblem) -> Array | None:
    """Return `[rotary_dim // 2]` frequencies, or None when they follow from theta."""
    rope = problem.features.rope
    if rope is None or not rope.inv_freq:
        return None
    rotary_dim = problem.head_dim_qk if rope.rotary_dim is None else rope.rotary_dim
    return _uniform(problem, "inv_freq", rotary_dim // 2, 0.01, 1.0)


def custom_mask(problem: SmallProblem, b: int) -> BoolArray | None:
    """Return `[qo_len, kv_len]` of request `b`, two thirds visible, or None."""
    if not problem.features.custom_mask:
        return None
    return rng(problem, f"mask{b}").random(problem.lens[b]) < 2 / 3


def blocks(problem: SmallProblem, b: int) -> Blocks:
    """Return the block columns that each block row of request `b` sees; a row may see none."""
    (qo_len, kv_len), (rows, cols) = problem.lens[b], problem.storage.block
    num_rows, num_cols = -(-qo_len // rows), -(-kv_len // cols)
    seen = rng(problem, f"blocks{b}").random((num_rows, num_cols)) < 0.6
    return tuple(tuple(c for c in range(num_cols) if seen[r, c]) for r in range(num_rows))


def variable_blocks(problem: SmallProblem) -> VariableBlocks:
    """Return the block sizes and map of the only request; every block holds at least one row."""
    if len(problem.lens) != 1:
        raise ValueError(
            f"variable blocks with {len(problem.lens)} requests: sizes and map describe one "
            "sequence; give `lens` one entry"
        )
    (qo_len, kv_len), heads = problem.lens[0], range(problem.num_kv_heads)
    random = rng(problem, "variable_blocks")
    num_rows = int(random.integers(1, min(qo_len, 4) + 1)) if qo_len else 0
    num_cols = int(random.integers(1, min(kv_len, 4) + 1)) if kv_len else 0
    return VariableBlocks(
        row_sizes=tuple(_composition(random, qo_len, num_rows) for _ in heads),
        col_sizes=tuple(_composition(random, kv_len, num_cols) for _ in heads),
        block_map=random.random((len(heads), num_rows, num_cols)) < 0.6,
    )


def gathered(problem: SmallProblem) -> OracleProblem:
    """Return what the oracle needs: the rows of each request in logical order, in float64."""
    features = problem.features
    return OracleProblem(
        requests=tuple(_request(problem, b) for b in range(len(problem.lens))),
        scale=features.scale,
        causal=features.causal,
        window=features.window,
        soft_cap=features.soft_cap,
        alibi_slopes=alibi_slopes(problem),
        sinks=sinks(problem),
        rope=None if features.rope is None else _rope(problem, features.rope),
        q_scale=scale_of(problem, "q"),
        k_scale=scale_of(problem, "k"),
        v_scale=scale_of(problem, "v"),
        query_mod=QUERY_MODS[features.query_mod] if features.query_mod else None,
        key_mod=KEY_MODS[features.key_mod] if features.key_mod else None,
        score_mod=SCORE_MODS[features.score_mod] if features.score_mod else None,
        mask_mod=MASK_MODS[features.mask_mod] if features.mask_mod else None,
        output_mod=OUTPUT_MODS[features.output_mod] if features.output_mod else None,
        softmax=features.softmax,
    )


def rng(problem: SmallProblem, name: str) -> np.random.Generator:
    """Return the stream called `name`; streams do not move when another is drawn or not."""
    return np.random.default_rng([problem.seed, zlib.crc32(name.encode())])


def _request(problem: SmallProblem, b: int) -> Request:
    offsets = rope_offsets(problem)
    return Request(
        q=_float64(q_rows(problem, b)),
        k=_float64(k_rows(problem, b)),
        v=_float64(v_rows(problem, b)),
        custom_mask=custom_mask(problem, b),
        block_mask=_block_mask(problem, b),
        q_offset=None if offsets is None else offsets[b][0],
        k_offset=0 if offsets is None else offsets[b][1],
    )


def _rope(problem: SmallProblem, facts: RopeFacts) -> Rope:
    return Rope(
        theta=facts.theta,
        interleaved=facts.interleaved,
        rotary_dim=facts.rotary_dim,
        inv_freq=inv_freq(problem),
    )


def _block_mask(problem: SmallProblem, b: int) -> BoolArray | None:
    """Return `[1 or kv_heads, qo_len, kv_len]`, each element looked up in the block it lies in."""
    qo_len, kv_len = problem.lens[b]
    if problem.storage.kind == "blocks":
        rows, cols = problem.storage.block
        seen = blocks(problem, b)
        mask = [[[j // cols in seen[i // rows] for j in range(kv_len)] for i in range(qo_len)]]
        return np.array(mask, dtype=np.bool_).reshape(1, qo_len, kv_len)
    if problem.storage.kind == "variable_blocks":
        var = variable_blocks(problem)
        out = np.zeros((problem.num_kv_heads, qo_len, kv_len), dtype=np.bool_)
        for g in range(problem.num_kv_heads):
            for i in range(qo_len):
                for j in range(kv_len):
                    row, col = _block_of(var.row_sizes[g], i), _block_of(var.col_sizes[g], j)
                    out[g, i, j] = var.block_map[g, row, col]
        return out
    return None


def _block_of(sizes: tuple[int, ...], index: int) -> int:
    """Return which block holds element `index`."""
    for block, size in enumerate(sizes):
        if index < size:
            return block
        index -= size
    raise IndexError(f"element lies {index} past the last block; the sizes {sizes} must cover it")


def _composition(random: np.random.Generator, total: int, parts: int) -> tuple[int, ...]:
    """Return `parts` positive sizes that add up to `total`."""
    if parts == 0:
        return ()
    cuts = sorted(int(c) for c in random.choice(np.arange(1, total), parts - 1, replace=False))
    edges = [0, *cuts, total]
    return tuple(after - before for before, after in pairwise(edges))


def _normal(problem: SmallProblem, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(rng(problem, name).standard_normal(shape))


def _uniform(problem: SmallProblem, name: str, count: int, low: float, high: float) -> Array:
    """Return float64 values that float32 holds exactly."""
    values = rng(problem, name).uniform(low, high, size=count)
    return values.astype(np.float32).astype(np.float64)


def _float64(rows: torch.Tensor) -> Array:
    array: Array = rows.to(torch.float64).numpy()
    return array
