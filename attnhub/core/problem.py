"""Problem: the static facts of a call, hashable and torch-free; Extent: its sizes, bucketed.

Each op declares a frozen dataclass derived from :class:`Problem`. A field *with* a default is a
feature: the default means "not used", and a backend whose capability does not mention the field
accepts only that default. A field *without* one must be mentioned by every capability. So a new
feature is refused by every backend that was written before it, never ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import Self

from attnhub.core import device as devices
from attnhub.core.device import Device
from attnhub.errors import InvalidArgument, UnknownName


def fact(
    *, domain: Iterable[Any], default: Any = dataclasses.MISSING, structural: bool = False
) -> Any:
    """A problem field. ``domain`` lists values worth testing; ``default`` means "not used".

    A ``structural`` field says what kind of call it is; a backend for another kind is no faster
    alternative, so its rejection is no performance warning.
    """
    metadata = {"domain": tuple(domain), "structural": structural}
    if default is dataclasses.MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def bucket(size: int | None) -> int | None:
    """The one bucketing of sizes: up to the next power of two (0 and 1 stay apart)."""
    if size is None or size <= 1:
        return size
    return 1 << (size - 1).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Sizes of a call, as bucketed upper bounds; None is "not known on the host".

    ``batch`` requests; ``qo_len``/``kv_len`` the longest of them; ``tokens``/``kv_tokens`` the
    sums (for an op without requests, ``tokens`` is its number of rows).
    """

    batch: int | None = None
    qo_len: int | None = None
    kv_len: int | None = None
    tokens: int | None = None
    kv_tokens: int | None = None

    def bucketed(self) -> Extent:
        """This extent with every size rounded up to its bucket."""
        return Extent(**{f.name: bucket(getattr(self, f.name)) for f in dataclasses.fields(self)})

    def __str__(self) -> str:
        return self.text(tuple(f.name for f in dataclasses.fields(self)))

    def text(self, names: tuple[str, ...]) -> str:
        """The sizes called ``names``, as explain prints them."""
        values = [(name, getattr(self, name)) for name in names]
        return ", ".join(f"{n} {'unknown' if v is None else f'<= {v}'}" for n, v in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a call must at least do: floating-point operations and bytes moved."""

    flops: float
    bytes: float
    assumed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Base of every op's problem; see the module docstring."""

    op: ClassVar[str]
    #: The sizes of the extent that this op has.
    sizes: ClassVar[tuple[str, ...]] = ("tokens",)

    device: Device
    extent: Extent = Extent()

    def work(self) -> Work:
        """The least work of this call; unknown extents are replaced by a stated assumption."""
        raise NotImplementedError(f"{type(self).__name__} must state its work")

    @classmethod
    def expand(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Turn what a user says (``head_dim=128``) into fields; override where they differ."""
        return facts

    @classmethod
    def of(cls, device: Any, **facts: Any) -> Self:
        """A problem from user-level facts, as ``explain`` and the command line take them.

        Sizes (``batch``, ``qo_len``, ``kv_len``, ``tokens``, ``kv_tokens``) go to the extent.

        Raises:
            UnknownName: a fact this op does not have.
            InvalidArgument: a fact is missing.
        """
        extent = Extent(**{k: v for k, v in facts.items() if k in cls.sizes}).bucketed()
        values = cls.expand({k: v for k, v in facts.items() if k not in cls.sizes})
        known = content_fields(cls)
        for name in values:
            if name not in known:
                raise UnknownName(f"fact of {cls.op!r}", name, [*known, *cls.sizes])
        missing = [n for n, f in known.items() if _required(f) and n not in values]
        if missing:
            raise InvalidArgument(f"{cls.op!r} also needs the facts {', '.join(missing)}")
        return cls(device=devices.describe(device), extent=extent, **values)

    def facts(self) -> dict[str, Any]:
        """Every field but device and extent, by name."""
        return {name: getattr(self, name) for name in content_fields(type(self))}

    def signature(self) -> str:
        """A digest of op, facts and extent that is equal in every process: the profile key."""
        content = {k: plain(v) for k, v in self.facts().items()}
        extent = dataclasses.asdict(self.extent)
        text = json.dumps([self.op, content, extent], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def __str__(self) -> str:
        used = []
        for name, f in fact_fields(type(self)).items():
            value = getattr(self, name)
            if f.default is dataclasses.MISSING or value != f.default:
                used.append(f"{name}={show(value)}")
        return f"{self.op} on {self.device}: {', '.join(used)}"


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


_Fields = Mapping[str, dataclasses.Field[Any]]
_content: dict[type, _Fields] = {}
_facts: dict[type, _Fields] = {}


def content_fields(cls: type[Problem]) -> _Fields:
    """Every field of a problem class but device and extent, by name."""
    if cls not in _content:
        fields = dataclasses.fields(cls)
        _content[cls] = {f.name: f for f in fields if f.name not in ("device", "extent")}
    return _content[cls]


def fact_fields(cls: type[Problem]) -> _Fields:
    """The fields that capabilities speak about: those declared with :func:`fact`."""
    if cls not in _facts:
        _facts[cls] = {n: f for n, f in content_fields(cls).items() if "domain" in f.metadata}
    return _facts[cls]


def plain(value: Any) -> Any:
    """A JSON-able form that does not depend on the process (sets sorted, objects by digest)."""
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return getattr(value, "digest", value)


def show(value: Any) -> str:
    """A value as tables and reasons print it."""
    if isinstance(value, (frozenset, set)):
        return "+".join(sorted(map(str, value))) or "none"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(value)
