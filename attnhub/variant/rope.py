"""Rotary position embedding as a part of a variant: which rotation, not how it is computed.

The inverse frequencies themselves are computed by `attnhub.rope`; everything here is torch-free
data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from attnhub.errors import InvalidArgument
from attnhub.variant.checks import check_bool, check_int, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Position interpolation: every frequency divided by `factor` (Chen 2023, arXiv:2306.15595).

    Raises:
        InvalidArgument: `factor` is not a finite number > 0.

    Example:
        >>> LinearScaling(factor=4)
        LinearScaling(factor=4.0)
    """

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", check_positive("factor", self.factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """The scaling of Llama 3.1 (Meta 2024, arXiv:2407.21783, and the code released with the model).

    With wavelength w = 2 pi / frequency and L = `original_max_position`: frequencies with
    w > L / `low_freq_factor` are divided by `factor`, those with w < L / `high_freq_factor` are
    kept, and those between are blended linearly in L / w.

    Raises:
        InvalidArgument: a number is not finite and > 0, or `high_freq_factor` <= `low_freq_factor`.

    Example:
        >>> Llama3Scaling(
        ...     factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192
        ... ).high_freq_factor
        4.0
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        check_int("original_max_position", self.original_max_position, minimum=1)
        if self.high_freq_factor <= self.low_freq_factor:
            raise InvalidArgument(
                f"high_freq_factor={self.high_freq_factor} is not above "
                f"low_freq_factor={self.low_freq_factor}; the blend between them needs low < high"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071).

    Channels that turn more than `beta_fast` times over `original_max_position` keep their
    frequency, those that turn less than `beta_slow` times have it divided by `factor`, those
    between are blended. cos and sin are multiplied by `attention_factor`; None means 0.1 *
    ln(factor) + 1, as in the paper, and 1 where nothing is stretched (`factor` <= 1).

    Raises:
        InvalidArgument: a number is not finite and > 0, or `beta_fast` <= `beta_slow`.

    Example:
        >>> YarnScaling(factor=4, original_max_position=32768).beta_fast
        32.0
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        for name in ("factor", "beta_fast", "beta_slow"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        check_int("original_max_position", self.original_max_position, minimum=1)
        if self.attention_factor is not None:
            factor = check_positive("attention_factor", self.attention_factor)
            object.__setattr__(self, "attention_factor", factor)
        if self.beta_fast <= self.beta_slow:
            raise InvalidArgument(
                f"beta_fast={self.beta_fast} is not above beta_slow={self.beta_slow}; "
                "the blend between them needs beta_slow < beta_fast"
            )


Scaling = LinearScaling | Llama3Scaling | YarnScaling

_SCALINGS: Mapping[str, type[Scaling]] = MappingProxyType(
    {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding of queries and keys (Su et al. 2021, arXiv:2104.09864).

    Channel pair i of the first `rotary_dim` channels (None: all) is rotated by
    position * theta ** (-2 i / rotary_dim), changed by `scaling`. Pairs are (2 i, 2 i + 1) if
    `interleaved`, else (i, i + rotary_dim / 2).

    Raises:
        InvalidArgument: `theta` is not a finite number > 0, `rotary_dim` is not even and > 0,
            `interleaved` is not a bool, or `scaling` is of another type.

    Example:
        >>> print(Rope(theta=500000.0, scaling=LinearScaling(factor=4)))
        rope(theta=500000, LinearScaling(factor=4.0))
    """

    theta: float = 10000.0
    rotary_dim: int | None = None
    interleaved: bool = False
    scaling: Scaling | None = None
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", check_positive("theta", self.theta))
        check_bool("interleaved", self.interleaved)
        if self.rotary_dim is not None and check_int("rotary_dim", self.rotary_dim, minimum=2) % 2:
            raise InvalidArgument(
                f"rotary_dim={self.rotary_dim} is odd; channels rotate in pairs; give an even one"
            )
        if not isinstance(self.scaling, (Scaling, type(None))):
            raise InvalidArgument(
                f"scaling={self.scaling!r} is of type {type(self.scaling).__name__}; give "
                f"{', '.join(kind.__name__ for kind in _SCALINGS.values())} or None"
            )

        # Torch ops take a rotation as text, and a compiler can read an attribute but not make one.
        object.__setattr__(self, "_text", json.dumps(self.to_data(), sort_keys=True))

    def to_json(self) -> str:
        """Return the rotation as JSON text, made once; `from_data` reads its data back."""
        return self._text

    def to_data(self) -> dict[str, Any]:
        """Return the rotation as plain JSON data, which `from_data` reads back."""
        data = {name: getattr(self, name) for name in ("theta", "rotary_dim", "interleaved")}
        data["scaling"] = None if self.scaling is None else asdict(self.scaling)
        if self.scaling is not None:
            kind = next(name for name, cls in _SCALINGS.items() if isinstance(self.scaling, cls))
            data["scaling"] = {"type": kind, **data["scaling"]}
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Rope:
        """Return the rotation that `to_data` described.

        Raises:
            InvalidArgument: the data do not describe one.
        """
        try:
            fields = dict(data)
            if fields["scaling"] is not None:
                scaling = dict(fields["scaling"])
                fields["scaling"] = _SCALINGS[scaling.pop("type")](**scaling)
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"{data!r} does not describe a Rope ({error}); give what to_data returned"
            ) from error

    def __str__(self) -> str:
        parts = [f"theta={self.theta:g}"]
        if self.rotary_dim is not None:
            parts.append(f"rotary_dim={self.rotary_dim}")
        if self.interleaved:
            parts.append("interleaved")
        if self.scaling is not None:
            parts.append(str(self.scaling))
        return f"rope({', '.join(parts)})"
