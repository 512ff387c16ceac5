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
from typing import TYPE_CHECKING, Any, ClassVar

from attnhub.core import device as devices
from attnhub.core.device import Device
from attnhub.core.near import did_you_mean
from attnhub.errors import InvalidArgument, UnknownName

if TYPE_CHECKING:
    from typing_extensions import Self

#: Bytes of an element, by the name of its dtype.
DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def fact(
    *,
    domain: Iterable[Any],
    default: Any = dataclasses.MISSING,
    structural: bool = False,
    minimum: int = 1,
) -> Any:
    """A problem field. ``domain`` lists values worth testing; ``default`` means "not used".

    The domain also says what a user may write (see :meth:`Problem.of`): of texts and of sets of
    texts it lists them all; integers, also in tuples, need only be at least ``minimum``.

    A ``structural`` field says what kind of call it is; a backend for another kind is no faster
    alternative, so its rejection is no performance warning.
    """
    metadata = {"domain": tuple(domain), "structural": structural, "minimum": minimum}
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


def assuming(extent: Extent, **sizes: int) -> tuple[list[int], str]:
    """The named sizes, with the given values where they are unknown, and which those are.

    Example::

        (batch, tokens), assumed = assuming(extent, batch=8, tokens=1024)
    """
    known = {name: getattr(extent, name) for name in sizes}
    text = "; ".join(
        f"{name} unknown, assumed {size}" for name, size in sizes.items() if known[name] is None
    )
    return [sizes[name] if size is None else size for name, size in known.items()], text


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a call must at least do: floating-point operations and bytes moved.

    ``fp8`` says that both operands of the products have 8 bits, for which devices may be faster.
    """

    flops: float
    bytes: float
    assumed: str = ""
    fp8: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Base of every op's problem; see the module docstring."""

    op: ClassVar[str]
    #: The sizes of the extent that this op has.
    sizes: ClassVar[tuple[str, ...]] = ("tokens",)
    #: What a user may say instead of fields, and which fields it stands for: see :meth:`expand`.
    shorthands: ClassVar[Mapping[str, str]] = {}

    device: Device
    extent: Extent = Extent()

    def work(self) -> Work:
        """The least work of this call; unknown extents are replaced by a stated assumption."""
        raise NotImplementedError(f"{type(self).__name__} must state its work")

    @classmethod
    def expand(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Turn what a user says (``head_dim=128``) into fields; override where they differ."""
        return facts

    def validate(self) -> None:
        """Refuse facts that no call can have together; override where there are such.

        Raises:
            InvalidArgument: says which, and what would do.
        """

    @classmethod
    def of(cls, device: Any, **facts: Any) -> Self:
        """A problem from user-level facts, as ``explain`` and the command line take them.

        Sizes (``batch``, ``qo_len``, ``kv_len``, ``tokens``, ``kv_tokens``) go to the extent.

        Raises:
            UnknownName: a fact this op does not have.
            InvalidArgument: a fact is missing, has a value that no call of this op has, or does
                not go with another.
        """
        sizes = {k: v for k, v in facts.items() if k in cls.sizes}
        for name, size in sizes.items():
            if size is not None and not _is_count(size, 0):
                raise InvalidArgument(f"{name}={size!r}: give an integer >= 0, or None if unknown")
        extent = Extent(**sizes).bucketed()
        values = cls.expand({k: v for k, v in facts.items() if k not in cls.sizes})
        known = content_fields(cls)
        for name in values:
            if name not in known:
                every = [*known, *cls.sizes, *cls.shorthands]
                raise UnknownName(f"fact of {cls.op!r}", name, every)
        missing = [n for n, f in known.items() if _required(f) and n not in values]
        if missing:
            short = "; ".join(f"{n}= stands for {what}" for n, what in cls.shorthands.items())
            raise InvalidArgument(
                f"{cls.op!r} also needs the facts {', '.join(missing)}{short and f' ({short})'}"
            )
        for name, f in fact_fields(cls).items():
            if name in values:
                values[name] = _taken(name, values[name], f)
        problem = cls(device=devices.describe(device), extent=extent, **values)
        problem.validate()
        return problem

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


def fact_texts(f: dataclasses.Field[Any]) -> frozenset[str]:
    """Every text that a field may hold, or that its sets may; empty where it holds none."""
    texts: set[str] = set()
    for value in (*f.metadata["domain"], f.default):
        texts |= {value} if isinstance(value, str) else set()
        texts |= value if isinstance(value, frozenset) else set()
    return frozenset(texts)


def _is_count(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _taken(name: str, given: Any, f: dataclasses.Field[Any]) -> Any:
    """A user's value of a fact, checked; a torch dtype becomes its name, a list of texts a set."""
    like, value = f.metadata["domain"][0], given
    if type(given).__name__ == "dtype":
        value = str(given).removeprefix("torch.")
    elif isinstance(like, frozenset) and isinstance(given, (set, list, tuple)):
        value = frozenset(given)
    fits, accepted = _judge(value, like, f)
    if not fits and not (type(value) is type(f.default) and value == f.default):
        near = did_you_mean(given, fact_texts(f)) if isinstance(like, str) else ""
        raise InvalidArgument(f"{name}={given!r}: give {accepted}{near}")
    return value


def _judge(value: Any, like: Any, f: dataclasses.Field[Any]) -> tuple[bool, str]:
    """Whether a fact of which ``like`` is a value may be ``value``, and what it may be."""
    domain, minimum = f.metadata["domain"], f.metadata["minimum"]
    if isinstance(like, bool):
        return isinstance(value, bool), "True or False"
    if isinstance(like, int):
        return _is_count(value, minimum), f"an integer >= {minimum}"
    if isinstance(like, tuple):
        fits = isinstance(value, tuple) and len(value) == len(like)
        fits = fits and all(_is_count(v, minimum) for v in value)
        return fits, f"{len(like)} integers >= {minimum}"
    if isinstance(like, frozenset):
        known = frozenset().union(*domain)
        fits = isinstance(value, frozenset) and value <= known
        return fits, f"a set of {', '.join(sorted(map(repr, known)))}"
    texts = {*domain, *([f.default] if isinstance(f.default, str) else [])}
    return value in domain, f"one of {', '.join(sorted(map(repr, texts)))}"


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
