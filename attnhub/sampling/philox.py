"""The random numbers of every sampler: Philox4x32-10, a pure function of seed and offset.

Counter layout, which every kernel of this family shares. One block is four 32-bit words::

    key     = (seed & 0xffffffff, seed >> 32)
    counter = (block, stream, offset & 0xffffffff, offset >> 32)

Draw ``j`` of a request is word ``j % 4`` of block ``j // 4``. A uniform is the upper 24 bits of its
word times 2^-24: every float32 step of that size in [0, 1) is possible, 1 itself is not.
``stream`` is a constant of the op: 0 for draws of one token, 1 for chains of drafts, 2 for trees.
Two calls share no random word as long as their streams, their seeds or their offsets differ, so
drafts may be drawn and verified at the same seed and offset.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch

__all__ = ["CHAIN_STREAM", "SAMPLE_STREAM", "TREE_STREAM", "philox4x32", "philox_uniform"]

SAMPLE_STREAM = 0
CHAIN_STREAM = 1
TREE_STREAM = 2

_ROUNDS = 10
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Random words, int64 `[..., 4]` with values below 2^32.

    counter: int64 `[..., 4]` and key: int64 `[..., 2]`, 32-bit words, leading dims broadcast.

    >>> words = philox4x32(torch.zeros(4, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    >>> [f"{word:08x}" for word in words.tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key.unbind(-1)
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), -1)


def philox_uniform(
    seed: torch.Tensor, offset: torch.Tensor, count: int, *, stream: int
) -> torch.Tensor:
    """Uniform numbers in [0, 1), float32 `[batch, count]`.

    seed, offset: integer `[batch]`, read as 64-bit patterns, so negative values are fine. Row b
    depends on seed[b], offset[b] and the op's ``stream`` only.

    >>> seed, offset = torch.tensor([7, 7]), torch.tensor([0, 1])
    >>> philox_uniform(seed, offset, 3, stream=SAMPLE_STREAM).shape
    torch.Size([2, 3])
    """
    num_blocks = -(-count // 4)
    key = _words(seed)[:, None]
    counter = torch.zeros(len(offset), num_blocks, 4, dtype=torch.int64, device=offset.device)
    counter[..., 0] = torch.arange(num_blocks, device=offset.device)
    counter[..., 1] = stream
    counter[..., 2:] = _words(offset)[:, None]
    words = philox4x32(counter, key).flatten(1)[:, :count]
    return (words >> 8).to(torch.float32) * 2.0**-24


def _words(value: torch.Tensor) -> torch.Tensor:
    """The low and the high 32-bit word, int64 `[batch, 2]`."""
    value = value.to(torch.int64)
    return torch.stack([value & _WORD, (value >> 32) & _WORD], -1)


def _multiply(multiplier: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of a 32 x 32 bit product, in halves because int64 has no 64th value bit."""
    upper, lower = multiplier * (word >> 16), multiplier * (word & 0xFFFF)
    middle = upper + (lower >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (lower & 0xFFFF)
