"""The command line: hal doctor, explain, generate and matrix. Importing it loads neither typer nor torch."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command line (sys.argv without it): 0, 1 for a failed check, 2 for input that cannot be served."""
    from .app import run

    return run(arguments)
