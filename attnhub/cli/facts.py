"""From words of the command line to the facts of a problem: ``head_dim=128``, ``kv=paged:16``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnhub.attn.kv import BlockSparse, DTypes, KVLayout, Paged, Ragged, VariableBlocks
from attnhub.core.problem import Problem, content_fields
from attnhub.errors import InvalidArgument, UnknownName
from attnhub.variant import HOOKS, Rope, Variant

#: What explain takes in another way, and how.
_ELSEWHERE = {
    "op": "write the op first, as in attnhub explain attention",
    "device": "use --device, as in --device h100",
    "backend": "use --backend, as in --backend reference",
}
_LAYOUTS = "paged:SIZE, ragged, block_sparse:RxC, variable_blocks or dense"


def parse_facts(words: Iterable[str], cls: type[Problem]) -> dict[str, Any]:
    """The facts in ``name=value`` words, as :meth:`Problem.of` takes them.

    ``true``, ``false``, ``none``, integers, ``128x64`` (a tuple) and ``a+b`` (a set) are read as
    such where the problem's field holds such values.

    Raises:
        InvalidArgument: no ``=``, a fact given twice, or a value of the wrong kind.
    """
    facts: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise InvalidArgument(f"fact {word!r}: write name=value, as in head_dim=128")
        if name in facts:
            raise InvalidArgument(f"fact {name!r} is given twice; keep one")
        facts[name] = _fact(name, text, cls)
    if facts.get("kv") in ("paged", "block_sparse") and not facts.keys() & {"page_size", "block"}:
        raise InvalidArgument(f"kv={facts['kv']}: the size is missing; write {_LAYOUTS}")
    return facts


def _fact(name: str, text: str, cls: type[Problem]) -> Any:
    fields = content_fields(cls)
    if name in _ELSEWHERE:
        raise InvalidArgument(f"{name}={text}: {_ELSEWHERE[name]}")
    if name in cls.sizes:
        return _size(name, text)
    if "variant" in fields and name in ("features", "variant"):
        raise InvalidArgument(f"{name}={text}: use --variant, as in --variant causal,soft_cap=30")
    if name == "kv" and (":" in text or text == "variable_blocks"):
        return _kv_layout(text)
    if name == "dtype" and "," in text:
        return parse_dtypes(text)
    if name == "head_dim" and name not in fields:
        return _head_dims(text)
    if name == "rope" and name in fields:
        return _rope(_literal(text))
    if name in fields:
        return _typed(name, text, fields[name])
    return _literal(text)


def _typed(name: str, text: str, field: dataclasses.Field[Any]) -> Any:
    """The value of a declared field, refused if of a kind that the field never has."""
    domain = tuple(field.metadata.get("domain", ()))
    if any(isinstance(v, frozenset) for v in domain):
        return frozenset(text.split("+"))
    if domain and all(isinstance(v, str) for v in domain):
        if text not in domain:
            raise UnknownName(f"value of {name!r}:", text, domain)
        return text
    value = _literal(text)
    kinds = {type(v) for v in (*domain, field.default)} - {type(dataclasses.MISSING)}
    if domain and type(value) not in kinds:
        examples = ", ".join(_spelled(v) for v in domain[:4])
        raise InvalidArgument(f"{name}={text}: needs a value such as {examples}")
    return value


def _literal(text: str) -> Any:
    words: Mapping[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"\d+(x\d+)+", text):
        return tuple(map(int, text.split("x")))
    try:
        return float(text)
    except ValueError:
        return text


def _spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _size(name: str, text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise InvalidArgument(f"{name}={text}: needs an integer >= 0")
    return int(text)


def _kv_layout(text: str) -> KVLayout:
    """``paged:16``, ``ragged:HND``, ``block_sparse:16x16``, ``variable_blocks``; layout last."""
    kind, *rest = text.split(":")
    order = [rest.pop()] if rest and rest[-1] in ("NHD", "HND") else []
    size = [_literal(part) for part in rest]
    match kind, size:
        case "paged", [int(page_size)]:
            return Paged(page_size, *order)
        case "ragged", []:
            return Ragged(*order)
        case "block_sparse", [(r, c)]:
            return BlockSparse(r, c, *order)
        case "variable_blocks", []:
            return VariableBlocks(*order)
    raise InvalidArgument(
        f"kv={text}: write {_LAYOUTS}, with :HND at the end if the heads come before the length"
    )


def _head_dims(text: str) -> int | tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise InvalidArgument(f"head_dim={text}: needs an integer, or two as in 192x128")
    dims = tuple(map(int, text.split("x")))
    return dims if len(dims) == 2 else dims[0]


def parse_dtypes(text: str) -> DTypes:
    """The three dtypes in ``bfloat16,float8_e4m3fn,bfloat16``."""
    names = text.split(",")
    if len(names) != 3:
        raise InvalidArgument(f"dtype={text}: give one dtype, or three: of q, of kv, of the output")
    return DTypes(*names)


def parse_variant(text: str) -> Variant:
    """The variant in ``causal,soft_cap=30,window=1024:0``.

    Names are the fields of :class:`Variant`. A flag stands alone; ``softmax=false`` turns it off;
    ``rope`` is the plain rotation, ``rope=500000`` one with that theta.

    Raises:
        UnknownName: a variant has no such field.
        InvalidArgument: a value of the wrong kind, or a mod, which only Python can give.
    """
    values: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, value = item.partition("=")
        known = [f.name for f in dataclasses.fields(Variant) if f.init]
        if name not in known:
            raise UnknownName("variant field", name, set(known) - set(HOOKS))
        if name in HOOKS:
            raise InvalidArgument(
                f"variant field {name!r} is a function; use attnhub.explain(...) from Python"
            )
        if name in values:
            raise InvalidArgument(f"variant field {name!r} is given twice; keep one")
        values[name] = _variant_value(name, _literal(value) if equals else True)
    return Variant(**values)


def _variant_value(name: str, value: Any) -> Any:
    if name == "rope":
        return _rope(value)
    if name == "window":
        return _window(value)
    return value


def _rope(value: Any) -> Rope | None:
    """The plain rotation for True, none for False and None, else one with that theta."""
    if value is True:
        return Rope()
    return None if value is None or value is False else Rope(theta=value)


def _window(value: Any) -> Sequence[int]:
    sides = str(value).split(":")
    if len(sides) != 2 or not all(re.fullmatch(r"-1|\d+", side) for side in sides):
        raise InvalidArgument(f"window={value}: write left:right, as in window=1024:0; -1 is open")
    return tuple(map(int, sides))
