"""From a model's ``config.json`` to the problems that an engine serving it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from attnhub.attn.kv import DTypes, Paged
from attnhub.cli.model_rotations import rotations
from attnhub.core.near import did_you_mean
from attnhub.errors import InvalidArgument
from attnhub.variant import Variant

Config = Mapping[str, Any]
Facts = dict[str, Any]

#: The sizes of an engine's two kinds of steps, which may be served by different backends.
_SIZES: Mapping[str, Mapping[str, int]] = {
    "decode": MappingProxyType({"batch": 64, "tokens": 64, "qo_len": 1, "kv_len": 4096}),
    "prefill": MappingProxyType({"batch": 1, "tokens": 4096, "qo_len": 4096, "kv_len": 4096}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A call to prepare: the op, its facts as ``explain`` takes them, and its sizes.

    Of the ``sizes`` those count that the op has. ``step`` says what they stand for.
    """

    op: str
    facts: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    step: str = ""


class _Call(NamedTuple):
    """An op, its facts, and the steps in which an engine calls it."""

    op: str
    facts: Facts
    steps: tuple[str, ...] = tuple(_SIZES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Type:
    """What a ``model_type`` means that its config does not say.

    Args:
        window: which layers ``sliding_window`` is about: ``"no"``, ``"all"`` or ``"some"`` of them.
        head_norms: queries and keys are normalised head by head.
        interleaved: neighbouring channels rotate together.
    """

    window: str = "no"
    head_norms: bool = False
    interleaved: bool = False


_LATENT = _Type(interleaved=True)
_TYPES: Mapping[str, _Type] = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "gemma2": _Type(window="some"),
    "gemma3_text": _Type(window="some", head_norms=True),
    "kimi_k2": _LATENT,
    "llama": _Type(),
    "mistral": _Type(window="all"),
    "mixtral": _Type(window="all"),
    "phi3": _Type(window="all"),
    "qwen2": _Type(window="some"),
    "qwen2_moe": _Type(window="some"),
    "qwen3": _Type(window="some", head_norms=True),
    "qwen3_moe": _Type(window="some", head_norms=True),
}

_REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_REQUIRED_LATENT = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

_ACTIVATIONS = {
    "silu": "activation.silu_and_mul",
    "swish": "activation.silu_and_mul",
    "gelu": "activation.gelu_and_mul",
    "gelu_new": "activation.gelu_tanh_and_mul",
    "gelu_pytorch_tanh": "activation.gelu_tanh_and_mul",
}

#: What an engine draws with: requests differ, so all that they may ask for.
_SAMPLING: tuple[tuple[str, Facts], ...] = (
    ("sampling.softmax", {"dtype": "float32", "temperature": True}),
    ("sampling.sample", {}),
    ("sampling.sample", {"top_k": True, "top_p": True}),
    ("sampling.sample_logits", {"dtype": "float32", "temperature": True}),
    (
        "sampling.sample_logits",
        {"dtype": "float32", "temperature": True, "top_k": True, "top_p": True},
    ),
)


def model_calls(config: Config, *, dtype: DTypes | None, page_size: int) -> list[Wanted]:
    """The problems of a model, whose config is as Hugging Face's libraries write it.

    Args:
        config: the content of ``config.json``; of a model with several parts the text part counts.
        dtype: of queries, cache and outputs; None takes the config's own for all three.
        page_size: tokens in a page of the cache.

    Raises:
        InvalidArgument: the model's type is not known, or its config lacks something.
    """
    text = config.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise InvalidArgument(f"text_config is {text!r}: give the model's own config.json")
    config = {**_given(config), **_given(text)}
    kind = _kind(config)
    if dtype is None:
        own = config.get("dtype") or config.get("torch_dtype")
        if own is None:
            raise InvalidArgument("the config states no dtype; give --dtype, as --dtype bfloat16")
        dtype = DTypes(own, own, own)
    attention = _latent if "kv_lora_rank" in config else _dense
    calls = [
        *attention(config, kind, dtype, page_size),
        *_around(config, str(dtype.out)),
        *_sampling(config),
    ]
    return [
        Wanted(op=call.op, facts=call.facts, sizes=_SIZES[step], step=step)
        for call in calls
        for step in call.steps
    ]


def _given(config: Config) -> Config:
    """What a config states: null means that it does not."""
    return {key: value for key, value in config.items() if value is not None}


def _kind(config: Config) -> _Type:
    """The type of a model, once its config is known to have all that is needed."""
    name = config.get("model_type", "")
    required = _REQUIRED + (_REQUIRED_LATENT if "kv_lora_rank" in config else ())
    missing = [key for key in required if not config.get(key)]
    lacks = f"its config lacks {', '.join(missing)}; " if missing else ""
    if name not in _TYPES:
        near = did_you_mean(name, _TYPES) or f"; known: {', '.join(_TYPES)}"
        raise InvalidArgument(
            f"model_type {name!r} is not known{near}; {lacks}write its calls as a list of problems"
        )
    if missing:
        raise InvalidArgument(f"model_type {name!r}: {lacks}give the model's full config.json")
    return _TYPES[name]


def _dense(config: Config, kind: _Type, dtype: DTypes, page_size: int) -> Iterator[_Call]:
    """Attention over pages of keys and values, and what writes and rotates them."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or config["hidden_size"] // heads
    shape = {"num_qo_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim}
    for variant in _variants(config, kind, dim):
        facts = {"kv": Paged(page_size), **shape, "dtype": dtype, "variant": variant}
        yield _Call("attention", facts)
    cache = {"dtype": dtype.kv, "page_size": page_size, "num_kv_heads": kv_heads}
    yield _Call("page.append_paged_kv", {**cache, "head_dim_qk": dim, "head_dim_vo": dim})
    yield from _rotated(config, kind, {"dtype": dtype.out, **shape})
    yield from _merged({"dtype": dtype.out, "num_heads": heads, "head_dim": dim})
    if kind.head_norms:
        yield _Call("norm.rmsnorm", {"dtype": dtype.out, "hidden": dim})


def _latent(config: Config, kind: _Type, dtype: DTypes, page_size: int) -> Iterator[_Call]:
    """Latent attention, dense heads for prompts, and what writes and rotates them."""
    heads, ckv = config["num_attention_heads"], config["kv_lora_rank"]
    kpe, v_dim = config["qk_rope_head_dim"], config["v_head_dim"]
    latent = {"num_heads": heads, "head_dim": (ckv, kpe), "page_size": page_size}
    yield _Call("mla", {**latent, "dtype": dtype})
    shape = {"num_qo_heads": heads, "num_kv_heads": heads}
    dims = {"head_dim": (config["qk_nope_head_dim"] + kpe, v_dim)}
    facts = {"kv": "ragged", **shape, **dims, "dtype": dtype.out, "variant": Variant(causal=True)}
    yield _Call("attention", facts, ("prefill",))
    cache = {"dtype": dtype.kv, "page_size": page_size}
    yield _Call("page.append_paged_mla", {**cache, "dim_ckv": ckv, "dim_kpe": kpe})
    turned = {"num_qo_heads": heads, "num_kv_heads": 1, "head_dim": kpe}
    yield from _rotated(config, kind, {"dtype": dtype.out, **turned})
    yield from _merged({"dtype": dtype.out, "num_heads": heads, "head_dim": v_dim})
    for hidden in filter(None, (config.get("q_lora_rank"), ckv)):
        yield _Call("norm.rmsnorm", {"dtype": dtype.out, "hidden": hidden})


def _around(config: Config, dtype: str) -> Iterator[_Call]:
    """Norms, activations and the bookkeeping of pages."""
    hidden = {"dtype": dtype, "hidden": config["hidden_size"]}
    yield _Call("norm.rmsnorm", hidden)
    yield _Call("norm.fused_add_rmsnorm", hidden)
    name = config.get("hidden_activation") or config.get("hidden_act")
    if name not in _ACTIVATIONS:
        raise InvalidArgument(f"hidden_act is {name!r}; known are {', '.join(_ACTIVATIONS)}")
    for size in _widths(config):
        yield _Call(_ACTIVATIONS[name], {"dtype": dtype, "hidden": size})
    yield _Call("page.get_batch_indices_positions", {})
    yield _Call("page.get_seq_lens", {})


def _widths(config: Config) -> list[int]:
    """The inner sizes of dense layers, of experts, and of experts that every token passes."""
    expert = config.get("moe_intermediate_size") or 0
    found = (
        config["intermediate_size"],
        expert,
        expert * (config.get("n_shared_experts") or 0),
        config.get("shared_expert_intermediate_size"),
    )
    return [size for size in dict.fromkeys(found) if size]


def _variants(config: Config, kind: _Type, head_dim: int) -> list[Variant]:
    """One for each kind of layer: with the window, and without."""
    asked = config.get("query_pre_attn_scalar") or head_dim
    return [
        Variant(
            causal=True,
            # Theirs counts the query's own token.
            window=None if size is None else (size - 1, 0),
            soft_cap=config.get("attn_logit_softcapping"),
            scale=None if asked == head_dim else float(asked) ** -0.5,
        )
        for size in _windows(config, kind)
    ]


def _windows(config: Config, kind: _Type) -> list[int | None]:
    size = config.get("sliding_window")
    if not size or kind.window == "no" or config.get("use_sliding_window") is False:
        return [None]
    layers = config.get("layer_types")
    if not layers:
        return [size] if kind.window == "all" else [size, None]
    known = {"sliding_attention": size, "full_attention": None}
    if other := sorted(set(layers) - known.keys()):
        raise InvalidArgument(f"layer_types has {', '.join(other)}; known are {', '.join(known)}")
    return [size for layer, size in known.items() if layer in layers]


def _rotated(config: Config, kind: _Type, shape: Facts) -> Iterator[_Call]:
    """Both ways to rotate; queries and keys may be slices of one product, so of any strides."""
    for rope, listed in rotations(config, shape["head_dim"], interleaved=kind.interleaved):
        turned = {"rotary_dim": rope.rotary_dim, "interleaved": kind.interleaved}
        for strides in ({}, {"contiguous": False}):
            if listed:
                yield _Call("rope.apply_rope", {**shape, "rope": rope, **strides})
            yield _Call("rope.apply_rope_cos_sin", {**shape, **turned, **strides})


def _merged(facts: Facts) -> Iterator[_Call]:
    """Merges of states, as of a prefix that several requests share."""
    yield _Call("cascade.merge_state", facts)
    yield _Call("cascade.merge_state_in_place", facts)


def _sampling(config: Config) -> Iterator[_Call]:
    """Draws; the logits are those of the last token of each request, in a prefill too."""
    for op, facts in _SAMPLING:
        yield _Call(op, {"vocab": config["vocab_size"], **facts}, ("decode",))
