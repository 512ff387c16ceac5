"""Lengths of the requests of a batch, which know their sum and bounds without a list of them.

A plan asks for little more, once a step, and of a thousand requests a list alone takes longer than
all else that the host does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from torch import Tensor


class Lengths(Sequence[int]):
    """A sequence of ints over a tensor on the host. Equal to a list of the same numbers.

    Args:
        values: int32 or int64 ``[batch]``, on the host; not changed afterwards.
    """

    __slots__ = ("_bounds", "_list", "values")

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._list: list[int] | None = None
        self._bounds: tuple[int, int] | None = None

    @property
    def total(self) -> int:
        """Their sum."""
        return int(self.values.sum())

    @property
    def longest(self) -> int:
        """The largest; 0 of none."""
        return self._aminmax()[1]

    @property
    def shortest(self) -> int:
        """The smallest; 0 of none."""
        return self._aminmax()[0]

    def _aminmax(self) -> tuple[int, int]:
        if self._bounds is None:
            self._bounds = (0, 0)
            if self.values.numel():
                low, high = self.values.aminmax()
                self._bounds = (int(low), int(high))
        return self._bounds

    def tolist(self) -> list[int]:
        """All of them."""
        if self._list is None:
            self._list = self.values.tolist()
        return self._list

    def __len__(self) -> int:
        return self.values.numel()

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self.tolist()[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.tolist())


def total(lengths: Sequence[int]) -> int:
    """The sum of lengths of any kind."""
    return lengths.total if isinstance(lengths, Lengths) else sum(lengths)


def longest(lengths: Sequence[int]) -> int:
    """The largest of lengths of any kind; 0 of none."""
    return lengths.longest if isinstance(lengths, Lengths) else max(lengths, default=0)


def shortest(lengths: Sequence[int]) -> int:
    """The smallest of lengths of any kind; 0 of none."""
    return lengths.shortest if isinstance(lengths, Lengths) else min(lengths, default=0)
