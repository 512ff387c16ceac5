"""Fixtures of the real model, and continuous batching that a CPU can run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.model.conftest import gguf, plain, tokenizer

__all__ = ["gguf", "plain", "tokenizer"]

GenerateBatch = Callable[..., list[list[int]]]


@pytest.fixture
def generate_batch(monkeypatch: pytest.MonkeyPatch) -> GenerateBatch:
    """Call `model.generate_batch` greedily; the new tokens of each prompt."""
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching import cache

    # On a CPU transformers asks psutil for this, which nothing else here needs.
    memory = (torch.device("cpu"), 2**30, 0, 0)
    monkeypatch.setattr(cache, "get_device_and_memory_breakdown", lambda: memory)

    def run(
        model: torch.nn.Module, prompts: list[list[int]], *, new_tokens: int, **config: int
    ) -> list[list[int]]:
        outputs = model.generate_batch(
            prompts,
            # No token has the id -1, so that every answer is as long as another.
            generation_config=GenerationConfig(
                max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(**config),
        )
        by_prompt = {tuple(o.prompt_ids): o.generated_tokens for o in outputs.values()}
        return [by_prompt[tuple(prompt)] for prompt in prompts]

    return run
