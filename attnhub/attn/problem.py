"""The problem of an attention call: what capabilities, cost models and plans look at."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from attnhub.attn.kv import BlockSparse, DTypes, KVLayout, Paged, Ragged, VariableBlocks, dims
from attnhub.core.near import did_you_mean
from attnhub.core.problem import DTYPE_BYTES, Extent, Problem, Work, fact
from attnhub.errors import InvalidArgument
from attnhub.variant import Variant

FLOATS = ("float16", "bfloat16", "float32")
FP8 = ("float8_e4m3fn", "float8_e5m2")
FEATURES = (
    "causal",
    "window",
    "soft_cap",
    "alibi",
    "sinks",
    "rope",
    "score_mod",
    "mask_mod",
    "query_mod",
    "key_mod",
    "output_mod",
    "softmax_off",
)
_KINDS = {Paged: "paged", Ragged: "ragged", BlockSparse: "block_sparse"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of an extent without gaps; ``assumed`` says which of them are made up."""

    qo_len: int
    kv_len: int
    tokens: int
    kv_tokens: int
    assumed: str

    @classmethod
    def of(cls, known: Extent) -> Sizes:
        """One decode row over 1024 keys where nothing is known."""
        batch = 1 if known.batch is None else known.batch
        qo_len = 1 if known.qo_len is None else known.qo_len
        kv_len = 1024 if known.kv_len is None else known.kv_len
        unknown = [n for n in ("batch", "qo_len", "kv_len") if getattr(known, n) is None]
        most = batch * qo_len
        return cls(
            qo_len=qo_len,
            kv_len=kv_len,
            tokens=most if known.tokens is None else min(known.tokens, most),
            kv_tokens=batch * kv_len if known.kv_tokens is None else known.kv_tokens,
            assumed=f"{', '.join(unknown)} unknown, small values assumed" if unknown else "",
        )

    def pairs(self, left: int = -1, *, causal: bool) -> float:
        """Pairs of a query and a key that it sees: half of a causal square.

        No query sees more than the longest request's keys, nor any key more than the longest
        request's queries: of decode with one long request among short ones, all keys once.
        """
        all_pairs = min(self.tokens * self.kv_len, self.qo_len * self.kv_tokens)
        pairs = all_pairs * (0.5 if causal and self.qo_len == self.kv_len > 1 else 1.0)
        return pairs if left < 0 else min(pairs, float(self.tokens * (left + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProblem(Problem):
    """Facts of an attention call; see the field comments for what each value means."""

    op = "attention"
    sizes = ("batch", "qo_len", "kv_len", "tokens", "kv_tokens")
    shorthands = MappingProxyType(
        {
            "head_dim": "head_dim_qk, head_dim_vo",
            "dtype": "q_dtype, kv_dtype, out_dtype",
            "kv": "kv, layout, page_size, block",
            "variant": "features",
        }
    )

    #: "dense" (one-shot), "ragged", "paged", "block_sparse" or "variable_blocks"
    kv: str = fact(
        domain=("dense", "ragged", "paged", "block_sparse", "variable_blocks"), structural=True
    )
    num_qo_heads: int = fact(domain=(1, 4, 8))
    num_kv_heads: int = fact(domain=(1, 2, 4))
    head_dim_qk: int = fact(domain=(40, 64, 72, 96, 112, 128, 192, 256))
    head_dim_vo: int = fact(domain=(40, 64, 72, 96, 112, 128, 192, 256))
    q_dtype: str = fact(domain=(*FLOATS, *FP8))
    kv_dtype: str = fact(domain=(*FLOATS, *FP8))
    out_dtype: str = fact(domain=FLOATS)
    layout: str = fact(domain=("NHD", "HND"), default="NHD")
    page_size: int | None = fact(domain=(1, 5, 16, 64), default=None)
    #: (r, c) of uniform blocks
    block: tuple[int, int] | None = fact(domain=((1, 1), (16, 16), (3, 5)), default=None)
    #: what the variant uses, by name
    features: frozenset[str] = fact(
        domain=tuple(frozenset({name}) for name in FEATURES), default=frozenset()
    )
    #: hooks by a struct in C++, of which there is no reference: no domain to try it in
    functor: bool = fact(domain=(False,), default=False)
    #: a custom mask given to plan(): "none", "bool" or "packed"
    mask: str = fact(domain=("none", "bool", "packed"), default="none")
    #: q_offset or k_offset given to plan()
    offsets: bool = fact(domain=(False, True), default=False)
    #: refilled between replays of a CUDA graph
    graph: bool = fact(domain=(False, True), default=False)
    deterministic: bool = fact(domain=(False, True), default=False)
    #: where the metadata lie: "host" or "device"
    metadata: str = fact(domain=("host", "device"), default="host")
    variant: Variant = dataclasses.field(default_factory=Variant)

    @classmethod
    def expand(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Accept ``head_dim``, ``dtype`` and ``kv=Paged(16)`` as ``BatchAttention`` does."""
        facts = dict(facts)
        _refuse_twice(facts, "head_dim", "head_dim_qk", "head_dim_vo")
        _refuse_twice(facts, "dtype", "q_dtype", "kv_dtype", "out_dtype")
        if "head_dim" in facts:
            facts["head_dim_qk"], facts["head_dim_vo"] = dims(facts.pop("head_dim"))
        if "dtype" in facts:
            facts["q_dtype"], facts["kv_dtype"], facts["out_dtype"] = dtype_names(
                facts.pop("dtype")
            )
        if "kv" not in facts:
            facts["kv"] = "ragged"
        elif not isinstance(facts["kv"], str):
            _refuse_twice(facts, "kv", "layout", "page_size", "block")
            facts.update(kv_facts(facts["kv"]))
        if "variant" in facts:
            if not isinstance(facts["variant"], Variant):
                raise InvalidArgument(f"variant={facts['variant']!r}: give attnhub.Variant(...)")
            features = facts["variant"].features
            if facts.setdefault("features", features) != features:
                raise InvalidArgument("variant and features disagree; give the variant alone")
            facts.setdefault("functor", facts["variant"].functor is not None)
        return facts

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.num_qo_heads // self.num_kv_heads

    def work(self) -> Work:
        """FLOPs of both products (half under a causal square) and bytes of Q, K, V and O."""
        n = Sizes.of(self.extent)
        dim = self.head_dim_qk + self.head_dim_vo
        pairs = n.pairs(self.variant.band[0], causal="causal" in self.features)
        query, row = (
            self.head_dim_qk * DTYPE_BYTES[self.q_dtype],
            self.head_dim_vo * DTYPE_BYTES[self.out_dtype],
        )
        return Work(
            flops=2.0 * pairs * self.num_qo_heads * dim,
            bytes=float(
                n.kv_tokens * self.num_kv_heads * dim * DTYPE_BYTES[self.kv_dtype]
                + n.tokens * self.num_qo_heads * (query + row)
            ),
            assumed=n.assumed,
            fp8=self.q_dtype in FP8 and self.kv_dtype in FP8,
        )

    def validate(self) -> None:
        """Refuse heads that do not divide, and pages or blocks where K/V have none."""
        if self.num_qo_heads % self.num_kv_heads:
            raise InvalidArgument(
                f"num_qo_heads={self.num_qo_heads} is no multiple of "
                f"num_kv_heads={self.num_kv_heads}"
            )
        for name, kind in (("page_size", "paged"), ("block", "block_sparse")):
            if (getattr(self, name) is not None) != (self.kv == kind):
                raise InvalidArgument(
                    f"kv={self.kv!r} with {name}={getattr(self, name)}: "
                    f"give {name} with kv={kind!r}, and with no other"
                )
        rope = self.variant.rope
        if rope is not None and (rope.rotary_dim or 0) > self.head_dim_qk:
            raise InvalidArgument(
                f"rotary_dim={rope.rotary_dim} with head_dim_qk={self.head_dim_qk}: give at most "
                "the channels that a head has"
            )
        if self.kv == "dense":
            if self.mask == "packed":
                raise InvalidArgument("kv='dense' with mask='packed': dense masks are bool")
            for name in ("layout", "offsets", "graph", "metadata"):
                default = type(self).__dataclass_fields__[name].default
                if getattr(self, name) != default:
                    raise InvalidArgument(
                        f"kv='dense' with {name}={getattr(self, name)!r}: a call of dense tensors "
                        f"has no {name}; leave it out"
                    )


def _refuse_twice(facts: dict[str, Any], short: str, *fields: str) -> None:
    given = [name for name in fields if name in facts]
    if short in facts and given:
        raise InvalidArgument(f"{short} and {', '.join(given)} say the same twice; give one")


def kv_facts(kv: KVLayout) -> dict[str, Any]:
    """The problem fields that a KV layout object stands for."""
    if isinstance(kv, VariableBlocks):
        return {"kv": "variable_blocks", "layout": kv.layout}
    if type(kv) not in _KINDS:
        raise InvalidArgument(
            f"kv={kv!r}: use Paged(page_size), Ragged(), BlockSparse(r, c) or VariableBlocks()"
        )
    facts: dict[str, Any] = {"kv": _KINDS[type(kv)], "layout": kv.layout}
    if isinstance(kv, Paged):
        facts["page_size"] = kv.page_size
    if isinstance(kv, BlockSparse):
        facts["block"] = (kv.r, kv.c)
    return facts


def dtype_names(dtype: Any) -> tuple[str, str, str]:
    """Names of the q, kv and output dtypes from one dtype or a :class:`DTypes`."""
    trio = (dtype.q, dtype.kv, dtype.out) if isinstance(dtype, DTypes) else (dtype,) * 3
    q, kv, out = (str(d).removeprefix("torch.") for d in trio)
    for name, value, accepted in (
        ("q", q, FLOATS + FP8),
        ("kv", kv, FLOATS + FP8),
        ("out", out, FLOATS),
    ):
        if value not in accepted:
            raise InvalidArgument(
                f"{name} dtype {value!r} is not supported; use one of {', '.join(accepted)}"
                f"{did_you_mean(value, accepted)}"
            )
    return q, kv, out
