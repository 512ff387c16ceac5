"""Rotation frequencies of RoPE and of the ways to stretch it to longer contexts.

Everything is computed in float64 and rounded to float32 once: the frequencies are part of the
model, and a kernel on any device must see the same numbers.

Sources: Su et al., "RoFormer" (2021); Chen et al., "Extending Context Window of Large Language
Models via Positional Interpolation" (2023); Peng et al., "YaRN" (2023); the Llama 3.1 release.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.variant.rope import LinearScaling, Llama3Scaling, Scaling, YarnScaling

__all__ = ["cos_sin_cache", "inverse_frequencies"]


def inverse_frequencies(
    rotary_dim: int,
    theta: float,
    scaling: Scaling | None = None,
    *,
    device: torch.device | str | None = None,
) -> tuple[Tensor, float]:
    """Radians per position of each rotated pair, and the factor on cos and sin.

    Args:
        rotary_dim: how many leading elements of a head are rotated; even.
        theta: the base; pair ``i`` turns by ``theta ** (-2i / rotary_dim)`` per position.
        scaling: how the frequencies are stretched, or None.
        device: where the result lies; the CPU if None.

    Returns:
        float32 ``[rotary_dim / 2]`` and the attention factor: 1.0 except for YaRN, which makes the
        logits of a stretched model sharper by scaling rotated queries and keys alike.

    Raises:
        InvalidArgument: rotary_dim is odd or not positive, theta is not positive (YaRN: not above
            1), or the kind of scaling is unknown.

    Example:
        >>> inverse_frequencies(4, 10000.0, LinearScaling(factor=2.0))
        (tensor([0.5000, 0.0050]), 1.0)
    """
    if rotary_dim <= 0 or rotary_dim % 2:
        raise InvalidArgument(
            f"rotary_dim={rotary_dim}: RoPE turns pairs, give an even number above 0"
        )
    if not theta > 0.0:
        raise InvalidArgument(f"theta={theta}: the base must be above 0, usually 1e4 or more")
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim
    frequencies = torch.pow(theta, -exponents)
    attention_factor = 1.0
    if isinstance(scaling, LinearScaling):
        frequencies = frequencies / scaling.factor
    elif isinstance(scaling, Llama3Scaling):
        frequencies = _llama3(frequencies, scaling)
    elif isinstance(scaling, YarnScaling):
        frequencies = _yarn(frequencies, rotary_dim, theta, scaling)
        attention_factor = _yarn_attention_factor(scaling)
    elif scaling is not None:
        raise InvalidArgument(
            f"scaling is a {type(scaling).__name__}; give None, LinearScaling, Llama3Scaling or "
            "YarnScaling"
        )
    return frequencies.to(torch.float32), attention_factor


def cos_sin_cache(
    max_position: int,
    rotary_dim: int,
    theta: float,
    scaling: Scaling | None = None,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """The cosines and sines of positions ``0 .. max_position - 1``, as one table.

    Row ``p`` holds ``cos(p * f)`` of all pairs, then ``sin(p * f)``, both times the attention
    factor. The angle ``p * f`` is rounded to float32 first, as wherever RoPE is computed on the
    fly, so that both ways agree at long contexts too.

    Args:
        max_position: number of rows.
        rotary_dim: as in `inverse_frequencies`.
        theta: as in `inverse_frequencies`.
        scaling: as in `inverse_frequencies`.
        device: where the table lies; the CPU if None.

    Returns:
        float32 ``[max_position, rotary_dim]``.

    Raises:
        InvalidArgument: as `inverse_frequencies`.

    Example:
        >>> cos_sin_cache(2, 2, 10000.0)
        tensor([[1.0000, 0.0000],
                [0.5403, 0.8415]])
    """
    frequencies, attention_factor = inverse_frequencies(rotary_dim, theta, scaling, device=device)
    positions = torch.arange(max_position, dtype=torch.float32, device=device)
    angles = positions[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1) * attention_factor


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow pairs are stretched by the factor, fast ones kept, those between blended linearly.

    A pair's speed is the number of turns it makes over the original context.
    """
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def _yarn(frequencies: Tensor, rotary_dim: int, theta: float, scaling: YarnScaling) -> Tensor:
    """Blend of kept and stretched frequencies, by pair index.

    NOTE: the paper writes the blend linear in the number of turns. Its authors' code, and with it
    every published checkpoint, makes it linear in the pair index, between the (whole) indices whose
    pairs turn beta_fast and beta_slow times over the original context; that is what is done here.
    """
    if not theta > 1.0:
        raise InvalidArgument(
            f"theta={theta}: YaRN needs pairs that turn ever slower, theta above 1"
        )

    def index_of(turns: float) -> float:
        wavelength = scaling.original_max_position / turns
        return rotary_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(index_of(scaling.beta_fast)), 0)
    last = min(math.ceil(index_of(scaling.beta_slow)), rotary_dim - 1)
    # An empty range is a step; the small width keeps the division defined and nothing lies inside.
    width = last - first if last != first else 0.001
    index = torch.arange(rotary_dim // 2, dtype=torch.float64, device=frequencies.device)
    stretched = ((index - first) / width).clamp(0.0, 1.0)
    return frequencies * ((1.0 - stretched) + stretched / scaling.factor)


def _yarn_attention_factor(scaling: YarnScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1.0 else 1.0
