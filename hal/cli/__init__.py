"""The command line: hal doctor, explain, generate and matrix. Importing it loads neither typer nor torch."""

from __future__ import annotations

from collections.abc import Sequence

from .exits import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command line: 0, 1 for a failed check, 2 for input that cannot be served, 130 after Ctrl-C.

    Without arguments it is the process's own, sys.argv, and Ctrl-C ends the process without a word even while it imports.
    """
    try:
        if arguments is None:
            from .interrupts import take_interrupts

            take_interrupts()
        from .app import run

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
