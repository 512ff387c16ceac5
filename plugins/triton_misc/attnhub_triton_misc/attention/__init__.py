"""Attention in Triton: ragged and paged keys, prefill and decode, any variant that is traced."""
