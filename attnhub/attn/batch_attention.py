"""``BatchAttention``: constructor, ``plan()``, ``run()``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from attnhub.attn import batch as batches
from attnhub.attn import inputs
from attnhub.attn.batch import AttentionBatch, Offsets
from attnhub.attn.inputs import NO_PARAMS, NO_SCALES
from attnhub.attn.kv import DTypes, GraphLimits, KVLayout, KVMetadata, Paged, Ragged, Scales, dims
from attnhub.attn.planned import NOT_PLANNED, PlannedBatch
from attnhub.attn.problem import AttentionProblem, dtype_names, kv_facts
from attnhub.core import check, functional, handles
from attnhub.errors import NotPlanned
from attnhub.variant import Variant

_DEFAULT = Variant()
_RAGGED = Ragged()


class BatchAttention(PlannedBatch):
    """Attention over a batch of requests: prefill, append, decode, or any mix, in one call.

    What never changes goes to the constructor, what changes per step to :meth:`plan`, what changes
    per layer to :meth:`run`; one planned object serves all layers with the same facts.

    Args:
        num_qo_heads: query heads.
        num_kv_heads: KV heads; must divide ``num_qo_heads``.
        head_dim: one integer, or (dim of q and k, dim of v and output).
        dtype: one dtype, or :class:`DTypes` of q, kv and output.
        kv: ``Paged(page_size, layout)``, ``Ragged(layout)``, ``BlockSparse(r, c)`` or
            ``VariableBlocks()``.
        variant: what is computed between the two products.
        device: needed unless the metadata given to ``plan()`` lie on a GPU.
        graph: limits for CUDA graphs: the backend is chosen here, addresses never change.
        deterministic: bitwise equal results, run to run and whatever else is in the batch.
        backend: require this backend.

    Raises:
        InvalidArgument: facts that contradict each other.
        BackendUnsupported, NoBackend: from ``plan()`` (from here with ``graph``).

    Example::

        attn = BatchAttention(32, 8, 128, torch.bfloat16, Paged(page_size=16), device="cuda:0",
                              variant=Variant(causal=True))
        attn.plan(qo_indptr, PagedKV(indptr, indices, last_page_len))
        out = attn.run(q, kv_cache)
    """

    _problem = AttentionProblem

    def __init__(
        self,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int | tuple[int, int],
        dtype: torch.dtype | str | DTypes,
        kv: KVLayout = _RAGGED,
        *,
        variant: Variant = _DEFAULT,
        device: torch.device | str | None = None,
        graph: GraphLimits | None = None,
        deterministic: bool = False,
        backend: str = "",
    ) -> None:
        inputs.group(num_qo_heads, num_kv_heads)
        if not isinstance(variant, Variant):
            check.fail(f"variant is a {type(variant).__name__}, needs attnhub.Variant(...)")
        dim_qk, dim_vo = dims(head_dim)
        q, kv_dtype, out = dtype_names(dtype)
        facts: dict[str, Any] = {
            **kv_facts(kv),
            "num_qo_heads": num_qo_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim_qk": dim_qk,
            "head_dim_vo": dim_vo,
            "q_dtype": q,
            "kv_dtype": kv_dtype,
            "out_dtype": out,
            "features": variant.features,
            "functor": variant.functor is not None,
            "variant": variant,
            "deterministic": deterministic,
        }
        self._heads = (num_qo_heads, num_kv_heads)
        self._dims = (dim_qk, dim_vo)
        self._dtypes = tuple(check.dtype_of(name) for name in (q, kv_dtype, out))
        self._variant = variant
        super().__init__(facts, kv, device=device, graph=graph, backend=backend)

    # -- plan ------------------------------------------------------------------------------

    def plan(
        self,
        qo_indptr: Tensor,
        kv_metadata: KVMetadata,
        *,
        mask: Tensor | Sequence[Tensor] | None = None,
        q_offset: Tensor | None = None,
        k_offset: Tensor | None = None,
        max_qo_len: int | None = None,
        max_kv_len: int | None = None,
        params: Mapping[str, Tensor | float] | None = None,
        validate: bool = False,
    ) -> None:
        """Take over the next batch. Never synchronises with the device, unless ``validate``.

        Works on the current stream, whose order keeps it behind the runs of the last batch. If
        those are on another stream, order the two first (an event, or ``wait_stream``).

        Args:
            qo_indptr: ``[batch + 1]`` int32, host or device: request b has query rows
                ``qo_indptr[b]:qo_indptr[b+1]``; one row each is decode.
            kv_metadata: the ``PagedKV``, ``RaggedKV``, ... that fits the constructor's ``kv``.
            mask: custom mask: flat bool of each request's ``[qo_len, kv_len]`` end to end, the same
                packed to bytes (little bit order, each request padded to a byte), or a list of
                2-D bool tensors. Combines with causal and window.
            q_offset: int32 ``[batch]``, RoPE position of each request's first query (default
                ``kv_len - qo_len``).
            k_offset: int32 ``[batch]``, RoPE position of its first key (default 0).
            max_qo_len: upper bound, where the metadata are on the device.
            max_kv_len: likewise.
            params: run-time parameters of the variant that hold for every ``run()``, all or some.
            validate: check device metadata by value too (a synchronisation).

        Raises:
            InvalidArgument: metadata that contradict themselves or the constructor.
            BackendUnsupported, NoBackend: with the table of reasons.
        """
        intake = self._intake(qo_indptr, kv_metadata, validate=validate)
        batch = batches.build(
            qo_indptr,
            kv_metadata,
            self._kv,
            intake=intake,
            num_kv_heads=self._heads[1],
            mask=mask,
            offsets=Offsets(q=q_offset, k=k_offset),
            lengths=(max_qo_len, max_kv_len),
        )
        if self._variant.rope is None and (q_offset is not None or k_offset is not None):
            check.fail("q_offset/k_offset are RoPE positions; this variant has no rope")
        if params is not None:
            heads = self._heads[0]
            inputs.params(params, self._variant, heads, intake.device, complete=False)
        batch.params = dict(params) if params else NO_PARAMS
        self._take(batch, intake.device)

    def _batch_facts(self, batch: AttentionBatch) -> dict[str, Any]:
        return {
            "mask": "none" if batch.mask is None else ("packed" if batch.mask_packed else "bool"),
            "offsets": batch.q_offset is not None or batch.k_offset is not None,
            **super()._batch_facts(batch),
        }

    # -- run -------------------------------------------------------------------------------

    @overload
    def run(
        self,
        q: Tensor,
        kv: Tensor | tuple[Tensor, Tensor],
        *,
        scales: Scales = ...,
        params: Mapping[str, Tensor | float] = ...,
        out: Tensor | None = ...,
        return_lse: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def run(
        self,
        q: Tensor,
        kv: Tensor | tuple[Tensor, Tensor],
        *,
        scales: Scales = ...,
        params: Mapping[str, Tensor | float] = ...,
        out: Tensor | None = ...,
        return_lse: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def run(
        self,
        q: Tensor,
        kv: Tensor | tuple[Tensor, Tensor],
        *,
        scales: Scales = ...,
        params: Mapping[str, Tensor | float] = ...,
        out: Tensor | None = ...,
        return_lse: bool,
    ) -> Tensor | tuple[Tensor, Tensor]: ...

    def run(
        self,
        q: Tensor,
        kv: Tensor | tuple[Tensor, Tensor],
        *,
        scales: Scales = NO_SCALES,
        params: Mapping[str, Tensor | float] = NO_PARAMS,
        out: Tensor | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the planned batch: launches only, no synchronisation.

        On the stream of :meth:`plan`, or on one that waits for it. Never on two streams at once:
        counters and partial results are shared, so use one object per stream.

        Args:
            q: ``[tokens, num_qo_heads, head_dim_qk]``; in graph mode up to ``max_qo_tokens`` rows,
                those past the batch come out as zeros.
            kv: cache tensor or (K, V) as the constructor's ``kv`` describes.
            scales: what stored q, k and v are multiplied by.
            params: run-time parameters of the variant, over those given to ``plan()``. Compiled
                code is compiled anew for each value of a Python number: give what changes from
                step to step as a 0-d tensor.
            out: ``[tokens, num_qo_heads, head_dim_vo]`` to write to.
            return_lse: also return the natural-log LSE, float32 ``[tokens, num_qo_heads]``.

        Raises:
            NotPlanned: ``plan()`` was not called.
            InvalidArgument: tensors that do not fit the constructor or the plan.
        """
        if not isinstance(q, Tensor):
            check.is_tensor(q, "q")
        if out is None:
            shape = (*q.shape[:1], self._heads[0], self._dims[1])
            out = torch.empty(shape, dtype=self._dtypes[2], device=q.device)
        elif not isinstance(out, Tensor):
            check.is_tensor(out, "out")
        lse = q.new_empty(q.shape[:2], dtype=torch.float32) if return_lse else None
        if torch.compiler.is_compiling():
            k, v = inputs.split_cache(kv, self._kv)
            check.no_grad(q, k, v)  # the op itself sees tensors without their history
            check.no_grad(out, name="out")
            _run_op(q, k, v, out, lse, *inputs.flatten(scales, params), self._handle)
        else:
            self._execute(q, kv, out, lse, scales, params)
        return out if lse is None else (out, lse)

    def _execute(
        self,
        q: Tensor,
        kv: Tensor | tuple[Tensor, Tensor],
        out: Tensor,
        lse: Tensor | None,
        scales: Scales,
        params: Mapping[str, Tensor | float],
    ) -> None:
        if self._run is None:
            raise NotPlanned(NOT_PLANNED)
        k, v = inputs.split_cache(kv, self._kv)
        facts = (
            q.shape, q.stride(), q.dtype, q.device,
            k.shape, k.stride(), k.dtype, k.device,
            out.shape, out.stride(), out.dtype, out.device, lse is None,
            # K and V of one cache have equal facts.
            None if kv.__class__ is Tensor else (v.shape, v.stride(), v.dtype, v.device),
            torch.is_grad_enabled()
            and (q.requires_grad or k.requires_grad or v.requires_grad or out.requires_grad),
        )  # fmt: skip
        if facts not in self._seen:
            self._check(q, k, v, out, lse)
            self._check_cache(kv, k, v)
            self._seen.add(facts)
        if scales is not NO_SCALES:
            inputs.scales(scales, *self._heads, q.device)
        planned = self._batch.params  # type: ignore[union-attr]
        if params is not NO_PARAMS or planned or self._variant.params:
            inputs.mapping(params)
            params = {**planned, **params}
            inputs.params(params, self._variant, self._heads[0], q.device)
        self._run(q, k, v, out, lse, None, scales, params)

    def _check(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        assert self._device is not None
        assert self._batch is not None
        hq, (dqk, dvo) = self._heads[0], self._dims
        check.shape(q, "q", ("tokens", hq, dqk))
        self._check_rows(q, "q")
        q_dtype, kv_dtype, out_dtype = self._dtypes
        check.shape(out, "out", (q.shape[0], hq, dvo))
        expected = (
            ("q", q, q_dtype),
            ("k", k, kv_dtype),
            ("v", v, kv_dtype),
            ("out", out, out_dtype),
        )
        for name, x, dtype in expected:
            check.dtype(x, name, (dtype,))
            check.device(x, name, self._device, "this attention")
            check.last_contiguous(x, name)
        check.no_grad(q, k, v)
        check.no_grad(out, name="out")
        if lse is not None and self._variant.softmax is False:
            check.fail("return_lse with softmax=False: there is no denominator to take a log of")

    def _check_cache(self, kv: Tensor | tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> None:
        heads, (dqk, dvo) = self._heads[1], self._dims
        if isinstance(self._kv, Paged) and isinstance(kv, Tensor):
            inputs.cache(kv, "kv", self._kv, (heads, dqk), whole=True)
        self._check_kv(k, "k", heads, dqk)
        self._check_kv(v, "v", heads, dvo)
        if k.shape[:-1] != v.shape[:-1]:
            check.fail(f"k has shape {list(k.shape)} and v {list(v.shape)}; they must match")

    def _check_kv(self, x: Tensor, name: str, heads: int, dim: int) -> None:
        batch = self._batch
        assert batch is not None
        rows: int | str = "kv_tokens"
        if isinstance(self._kv, Paged):
            inputs.cache(x, name, self._kv, (heads, dim), whole=False)
            self._check_page_ids(x, name)
            return
        shape = (rows, heads, dim) if self._kv.layout == "NHD" else (heads, rows, dim)
        check.shape(x, name, shape)
        length = x.shape[0 if self._kv.layout == "NHD" else 1]
        if batch.kv_lens is not None and length < batch.kv_lens.total:
            check.fail(f"{name} has {length} rows, but the plan needs {batch.kv_lens.total}")


def _run_flat(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, *rest: Any) -> None:
    *flat, handle = rest
    owner: BatchAttention = handles.get(handle)
    owner._execute(q, (k, v), out, lse, *inputs.unflatten(*flat))  # noqa: SLF001 - its other door


_run_op = functional.define(
    "attention_run",
    "(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, Tensor?[] scale_tensors, "
    "float[] scale_values, str[] names, Tensor[] tensors, Scalar[] numbers, int handle) -> ()",
    _run_flat,
)
