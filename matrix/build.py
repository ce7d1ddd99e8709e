"""Compiling many kernels in processes of their own, each job answered whatever becomes of its compiler."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

from hal.common.contract.arch import Arch

from .cubin import read_cubin
from .figures import Figures
from .fleet import PlatformProof
from .hsaco import read_hsaco
from .spirv import read_spirv
from .targets import make_target
from .workers import hold_interrupts, start_pool

READERS: Mapping[str, Callable[[Any], Figures]] = {"cubin": read_cubin, "hsaco": read_hsaco, "spirv": read_spirv}
"""Who reads figures from a compiled kernel, by format."""


class Source(Protocol):
    """What can be compiled: hal.common.triton's Specialisation is one. It has to travel to another process."""

    @property
    def options(self) -> dict[str, int]:
        """Options of triton.compile."""

    def to_source(self) -> Any:
        """The source that triton.compile takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One kernel for one arch."""

    source: Source
    proof: PlatformProof
    arch: Arch


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What became of a job: figures, or None with the compiler's refusal in a line."""

    figures: Figures | None
    refusal: str = ""


def build(job: Job) -> Built:
    """Compile one job in this process; triton keeps the result in its own cache."""
    from triton import compile as compile_source

    if job.proof.compiler is None:
        return Built(figures=None, refusal=f"nothing compiles for {job.proof.platform}: its proof is {job.proof.proof!r}")
    try:
        target = make_target(job.proof.compiler, job.arch)
        compiled = compile_source(job.source.to_source(), target=target, options=job.source.options)
        return Built(figures=READERS[job.proof.proof](compiled))
    except Exception as error:  # noqa: BLE001 - compilers raise anything; it becomes the refusal of this one job
        return Built(figures=None, refusal=_shorten(error))


def build_all(jobs: Sequence[Job], workers: int, on_done: Callable[[], object] = lambda: None) -> tuple[Built, ...]:
    """What became of every job, in their order. on_done is called after each.

    A compiler that takes its process down has the jobs it left unanswered done again, each in a process of its own.
    """
    answers: dict[int, Built] = {}

    def take(index: int, built: Built) -> None:
        answers[index] = built
        on_done()

    _run(range(len(jobs)), jobs, workers, take)
    for index in sorted(set(range(len(jobs))) - answers.keys()):
        _run([index], jobs, 1, take)
        if index not in answers:
            take(index, Built(figures=None, refusal="the compiler's process died without a word"))
    return tuple(answers[index] for index in range(len(jobs)))


def _run(indices: Sequence[int], jobs: Sequence[Job], workers: int, take: Callable[[int, Built], None]) -> None:
    """Give away each answer as it comes; those that a dying process leaves open are missing."""
    with start_pool(workers, _prepare) as pool:
        with hold_interrupts():
            futures: dict[Future[Built], int] = {pool.submit(build, jobs[index]): index for index in indices}
        for future in as_completed(futures):
            try:
                built = future.result()
            except BrokenProcessPool:
                continue
            take(futures[future], built)


def _prepare() -> None:
    """Kernels are compiled here, whatever the parent does with them; the compiler's advice is not the user's concern."""
    os.environ.pop("TRITON_INTERPRET", None)
    warnings.simplefilter("ignore")


def _shorten(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    return text if len(text) <= 300 else f"{text[:300]}..."
