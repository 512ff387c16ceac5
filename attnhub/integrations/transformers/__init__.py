"""AttnHub in Hugging Face transformers (5.x), under the names "attnhub" and "paged|attnhub".

Importing this changes nothing; `register()` makes the names known. "attnhub" serves ``forward`` and
``generate`` with the caches of transformers, "paged|attnhub" serves continuous batching
(``generate_batch``) on its pages, in place. `use_ops(model)` has a model's norms, rotations and
activations computed by AttnHub too.

What an attention module passes is used or refused, never ignored.
"""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface

from attnhub.integrations.transformers.dense import dense_attention
from attnhub.integrations.transformers.mask import attention_mask
from attnhub.integrations.transformers.ops import ReplacedOps, use_ops
from attnhub.integrations.transformers.paged import paged_attention

__all__ = ["ReplacedOps", "register", "use_ops"]


def register() -> None:
    """Make "attnhub" and "paged|attnhub" known to transformers, in this process.

    Calling it again does no harm. "paged|attnhub" gets no mask function, like every paged name of
    transformers itself: continuous batching passes lengths instead of masks, and the attention
    refuses a forward without them.

    Example::

        from attnhub.integrations.transformers import register

        register()
        model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attnhub")
        model.generate(**tokenizer(prompt, return_tensors="pt"))

        model.set_attn_implementation("paged|attnhub")
        model.generate_batch([ids_of_one_prompt, ids_of_another])
    """
    AttentionMaskInterface.register("attnhub", attention_mask)
    AttentionInterface.register("attnhub", dense_attention)
    AttentionInterface.register("paged|attnhub", paged_attention)
