"""Ctrl-C in a process that is the command line's own: a quiet end, wherever it is met."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from .exits import INTERRUPTED


def take_interrupts() -> None:
    """From here on the first Ctrl-C raises KeyboardInterrupt and a second one kills; one that Python drops ends the process.

    A process that was started with Ctrl-C ignored, as a shell starts those in the background, goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGINT, _interrupt)
    report = sys.unraisablehook

    def end_or_report(dropped: sys.UnraisableHookArgs) -> None:
        # Raised inside a destructor or a callback of the collector, it would be printed and forgotten.
        if dropped.exc_type is KeyboardInterrupt:
            os._exit(INTERRUPTED)
        report(dropped)

    sys.unraisablehook = end_or_report


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt
