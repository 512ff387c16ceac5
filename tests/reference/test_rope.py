"""Rotary embedding against complex rotations, and its frequencies against hand-computed ones."""

from __future__ import annotations

import cmath
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnhub.errors import InvalidArgument
from attnhub.rope import frequencies, reference
from attnhub.testing.compare import assert_close
from attnhub.testing.tolerance import Tolerance, tolerance
from attnhub.variant.rope import LinearScaling, Llama3Scaling, Rope, Scaling, YarnScaling

LLAMA3 = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
)
YARN = YarnScaling(factor=16.0, original_max_position=4096)
# A value is a sum of two products with a cosine and a sine of an angle known to half a float32 ulp.
FLOAT32 = Tolerance(max_abs=2e-6, rel=1e-6, rms=1e-6, reason="two float32 products and their sum")
ROUNDED = Tolerance(max_abs=0.0, rel=2.0**-24, rms=2.0**-24, reason="float64 rounded to float32")


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def f64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def float32_product(a: float, b: float) -> float:
    return float(torch.tensor(a, dtype=torch.float32) * torch.tensor(b, dtype=torch.float32))


def rotated_by_hand(x: torch.Tensor, positions: list[int], rope: Rope) -> torch.Tensor:
    """Multiply each pair, as one complex number, by ``factor * exp(i * angle)``."""
    rotary_dim = rope.rotary_dim or x.shape[-1]
    per_pair, factor = frequencies.inverse_frequencies(rotary_dim, rope.theta, rope.scaling)
    y = x.double().clone()
    for t, position in enumerate(positions):
        for i, frequency in enumerate(per_pair.tolist()):
            a, b = (2 * i, 2 * i + 1) if rope.interleaved else (i, i + rotary_dim // 2)
            turn = factor * cmath.exp(1j * float32_product(position, frequency))
            for h in range(x.shape[1]):
                z = complex(float(x[t, h, a]), float(x[t, h, b])) * turn
                y[t, h, a], y[t, h, b] = z.real, z.imag
    return y


# --- frequencies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rotary_dim", [2, 6, 64, 128])
@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_plain_frequencies_are_powers_of_the_base(rotary_dim: int, theta: float) -> None:
    expected = [math.exp(-2 * i / rotary_dim * math.log(theta)) for i in range(rotary_dim // 2)]
    actual, factor = frequencies.inverse_frequencies(rotary_dim, theta)
    assert actual.dtype == torch.float32
    assert factor == 1.0
    assert_close(actual, f64(expected), tolerance=ROUNDED)


def test_linear_scaling_divides_every_frequency() -> None:
    plain, _ = frequencies.inverse_frequencies(64, 1e4)
    scaled, factor = frequencies.inverse_frequencies(64, 1e4, LinearScaling(factor=4.0))
    assert torch.equal(scaled, plain / 4.0)
    assert factor == 1.0


def test_llama3_published_model_by_hand() -> None:
    """Llama 3.1 8B: dim 128, base 5e5. Computed with 40 decimal digits."""
    actual, factor = frequencies.inverse_frequencies(128, 5e5, LLAMA3)
    by_pair = {
        0: 1.0,
        16: 5e5**-0.25,  # wavelength 167 < 8192/4: kept
        # 5e5^-1/2 makes 1.8438478 turns over 8192, so (1.8438478 - 1) / 3 = 0.2812826 is kept.
        32: 0.00052484616099295467,
        63: 3.0689259889145111e-07,  # wavelength beyond 8192: 5e5^(-126/128) / 8
    }
    assert_close(actual[list(by_pair)], f64(list(by_pair.values())), tolerance=ROUNDED)
    assert factor == 1.0


def llama3_by_wavelength(theta: float, dim: int, s: Llama3Scaling) -> list[float]:
    """The release's own form: three bands of the wavelength 2 pi / f."""
    out = []
    for i in range(dim // 2):
        f = theta ** (-2 * i / dim)
        wavelength = 2 * math.pi / f
        if wavelength < s.original_max_position / s.high_freq_factor:
            out.append(f)
        elif wavelength > s.original_max_position / s.low_freq_factor:
            out.append(f / s.factor)
        else:
            smooth = s.original_max_position / wavelength - s.low_freq_factor
            smooth /= s.high_freq_factor - s.low_freq_factor
            out.append((1 - smooth) * f / s.factor + smooth * f)
    return out


@pytest.mark.parametrize(
    ("theta", "dim", "scaling"),
    [
        pytest.param(5e5, 128, LLAMA3, id="llama-3.1"),
        pytest.param(
            5e5,
            64,
            Llama3Scaling(
                factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
            ),
            id="llama-3.2-1b",
        ),
        pytest.param(
            1e4,
            50,
            Llama3Scaling(
                factor=2.5, low_freq_factor=0.5, high_freq_factor=64.0, original_max_position=1000
            ),
            id="odd-pair-count-wide-band",
        ),
    ],
)
def test_llama3_is_three_bands(theta: float, dim: int, scaling: Llama3Scaling) -> None:
    actual, _ = frequencies.inverse_frequencies(dim, theta, scaling)
    assert_close(actual, f64(llama3_by_wavelength(theta, dim, scaling)), tolerance=ROUNDED)


def test_yarn_published_settings_by_hand() -> None:
    """Dim 64, base 1e4, 4096 to 65536. The bounds are 10.47 and 22.51: kept up to pair 10, all
    stretched from pair 23, between them linear in the pair index."""
    actual, factor = frequencies.inverse_frequencies(64, 1e4, YARN)
    by_pair = {
        0: 1.0,
        10: 0.056234132519034908,  # 1e4^(-20/64)
        16: 0.0056730769230769231,  # 1e-2 * (7/13 + 6/13 / 16)
        23: 8.3345089510207752e-05,  # 1e4^(-46/64) / 16
        31: 10 ** (-31 / 8) / 16,
    }
    assert_close(actual[list(by_pair)], f64(list(by_pair.values())), tolerance=ROUNDED)
    assert factor == pytest.approx(1.2772588722239781, rel=1e-15)  # 0.1 ln 16 + 1


def test_yarn_ends_of_the_ramp_turn_as_often_as_the_betas_say() -> None:
    plain, _ = frequencies.inverse_frequencies(128, 1e6)
    scaling = YarnScaling(factor=4.0, original_max_position=32768)
    scaled, _ = frequencies.inverse_frequencies(128, 1e6, scaling)
    turns = 32768 * plain.double() / (2 * math.pi)
    ratio = scaled.double() / plain.double()
    # The bounds are rounded outwards to whole pairs: certain of one more pair on each side only.
    fast, slow = ratio[turns > 32 * 1e6 ** (1 / 64)], ratio[turns < 1e6 ** (-1 / 64)]
    assert min(fast.numel(), slow.numel()) > 10
    assert_close(fast, torch.ones_like(fast), tolerance=FLOAT32)
    assert_close(slow, torch.full_like(slow, 0.25), tolerance=FLOAT32)
    assert bool((ratio.diff() <= 1e-6).all())


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        pytest.param(
            YarnScaling(factor=16.0, original_max_position=4096, attention_factor=0.5),
            0.5,
            id="given",
        ),
        pytest.param(
            YarnScaling(factor=1.0, original_max_position=4096), 1.0, id="nothing-stretched"
        ),
        pytest.param(
            YarnScaling(factor=40.0, original_max_position=4096),
            0.1 * math.log(40.0) + 1.0,
            id="paper",
        ),
    ],
)
def test_yarn_attention_factor(scaling: YarnScaling, expected: float) -> None:
    assert frequencies.inverse_frequencies(64, 1e4, scaling)[1] == pytest.approx(expected)


def test_yarn_with_an_empty_ramp_is_a_step() -> None:
    # Both bounds clamp to pair 0: everything after it is stretched.
    scaling = YarnScaling(factor=2.0, original_max_position=2, beta_fast=32, beta_slow=1)
    plain, _ = frequencies.inverse_frequencies(8, 1e4)
    scaled, _ = frequencies.inverse_frequencies(8, 1e4, scaling)
    assert scaled.isfinite().all()
    assert torch.equal(scaled[1:], plain[1:] / 2.0)


@pytest.mark.parametrize(
    ("rope_type", "dim", "theta", "scaling"),
    [
        pytest.param("linear", 64, 1e4, LinearScaling(factor=4.0), id="linear"),
        pytest.param("llama3", 128, 5e5, LLAMA3, id="llama3"),
        pytest.param("yarn", 64, 1e4, YARN, id="yarn"),
        pytest.param(
            "yarn",
            128,
            1e6,
            replace(YARN, factor=4.0, beta_fast=16.0, beta_slow=2.0, attention_factor=1.5),
            id="yarn-all-options",
        ),
    ],
)
def test_frequencies_agree_with_transformers(
    rope_type: str, dim: int, theta: float, scaling: Scaling
) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    options = {name: value for name, value in asdict(scaling).items() if value is not None}
    if "original_max_position" in options:
        options["original_max_position_embeddings"] = options.pop("original_max_position")
    config = transformers.LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": rope_type, "rope_theta": theta, **options},
    )
    expected, expected_factor = rope_utils.ROPE_INIT_FUNCTIONS[rope_type](config, "cpu")
    actual, factor = frequencies.inverse_frequencies(dim, theta, scaling)
    # It computes in float32: a power, a ramp and a blend cost it a few ulp.
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-12)


@pytest.mark.parametrize(
    ("rotary_dim", "theta", "scaling", "message"),
    [
        pytest.param(7, 1e4, None, "rotary_dim=7.*even", id="odd"),
        pytest.param(0, 1e4, None, "rotary_dim=0", id="zero"),
        pytest.param(8, 0.0, None, "theta=0.0", id="base-0"),
        pytest.param(8, math.nan, None, "theta=nan", id="base-nan"),
        pytest.param(8, 1.0, YARN, "theta=1.0: YaRN", id="yarn-base-1"),
        pytest.param(8, 1e4, "yarn", "scaling is a str", id="unknown-scaling"),
    ],
)
def test_bad_frequencies_are_refused(
    rotary_dim: int, theta: float, scaling: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        frequencies.inverse_frequencies(rotary_dim, theta, scaling)


# --- rotation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize(
    ("dim", "rotary_dim"),
    [
        pytest.param(8, None, id="whole-head"),
        pytest.param(10, 6, id="partial"),
        pytest.param(7, 2, id="odd-head-one-pair"),
        pytest.param(64, 64, id="explicit-whole"),
    ],
)
@pytest.mark.parametrize("scaling", [None, LLAMA3, YARN], ids=["plain", "llama3", "yarn"])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_pairs_turn_like_complex_numbers(
    interleaved: bool,
    dim: int,
    rotary_dim: int | None,
    scaling: Scaling | None,
    dtype: torch.dtype,
) -> None:
    rope = Rope(theta=1e4, rotary_dim=rotary_dim, interleaved=interleaved, scaling=scaling)
    positions = [0, 1, 5, 4096]
    x = normal(4, 3, dim, dtype=dtype)
    y = reference.apply_rope(x, torch.tensor(positions, dtype=torch.int32), rope)
    assert y.dtype == dtype
    tight = FLOAT32 if dtype == torch.float32 else tolerance(dtype)
    assert_close(y, rotated_by_hand(x, positions, rope), tolerance=tight)
    assert torch.equal(y[..., rotary_dim or dim :], x[..., rotary_dim or dim :])


@pytest.mark.parametrize("position", [131071, 2**24 - 1, -3], ids=str)
def test_angle_is_a_float32_product(position: int) -> None:
    # A float64 angle differs by up to 0.5 here: the rounding of the angle is part of the meaning.
    rope = Rope(theta=1e4)
    x = normal(1, 1, 32, dtype=torch.float64)
    y = reference.apply_rope(x, torch.tensor([position]), rope)
    assert_close(y, rotated_by_hand(x, [position], rope))


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [12, 8], ids=["whole", "partial"])
@pytest.mark.parametrize("scaling", [None, YARN], ids=["plain", "yarn"])
def test_table_and_direct_rotation_agree(
    interleaved: bool, rotary_dim: int, scaling: Scaling | None
) -> None:
    rope = Rope(theta=1e4, rotary_dim=rotary_dim, interleaved=interleaved, scaling=scaling)
    cache = frequencies.cos_sin_cache(50, rotary_dim, 1e4, scaling)
    x, positions = normal(5, 2, 12), torch.tensor([49, 0, 7, 7, 1], dtype=torch.int32)
    direct = reference.apply_rope(x, positions, rope)
    looked_up = reference.apply_rope_cos_sin_cache(x, positions, cache, interleaved=interleaved)
    assert_close(looked_up, direct, tolerance=FLOAT32)
    assert_close(looked_up, rotated_by_hand(x, positions.tolist(), rope), tolerance=FLOAT32)


def test_table_is_cosines_then_sines_times_the_factor() -> None:
    cache = frequencies.cos_sin_cache(9, 6, 1e4, YARN)
    per_pair, factor = frequencies.inverse_frequencies(6, 1e4, YARN)
    angles = [[float32_product(p, f) for f in per_pair.tolist()] for p in range(9)]
    rows = [[factor * math.cos(a) for a in r] + [factor * math.sin(a) for a in r] for r in angles]
    assert cache.dtype == torch.float32
    assert_close(cache, torch.tensor(rows, dtype=torch.float64), tolerance=FLOAT32)
    assert frequencies.cos_sin_cache(0, 6, 1e4).shape == (0, 6)


def test_table_may_hold_anything_no_pair_needs() -> None:
    cache = frequencies.cos_sin_cache(4, 4, 1e4)
    cache[[0, 3]] = torch.nan
    y = reference.apply_rope_cos_sin_cache(normal(2, 1, 4), torch.tensor([1, 2]), cache)
    assert y.isfinite().all()


def test_two_pairings_are_one_permutation_apart() -> None:
    x, positions = normal(3, 2, 16), torch.arange(3)
    to_interleaved = torch.arange(16).reshape(2, 8).T.flatten()
    halves = reference.apply_rope(x, positions, Rope(theta=1e4))
    pairs = reference.apply_rope(
        x[..., to_interleaved], positions, Rope(theta=1e4, interleaved=True)
    )
    assert torch.equal(pairs, halves[..., to_interleaved])


@given(q_at=st.integers(0, 2000), k_at=st.integers(0, 2000), shift=st.integers(-500, 5000))
def test_scores_depend_on_the_distance_only(q_at: int, k_at: int, shift: int) -> None:
    rope, q, k = Rope(theta=1e4), normal(1, 1, 16), normal(1, 1, 16, seed=1)

    def score(moved: int) -> float:
        turned_q = reference.apply_rope(q, torch.tensor([q_at + moved]), rope)
        turned_k = reference.apply_rope(k, torch.tensor([k_at + moved]), rope)
        return float((turned_q * turned_k).sum())

    # float32 angles near 7000 are known to 2.4e-4, on 16 products of order 1.
    assert score(shift) == pytest.approx(score(0), abs=5e-3)


def test_strided_and_empty_input() -> None:
    packed = normal(6, 12, 20)
    x = packed[::2, 4:8, ::2]
    assert x.stride(-1) == 2
    positions = torch.tensor([3, 1, 2])
    expected = reference.apply_rope(x.contiguous(), positions, Rope(theta=1e4))
    before = packed.clone()
    assert torch.equal(reference.apply_rope(x, positions, Rope(theta=1e4)), expected)
    assert torch.equal(packed, before)
    empty = reference.apply_rope(torch.empty(0, 2, 8), torch.empty(0, dtype=torch.int32), Rope())
    assert empty.shape == (0, 2, 8)


def test_rotating_more_than_the_head_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="rotary_dim=16 exceeds the head dim 8"):
        reference.apply_rope(normal(1, 1, 8), torch.tensor([0]), Rope(theta=1e4, rotary_dim=16))
    with pytest.raises(InvalidArgument, match="cache has 5 columns"):
        reference.apply_rope_cos_sin_cache(normal(1, 1, 8), torch.tensor([0]), torch.ones(2, 5))


# --- positions ------------------------------------------------------------------------------------


@given(requests=st.lists(st.tuples(st.integers(0, 6), st.integers(-5, 10**9)), max_size=8))
def test_positions_count_up_from_each_offset(requests: list[tuple[int, int]]) -> None:
    lengths, offsets = [r[0] for r in requests], [r[1] for r in requests]
    indptr = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    actual = reference.positions_from_offsets(indptr, torch.tensor(offsets, dtype=torch.int32))
    assert actual.dtype == torch.int32
    assert actual.tolist() == [first + i for length, first in requests for i in range(length)]
