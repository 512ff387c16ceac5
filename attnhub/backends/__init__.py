"""Built-in PyTorch backends: ``reference`` serves everything, ``torch_sdpa`` a fast subset."""
