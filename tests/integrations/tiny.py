"""Models of two small layers with random weights, one for each thing an attention may ask for."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
BERT = {name: SIZES[name] for name in list(SIZES)[:5]}

# Name: class, config, and what of its configuration matters.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SIZES, "sliding_window": 5}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {
            **SIZES,
            "sliding_window": 5,
            "attn_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {**SIZES, **EXPERTS, "sliding_window": 5}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {
            **SIZES,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "sliding_window": 5,
            "use_sliding_window": True,
            "max_window_layers": 1,
        },
    ),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {**SIZES, "num_local_experts": 2, "intermediate_size_mlp": 64, "attention_chunk_size": 4},
    ),
    "bert": ("BertForMaskedLM", "BertConfig", BERT),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {
            **BERT,
            "local_attention": 6,
            "global_attn_every_n_layers": 2,
            **dict.fromkeys(["bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"], 1),
            "pad_token_id": 0,
        },
    ),
}


def build(name: str, implementation: str, **config: Any) -> Any:
    """A model in evaluation mode; weights depend on the name only."""
    model_class, config_class, settings = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(
        getattr(transformers, config_class)(
            **{**settings, **config, "attn_implementation": implementation}
        )
    )
    for parameter in model.parameters():
        if parameter.dim() > 1 or parameter.shape == (SIZES["num_attention_heads"],):  # sinks too
            # Large enough for scores that differ, so that a wrong mask shows.
            torch.nn.init.normal_(parameter, std=0.2 if parameter.dim() > 1 else 1.0)
    return model.eval()


def ids(*shape: int) -> torch.Tensor:
    """Token ids, the same for the same shape."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, SIZES["vocab_size"], shape, generator=generator)
