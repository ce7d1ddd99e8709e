"""The legacy paged attention of Intel's torch extension."""

from __future__ import annotations

from hal.common.backend import Backend
from hal.common.software import Library


class IPEX(Backend):
    """The legacy paged attention of Intel's torch extension. Its calls are not written yet."""

    name = "xpu:ipex"
    platform = "xpu"
    libraries = (Library(name="ipex", distributions=("intel-extension-for-pytorch",)),)
