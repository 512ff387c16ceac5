"""Custom masks at any bit: every query's keys, and not a byte outside of the request's part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnhub.quantization import segment_packbits
from tests.machines import MACHINES
from tests.vocabulary import run


def expected_words(mask: Tensor, rows: int, columns: int) -> Tensor:
    """Bits ``[row, column .. column + 31]``, what lies outside being 0, as uint32 values."""
    wide = torch.nn.functional.pad(mask, (0, columns + 32 - mask.shape[1], 0, rows - mask.shape[0]))
    return (wide.unfold(1, 32, 1)[:, :columns].long() << torch.arange(32)).sum(-1)


def read(machine: str, packed: bool, data: Tensor, begin: int, shape: tuple[int, int]) -> Tensor:
    """What the kernel reads at every row and key, and beyond both."""
    rows, columns = shape[0] + 2, shape[1] + 3
    words = torch.empty(rows, columns, dtype=torch.int32)
    run(
        machine,
        f"read_mask<{str(packed).lower()}>",
        "MaskParams",
        mask=data,
        words=words,
        begin=begin,
        qo_len=shape[0],
        kv_len=shape[1],
        rows=rows,
        columns=columns,
    )
    return words.long() & 0xFFFFFFFF


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("misalignment", [0, 1, 3])  # of the array's first byte
def test_requests_of_a_batch(machine: str, packed: bool, misalignment: int) -> None:
    # 1 bit, less and more than a word, a whole number of words, none at all, odd rows.
    shapes = [(1, 1), (3, 5), (2, 33), (4, 64), (0, 7), (5, 0), (7, 41)]
    generator = torch.Generator().manual_seed(0)
    masks = [torch.randint(0, 2, shape, generator=generator).bool() for shape in shapes]
    flat = torch.cat([mask.flatten() for mask in masks])
    begins = torch.tensor([0, *(mask.numel() for mask in masks)]).cumsum(0).to(torch.int32)
    data = flat.view(torch.uint8)
    if packed:
        data, begins = segment_packbits(flat, begins)
    # The tensor given ends with its last byte, so a read past it is an error of the emulator.
    room = torch.full((len(data) + 16,), 0xFF, dtype=torch.uint8)
    start = (-room.data_ptr()) % 4 + misalignment
    placed = room[start : start + len(data)].copy_(data)
    for mask, begin in zip(masks, begins.tolist(), strict=False):
        shape = tuple(mask.shape)
        assert torch.equal(
            read(machine, packed, placed, begin, shape),
            expected_words(mask, shape[0] + 2, shape[1] + 3),
        )


@pytest.mark.parametrize("machine", MACHINES)
def test_offsets_beyond_32_bits(machine: str) -> None:
    """The last keys of a mask of 1.3 GB, of which only the end is there."""
    kv_len = 2**31 - 1
    qo_len = 5
    size = -(-qo_len * kv_len // 8)
    tail = torch.randint(0, 256, (16,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    bits = (tail[:, None].long() >> torch.arange(8) & 1).flatten()
    words = torch.empty(1, dtype=torch.int32)
    # The tensor is the end of the mask: its beginning lies `size` bytes before the tensor's end.
    run(
        machine,
        "read_last_keys",
        "MaskParams",
        mask=tail,
        words=words,
        begin=len(tail) - size,
        qo_len=qo_len,
        kv_len=kv_len,
        rows=1,
        columns=1,
    )
    last = qo_len * kv_len - 8 * (size - len(tail))
    expected = int((bits[last - 32 : last] << torch.arange(32)).sum())
    assert int(words[0]) & 0xFFFFFFFF == expected
