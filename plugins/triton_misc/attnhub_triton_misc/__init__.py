"""AttnHub backends in Triton: memory-bound kernels, and attention for any GPU."""
