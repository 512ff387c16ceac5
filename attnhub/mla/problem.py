"""The problem of latent attention: what capabilities, cost models and plans look at."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from attnhub.attn import problem as attn
from attnhub.core.problem import DTYPE_BYTES, Problem, Work, fact
from attnhub.errors import InvalidArgument

#: DeepSeek's: the latent row, and the rotary part of the key beside it.
HEAD_DIM = (512, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAProblem(Problem):
    """Facts of a ``BatchMLA``; the softmax scale is none, since no kernel depends on it."""

    op = "mla"
    sizes = ("batch", "qo_len", "kv_len", "tokens", "kv_tokens")
    shorthands = MappingProxyType(
        {
            "head_dim": "head_dim_ckv, head_dim_kpe",
            "dtype": "q_dtype, kv_dtype, out_dtype",
            "causal": "features",
        }
    )

    #: query heads; the latent cache has one row per token, which all of them read
    num_heads: int = fact(domain=(1, 16, 64, 128))
    head_dim_ckv: int = fact(domain=(256, 512))
    head_dim_kpe: int = fact(domain=(32, 64))
    q_dtype: str = fact(domain=attn.FLOATS)
    kv_dtype: str = fact(domain=(*attn.FLOATS, *attn.FP8))
    out_dtype: str = fact(domain=attn.FLOATS)
    page_size: int = fact(domain=(1, 5, 16, 64))
    #: "causal" or nothing
    features: frozenset[str] = fact(domain=(frozenset({"causal"}),), default=frozenset())
    #: refilled between replays of a CUDA graph
    graph: bool = fact(domain=(False, True), default=False)
    deterministic: bool = fact(domain=(False, True), default=False)
    #: where the metadata lie: "host" or "device"
    metadata: str = fact(domain=("host", "device"), default="host")

    @classmethod
    def expand(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Accept ``head_dim``, ``dtype`` and ``causal`` as ``BatchMLA`` does."""
        facts = dict(facts)
        if "head_dim" in facts or not facts.keys() & {"head_dim_ckv", "head_dim_kpe"}:
            facts["head_dim_ckv"], facts["head_dim_kpe"] = dims(facts.pop("head_dim", HEAD_DIM))
        if "dtype" in facts:
            names = dtype_names(facts.pop("dtype"))
            facts["q_dtype"], facts["kv_dtype"], facts["out_dtype"] = names
        if "features" not in facts:
            facts["features"] = features(causal=facts.pop("causal", True))
        return facts

    def work(self) -> Work:
        """FLOPs of both products (half under a causal square); each latent row read once."""
        n = attn.Sizes.of(self.extent)
        key, value = self.head_dim_ckv + self.head_dim_kpe, self.head_dim_ckv
        pairs = n.pairs(causal="causal" in self.features)
        row = key * DTYPE_BYTES[self.q_dtype] + value * DTYPE_BYTES[self.out_dtype]
        return Work(
            flops=2.0 * pairs * self.num_heads * (key + value),
            bytes=float(
                n.kv_tokens * key * DTYPE_BYTES[self.kv_dtype] + n.tokens * self.num_heads * row
            ),
            assumed=n.assumed,
        )


def features(*, causal: bool) -> frozenset[str]:
    """The names of the features in use."""
    return frozenset({"causal"} if causal else ())


def dims(head_dim: Any) -> tuple[int, int]:
    """``(ckv, kpe)``, checked."""
    pair = tuple(head_dim) if isinstance(head_dim, (tuple, list)) else (head_dim,)
    if len(pair) != 2 or not all(isinstance(d, int) and d >= 1 for d in pair):
        raise InvalidArgument(
            f"head_dim={head_dim!r}: give two integers >= 1, (dim of the latent rows, dim of their "
            f"rotary part); DeepSeek's are {HEAD_DIM}"
        )
    return pair


def dtype_names(dtype: Any) -> tuple[str, str, str]:
    """Names of the query, cache and output dtypes from one dtype or a ``DTypes``."""
    names = attn.dtype_names(dtype)
    if names[0] not in attn.FLOATS:
        raise InvalidArgument(
            f"q dtype {names[0]!r} is not supported; only the cache may be FP8: use "
            f"DTypes(q='bfloat16', kv={names[0]!r}, out='bfloat16')"
        )
    return names
