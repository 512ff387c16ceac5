"""Lengths of the requests of a batch, which know their sum and bounds without a list of them.

A plan asks for little more, once a step, and of a thousand requests a list alone takes longer than
all else that the host does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[Any]


#: Of so many a list is quicker than an array: a call of numpy takes as long as a hundred numbers.
FEW = 128


class Lengths(Sequence[int]):
    """A sequence of ints, held as a list or as an array. Equal to a list of the same numbers.

    Args:
        numbers: a list, or int32 or int64 ``[batch]``; kept, so not to be changed afterwards.
        total: their sum, if it is known.
    """

    __slots__ = ("_list", "_values", "longest", "shortest", "total")

    def __init__(self, numbers: list[int] | Ints, *, total: int | None = None) -> None:
        self._list: list[int] | None = None
        self._values: Ints | None = None
        if isinstance(numbers, list):
            self._list = numbers
            self.shortest, self.longest = (min(numbers), max(numbers)) if numbers else (0, 0)
            self.total = sum(numbers) if total is None else total
        else:
            self._values = numbers
            bounds = (numbers.min(), numbers.max()) if numbers.size else (0, 0)
            self.shortest, self.longest = map(int, bounds)
            self.total = int(numbers.sum()) if total is None else total

    @property
    def values(self) -> Ints:
        """All of them as an array, int32 or int64."""
        if self._values is None:
            self._values = np.array(self._list, dtype=np.int64)
        return self._values

    def padded(self, count: int) -> Lengths:
        """The same with zeros behind, ``count`` numbers in all; no fewer than there are."""
        room = count - len(self)
        if room < 0:
            raise ValueError(f"{len(self)} lengths do not fit into {count}")
        if not room:
            return self
        if self._list is not None:
            return Lengths(self._list + [0] * room, total=self.total)
        zeros = np.zeros(room, self.values.dtype)
        return Lengths(np.concatenate([self.values, zeros]), total=self.total)

    def tolist(self) -> list[int]:
        """All of them, in a list of the caller's own."""
        return list(self._all())

    def _all(self) -> list[int]:
        if self._list is None:
            self._list = self.values.tolist()
        return self._list

    def __len__(self) -> int:
        return len(self._list) if self._list is not None else int(self.values.size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._all()[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())
