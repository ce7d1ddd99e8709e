"""Calling what may hang, print or raise: within a time, in silence, and with an answer whatever happens."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Answer = TypeVar("Answer")

SECONDS = 2.0


def probe_quietly(look: Callable[[], Answer], seconds: float = SECONDS) -> tuple[Answer | None, str]:
    """What `look` returns and "", its prints swallowed; None and a sentence where it raises, or has no answer in time."""
    answer: list[Answer] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(look())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            failure.append(error)
        finally:
            silence.end()

    # A driver that hangs cannot be interrupted, only left behind: hence a thread that nobody waits for at exit.
    thread = threading.Thread(target=run, daemon=True, name="hal probe")
    silence = _Silence(sys.stdout, thread)
    silence.begin()
    thread.start()
    thread.join(seconds)
    # Whatever comes after the time is up is dropped: these lists are nobody else's.
    if answer:
        return answer[0], ""
    if not failure:
        return None, f"no answer within {seconds:g} s"
    if isinstance(failure[0], (KeyboardInterrupt, SystemExit)):
        raise failure[0]
    return None, describe_error(failure[0])


@contextmanager
def silenced() -> Iterator[None]:
    """A block in which this thread's prints go nowhere: what it imports may greet the user on standard output."""
    silence = _Silence(sys.stdout, threading.current_thread())
    silence.begin()
    try:
        yield
    finally:
        silence.end()


class _Silence:
    """Standard output for everyone but one thread, whose prints go nowhere for as long as it runs."""

    def __init__(self, real: Any, thread: threading.Thread) -> None:
        self._real = real
        self._thread = thread
        self._is_over = False

    def __getattr__(self, name: str) -> Any:
        is_nowhere = self._real is None or (name == "buffer" and threading.current_thread() is self._thread)
        return getattr(io.TextIOWrapper(io.BytesIO()) if is_nowhere else self._real, name)

    def write(self, text: str) -> int:
        """Characters written, or dropped."""
        if threading.current_thread() is self._thread or self._real is None:
            return len(text)
        written: int = self._real.write(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        """Each of the lines, written or dropped."""
        for line in lines:
            self.write(line)

    def begin(self) -> None:
        """Take the place of standard output."""
        sys.stdout = self

    def end(self) -> None:
        """Give the place back, and with it that of others which are over and lay underneath."""
        self._is_over = True
        while isinstance(sys.stdout, _Silence) and sys.stdout._is_over:
            sys.stdout = sys.stdout._real


def describe_error(error: BaseException) -> str:
    """An exception as a finding: "Type: message"."""
    return f"{type(error).__name__}: {error}"
