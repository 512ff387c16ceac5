"""Whether this machine can make and launch kernels: what backends name as their ``probe``."""

from __future__ import annotations

from attnhub.core import discovery
from attnhub.core.device import Device
from attnhub.core.env import environment
from attnhub.core.reason import Code, Reason
from attnhub.errors import InvalidArgument
from attnhub.jit import Cache, DriverError, NoCompiler, choose, prebuilt
from attnhub.jit import driver as drivers

__all__ = ["kernels_run"]


def kernels_run(device: Device) -> list[Reason]:
    """Why no kernel can run here: no driver, or neither a compiler nor a kernel made before.

    A backend with kernels states it as ``probe="attnhub.plugin:kernels_run"``, so that another one
    is chosen and ``explain`` says what is missing.
    """
    try:
        drivers.get()
    except DriverError as error:
        return [_reason("driver", str(error), "an NVIDIA driver")]
    if _are_made(device):
        return []
    try:
        choose(environment().compiler)
    except NoCompiler as error:
        return [_reason("compiler", "missing", "NVRTC, nvcc or kernels made before", str(error))]
    return []


def _are_made(device: Device) -> bool:
    """Whether kernels for such a device came with a package or were made here before.

    Which ones a problem needs is not known yet, so that some are there must do.
    """
    try:
        stores = prebuilt.stores(discovery.default().packages())
    except InvalidArgument:  # ATTNHUB_CUBIN_DIR names no folder: the caller's first kernel says so
        return True
    if any(store.serves(device.arch) for store in stores):
        return True
    return Cache(environment().cache_dir or None).serves(device.arch)


def _reason(field: str, actual: str, accepted: str, hint: str = "") -> Reason:
    return Reason(code=Code.PROBE, field=field, actual=actual, accepted=accepted, hint=hint)
