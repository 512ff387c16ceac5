"""The rotary embeddings of a model, from the several forms in which configs state them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from attnhub.errors import InvalidArgument
from attnhub.variant import Rope
from attnhub.variant.rope import LinearScaling, Llama3Scaling, Scaling, YarnScaling

Config = Mapping[str, Any]

_THETA = 10000.0  # of configs that state none, which are those of older models


def rotations(config: Config, head_dim: int, *, interleaved: bool) -> Iterator[tuple[Rope, bool]]:
    """Each rotation of a model, and whether the whole of it is known.

    Of one that is stretched in another way than :class:`Rope` knows, the table of cosines and sines
    is the engine's own, and the scaling is left out here.

    Args:
        config: the content of a model's ``config.json``.
        head_dim: of the part that may be rotated: of latent attention, of the rotary part.
        interleaved: neighbouring channels rotate together.

    Raises:
        InvalidArgument: a number of a known scaling is missing.
    """
    for stated in _stated(config):
        share = 1.0 if "kv_lora_rank" in config else stated.get("partial_rotary_factor") or 1.0
        name = stated.get("rope_type") or stated.get("type") or "default"
        try:
            scaling = _scaling(name, stated, config)
        except KeyError as error:
            raise InvalidArgument(
                f"the rotation of type {name!r} lacks {error.args[0]}; give the model's full "
                "config.json"
            ) from None
        rope = Rope(
            theta=stated.get("rope_theta") or _THETA,
            rotary_dim=int(head_dim * share),
            interleaved=interleaved,
            scaling=scaling,
        )
        yield rope, scaling is not None or name == "default"


def _stated(config: Config) -> list[Config]:
    """Every rotation of a config in the form of today: all that is said of it in one place."""
    own = config.get("rope_parameters")
    if own and all(isinstance(value, Mapping) for value in own.values()):
        return list(own.values())  # one for each kind of layer
    plain = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    first = {**plain, **(config.get("rope_scaling") or {}), **(own or {})}
    local = config.get("rope_local_base_freq")
    return [first, {"rope_theta": local}] if local else [first]


def _scaling(name: str, stated: Config, config: Config) -> Scaling | None:
    """How a rotation is stretched; None if it is not, or in a way that is not known."""
    original = stated.get("original_max_position_embeddings")
    original = original or config.get("max_position_embeddings", 0)
    if name == "linear":
        return LinearScaling(factor=stated["factor"])
    if name == "llama3":
        bounds = {key: stated[key] for key in ("factor", "low_freq_factor", "high_freq_factor")}
        return Llama3Scaling(**bounds, original_max_position=original)
    if name == "yarn":
        return YarnScaling(
            factor=stated["factor"],
            original_max_position=original,
            beta_fast=stated.get("beta_fast") or 32.0,
            beta_slow=stated.get("beta_slow") or 1.0,
            attention_factor=_attention_factor(stated),
        )
    return None


def _attention_factor(stated: Config) -> float | None:
    """What YaRN multiplies cosines and sines by, where it is not the paper's own."""

    def sharpness(weight: float) -> float:
        return 0.1 * weight * math.log(stated["factor"]) + 1.0

    if stated.get("attention_factor") is None and stated.get("mscale_all_dim"):
        return sharpness(stated.get("mscale") or 1.0) / sharpness(stated["mscale_all_dim"])
    return stated.get("attention_factor")
