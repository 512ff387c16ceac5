"""AttnHub backends in CUDA for Ampere and later."""
