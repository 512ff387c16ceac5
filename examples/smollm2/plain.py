"""SmolLM2 (a Llama: Touvron et al., 2023) in plain PyTorch, one sequence at a time.

Nothing here comes from AttnHub and nothing is clever: this is the model that others are checked
against. Attention is the textbook formula, and the KV cache is two tensors a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu
from weights import ModelConfig


class DenseCache:
    """Keys (after RoPE) and values of the tokens seen so far, [tokens, kv_heads, head_dim] a layer.

    `tokens` counts the tokens that every layer has seen.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the new tokens' `keys` and `values` to `layer`; return all of that layer."""
        if layer in self._layers:
            old_keys, old_values = self._layers[layer]
            keys, values = torch.cat([old_keys, keys]), torch.cat([old_values, values])
        self._layers[layer] = keys, values
        return keys, values


class PlainModel:
    """The model as one `forward`, and greedy generation on top of it.

    Example:
        model = PlainModel(*load_weights())
        logits = model.forward(torch.tensor([504, 3575, 282]))    # [3, 49152]
    """

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor]) -> None:
        self.config = config
        self.weights = weights

    def forward(self, tokens: Tensor, cache: DenseCache | None = None) -> Tensor:
        """Return the logits [len, vocab] (float32) of the tokens that follow each of `tokens`.

        Args:
            tokens: token ids, [len], int64 or int32. They continue what `cache` holds.
            cache: keys and values of the tokens before; extended in place.

        Raises:
            ValueError: `tokens` is not one-dimensional, is empty, or passes the context length.
        """
        cache = DenseCache() if cache is None else cache
        end = cache.tokens + tokens.numel()
        if tokens.ndim != 1 or not cache.tokens < end <= self.config.context:
            raise ValueError(
                f"tokens of shape {list(tokens.shape)} after {cache.tokens} cached ones: accepted "
                f"is [len] with 1 to {self.config.context - cache.tokens} tokens; split or shorten"
            )
        positions = torch.arange(cache.tokens, end, device=tokens.device)
        x = embedding(tokens, self.weights["embed"])
        for layer in range(self.config.layers):
            x = x + self._attention(x, layer, positions, cache)
            x = x + self._ffn(x, layer)
        cache.tokens = end
        return linear(self._norm(x, "final_norm"), self.weights["embed"])

    def generate(
        self, prompt: Sequence[int], *, max_new_tokens: int, end: int | None = None
    ) -> list[int]:
        """Return the most likely continuation of `prompt`, token by token (greedy).

        It stops before the token `end`, or after `max_new_tokens`.
        """
        device = self.weights["embed"].device
        cache, answer, step = DenseCache(), list[int](), list(prompt)
        while len(answer) < max_new_tokens:
            logits = self.forward(torch.tensor(step, device=device), cache)
            token = int(logits[-1].argmax())
            if token == end:
                break
            answer.append(token)
            step = [token]
        return answer

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """RMSNorm (Zhang and Sennrich, 2019) of x [len, hidden]."""
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.config.rms_eps) * self.weights[name]

    def _attention(self, x: Tensor, layer: int, positions: Tensor, cache: DenseCache) -> Tensor:
        """Attention of the normed x [len, hidden] over the cached tokens and itself."""
        dim, theta = self.config.head_dim, self.config.rope_theta
        x = self._norm(x, f"layers.{layer}.attn_norm")
        q, k, v = (
            linear(x, self.weights[f"layers.{layer}.{name}"]).view(len(x), -1, dim)
            for name in "qkv"
        )
        k, v = cache.append(layer, rope(k, positions, theta), v)
        o = causal_attention(rope(q, positions, theta), k, v)
        return linear(o.flatten(1), self.weights[f"layers.{layer}.o"])

    def _ffn(self, x: Tensor, layer: int) -> Tensor:
        """SwiGLU (Shazeer, 2020) of the normed x [len, hidden]."""
        gate, up, down = (self.weights[f"layers.{layer}.{name}"] for name in ("gate", "up", "down"))
        x = self._norm(x, f"layers.{layer}.ffn_norm")
        return linear(silu(linear(x, gate)) * linear(x, up), down)


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Return x [len, heads, dim] rotated by its positions [len] (RoFormer: Su et al., 2021).

    Values c and c + dim / 2 of a head are one plane, turned by position * theta^(-2 c / dim).
    """
    dim = x.shape[-1]
    speeds = theta ** -(torch.arange(0, dim, 2, device=x.device, dtype=torch.float32) / dim)
    angles = (positions[:, None] * speeds)[:, None, :]  # [len, 1, dim / 2]
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(dim)) v, [qo_len, heads, dim] (Vaswani et al., 2017).

    q is [qo_len, heads, dim]; k and v are [kv_len, kv_heads, dim]; the queries are the last
    qo_len tokens, and none sees a later one. Query head h reads kv head h // group.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
    seen = seen.tril(k.shape[0] - q.shape[0])
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return torch.einsum("hij,jhd->ihd", weights, v)
