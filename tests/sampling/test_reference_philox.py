"""Philox against the published known answers and an independent implementation on Python ints."""

from __future__ import annotations

import pytest
import torch

from attnhub.sampling.philox import (
    CHAIN_STREAM,
    SAMPLE_STREAM,
    TREE_STREAM,
    philox4x32,
    philox_uniform,
)

WORD = 2**32 - 1

# Random123's known-answer file, philox4x32 with 10 rounds: counter, key, output.
KNOWN_ANSWERS = [
    pytest.param(
        "00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8", id="zeros"
    ),
    pytest.param(
        "ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd", id="ones"
    ),
    pytest.param(
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
        id="pi",
    ),
]


def python_philox(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds on unbounded integers: no halves, no masks on the way."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (second // 2**32) ^ c[1] ^ k[0],
            second % 2**32,
            (first // 2**32) ^ c[3] ^ k[1],
            first % 2**32,
        ]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def python_uniform(seed: int, offset: int, index: int, stream: int) -> float:
    """Draw `index` by the documented counter layout."""
    seed, offset = seed % 2**64, offset % 2**64
    counter = [index // 4, stream, offset % 2**32, offset // 2**32]
    word = python_philox(counter, [seed % 2**32, seed // 2**32])[index % 4]
    return (word // 256) / 2**24


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    got = philox4x32(torch.tensor(words(counter)), torch.tensor(words(key)))
    assert got.tolist() == words(expected)
    assert python_philox(words(counter), words(key)) == words(expected)


def test_words_equal_independent_implementation() -> None:
    generator = torch.Generator().manual_seed(0)
    counter = torch.randint(0, WORD + 1, (64, 4), generator=generator)
    key = torch.randint(0, WORD + 1, (64, 2), generator=generator)
    expected = [python_philox(c, k) for c, k in zip(counter.tolist(), key.tolist(), strict=True)]
    assert philox4x32(counter, key).tolist() == expected


@pytest.mark.parametrize("count", [0, 1, 4, 5, 11], ids=["none", "part", "block", "over", "blocks"])
@pytest.mark.parametrize("stream", [0, 1, 2], ids=["sample", "chain", "tree"])
def test_uniform_follows_the_documented_layout(count: int, stream: int) -> None:
    # Bits above 32 in seed and offset, and negative values (read as 64-bit patterns).
    seeds = [0, 1, 2**33 + 5, -1, -(2**63)]
    offsets = [0, 2**32, 7, -3, 2**63 - 1]
    got = philox_uniform(torch.tensor(seeds), torch.tensor(offsets), count, stream=stream)
    expected = [
        [python_uniform(seed, offset, j, stream) for j in range(count)]
        for seed, offset in zip(seeds, offsets, strict=True)
    ]
    assert got.dtype == torch.float32
    assert got.tolist() == expected


def test_a_request_does_not_depend_on_its_batch_or_on_count() -> None:
    seed, offset = torch.arange(100), torch.arange(100) * 3
    together = philox_uniform(seed, offset, 9, stream=SAMPLE_STREAM)
    alone = torch.cat(
        [
            philox_uniform(seed[b : b + 1], offset[b : b + 1], 5, stream=SAMPLE_STREAM)
            for b in range(100)
        ]
    )
    assert torch.equal(together[:, :5], alone)


def test_ops_share_no_random_number() -> None:
    """At one seed and offset: nearly all of 3 x 2^14 draws of 24 bits differ, as chance has it."""
    seed, offset = torch.arange(256), torch.zeros(256, dtype=torch.int64)
    draws = [
        philox_uniform(seed, offset, 64, stream=stream)
        for stream in (SAMPLE_STREAM, CHAIN_STREAM, TREE_STREAM)
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not (draws[one] == draws[other]).any()
        correlation = torch.corrcoef(torch.stack([draws[one].flatten(), draws[other].flatten()]))
        assert abs(correlation[0, 1]) < 5 / draws[one].numel() ** 0.5


def test_uniforms_fill_zero_to_one_without_one() -> None:
    """2^18 draws: mean and variance within five standard errors, and the range is half open."""
    seed, offset = torch.arange(1024), torch.zeros(1024, dtype=torch.int64)
    draws = philox_uniform(seed, offset, 256, stream=SAMPLE_STREAM).double()
    assert 0.0 <= draws.min() < 1e-4
    assert 1 - 1e-4 < draws.max() <= 1 - 2**-24
    standard_error = (1 / 12 / draws.numel()) ** 0.5
    assert abs(draws.mean() - 0.5) < 5 * standard_error
    # The variance of (u - 1/2)^2 is 1/180.
    assert abs((draws - 0.5).square().mean() - 1 / 12) < 5 * (1 / 180 / draws.numel()) ** 0.5
