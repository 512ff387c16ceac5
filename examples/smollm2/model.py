"""SmolLM2 on AttnHub: one forward over a batch of requests that are at different points.

A row is a token. A request that has just come brings many rows (prefill), one that is writing
brings a single one (decode), and nothing below looks which is which: `BatchAttention` plans the
batch once, and all layers run that plan. Products with weights are torch's, all else is AttnHub's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear
from weights import ModelConfig

import attnhub
from attnhub import activation, norm, page, rope


@dataclass(frozen=True, slots=True)
class Batch:
    """The new tokens of each request, and the pages that hold all of its keys and values.

    All are int32: on the host, where planning reads them, or on the device. `tokens` [tokens] has
    the requests end to end: rows `qo_indptr[b]` to `qo_indptr[b + 1]` [batch + 1] are request b's.
    `seq_lens` [batch] counts its tokens, the new ones included, and `table` already has pages for
    them.
    """

    tokens: Tensor
    qo_indptr: Tensor
    seq_lens: Tensor
    table: attnhub.PagedKV


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of a layer, those of one input as one matrix, and its part of the KV cache."""

    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    o: Tensor  # [hidden, heads * head_dim]
    ffn_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * ffn, hidden]
    down: Tensor  # [hidden, ffn]
    next_norm: Tensor  # [hidden], of the next layer or of the output
    cache: Tensor  # [pages, 2, page_size, kv_heads, head_dim], keys and values


class Model:
    """The weights, a paged KV cache, and one `forward`.

    Args:
        config: the sizes.
        weights: as `load_weights` returns them.
        num_pages: pages of the KV cache in every layer.
        page_size: tokens in a page.
        device: where the model runs.
        dtype: of weights, activations and cache.

    Example:
        model = Model(*load_weights(), num_pages=128)
        logits = model.forward(batch)  # [batch, 49152]
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        *,
        num_pages: int,
        page_size: int = 16,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        def load(*names: str) -> Tensor:
            found = [weights[name] for name in names]
            joined = torch.cat(found) if len(found) > 1 else found[0]
            return joined.to(device, dtype)

        def layer(n: int) -> Layer:
            at = f"layers.{n}."
            last = n == config.layers - 1
            return Layer(
                qkv=load(at + "q", at + "k", at + "v"),
                o=load(at + "o"),
                ffn_norm=load(at + "ffn_norm"),
                gate_up=load(at + "gate", at + "up"),
                down=load(at + "down"),
                next_norm=load("final_norm" if last else f"layers.{n + 1}.attn_norm"),
                cache=torch.empty(
                    (num_pages, 2, page_size, config.kv_heads, config.head_dim),
                    device=device,
                    dtype=dtype,
                ),
            )

        self.config = config
        self.num_pages = num_pages
        self.page_size = page_size
        self.device = torch.device(device)
        self.embed = load("embed")
        self.first_norm = load("layers.0.attn_norm")
        self.layers = [layer(n) for n in range(config.layers)]
        self.rope = attnhub.Rope(theta=config.rope_theta)
        self.attention = attnhub.BatchAttention(
            config.heads,
            config.kv_heads,
            config.head_dim,
            dtype,
            attnhub.Paged(page_size=page_size),
            variant=attnhub.Variant(causal=True),
            device=device,
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits [batch, vocab] of the token that follows each request's last one.

        The keys and values of the new tokens are written to the cache on the way.
        """
        self.attention.plan(batch.qo_indptr, batch.table)
        table = attnhub.PagedKV(
            *self._here(batch.table.indptr, batch.table.indices, batch.table.last_page_len)
        )
        here = self._here(batch.tokens, batch.qo_indptr, batch.seq_lens)
        return self.compute(Batch(*here, table))

    def compute(self, batch: Batch) -> Tensor:
        """As `forward`, for what is planned and lies on the device; a CUDA graph may hold it."""
        tokens, qo_indptr, table = batch.tokens, batch.qo_indptr, batch.table
        requests, positions = page.get_batch_indices_positions(
            qo_indptr, batch.seq_lens, len(tokens)
        )
        eps = self.config.rms_eps

        residual = embedding(tokens, self.embed)
        x = norm.rmsnorm(residual, self.first_norm, eps=eps)
        for layer in self.layers:
            q, k, v = self._heads(linear(x, layer.qkv))
            rope.apply_rope_(q, k, positions, self.rope)
            page.append_paged_kv(k, v, layer.cache, table, requests, positions)
            o = self.attention.run(q, layer.cache)
            x = linear(o.flatten(1), layer.o)
            norm.fused_add_rmsnorm(x, residual, layer.ffn_norm, eps=eps)
            x = linear(activation.silu_and_mul(linear(x, layer.gate_up)), layer.down)
            norm.fused_add_rmsnorm(x, residual, layer.next_norm, eps=eps)
        return linear(x[qo_indptr[1:] - 1], self.embed)

    def _heads(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values as views [tokens, heads or kv_heads, head_dim]."""
        heads, kv_heads = self.config.heads, self.config.kv_heads
        each = qkv.unflatten(1, (-1, self.config.head_dim))
        return each.split([heads, kv_heads, kv_heads], dim=1)

    def _here(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors on the model's device."""
        return tuple(x.to(self.device, non_blocking=True) for x in tensors)
