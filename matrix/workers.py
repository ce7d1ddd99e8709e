"""Processes that end with whoever started them, and with them whatever they started themselves."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def start_pool(workers: int, prepare: Callable[[], None]) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned processes that each call `prepare` first; an exception in the block, Ctrl-C included, kills them."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(prepare,)
    )
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            _kill_group(process)
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """A block in which Ctrl-C waits; what is started here never sees one, so that its parent alone answers it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(prepare: Callable[[], None]) -> None:
    # A compiler runs assemblers and linkers: a group of its own lets all of them be killed at once.
    os.setpgid(0, 0)
    threading.Thread(target=_die_with_parent, daemon=True, name="hal parent watch").start()
    prepare()


def _die_with_parent() -> None:
    """A parent that is killed outright cannot kill its workers, which would wait for it for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


def _kill_group(process: multiprocessing.process.BaseProcess) -> None:
    try:
        os.killpg(process.pid or 0, signal.SIGKILL)
    except ProcessLookupError:
        # It has no group yet, and started nothing.
        process.kill()
