"""Multi-head latent attention (DeepSeek-V2) over a paged latent cache: ``BatchMLA``."""

from attnhub.mla.batch_mla import BatchMLA
from attnhub.mla.inputs import MLAScales

__all__ = ["BatchMLA", "MLAScales"]
