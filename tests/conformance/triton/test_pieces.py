"""The forms that large calls take, at small sizes: a latent worked on in pieces, lists and sequences in parts, tall tiles."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from hal import Device
from hal.common.backends.registry import find_backend
from hal.common.contract.backend import Backend
from hal.common.triton.launch import Launch, Launcher
from hal.common.triton.tiles import Candidate
from hal.testing import SMALL, Case, conformance_cases

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)

BACKEND = find_backend("cuda:triton")
CALLS = ("sparse_mla", "paged_attention", "varlen_attention", "index_scores")
BATCHES = ("mixed", "no_keys", "padded")
# What these set apart has nothing to do with the form of a call.
ALIKE = ("page1-", "1000", "twice", "own_out", "scale1", "roomy", "strided")
CASES = [
    case
    for case in conformance_cases(BACKEND, SMALL, calls=CALLS)
    if any(word in case.id for word in BATCHES) and not any(word in case.id for word in ALIKE)
]
FORMS = {
    "pieces": Candidate(block_m=16, block_n=16, block_c=16, num_warps=4, num_stages=1, copies=1),
    "tall": Candidate(block_m=64, block_n=16, num_warps=4, num_stages=1, copies=1),
}


def make_backend(candidate: Candidate, programs: int) -> Backend:
    """A backend whose every tile is the candidate, on a device that this many programs fill."""
    backend = BACKEND(Device.from_arch("cuda:sm_90", torch_device="cpu"))
    candidates = dict.fromkeys(backend.machine.candidates, (candidate,))
    backend.machine = replace(backend.machine, candidates=candidates, programs=programs)
    return backend


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_pieces_and_parts_give_the_same_results(case: Case) -> None:
    case.check(make_backend(FORMS["pieces"], programs=100))


@pytest.mark.parametrize("case", [case for case in CASES if "bfloat16" in case.id], ids=lambda case: case.id)
def test_tall_tiles_give_the_same_results(case: Case) -> None:
    case.check(make_backend(FORMS["tall"], programs=1))


def test_the_small_sizes_reach_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[Launch] = []
    run = Launcher.run

    def note(self: Launcher, launch: Launch) -> None:
        launches.append(launch)
        run(self, launch)

    monkeypatch.setattr(Launcher, "run", note)
    backend = make_backend(FORMS["pieces"], programs=100)
    cases = {case.id: case for case in CASES}
    for name in ("sparse_mla-latent-float32-page16-mixed-width24", "paged_attention-latent-float32-page16-mixed"):
        cases[name].check(backend)
    for kernel in ("sparse:attend_rows", "attend:attend_keys"):
        mine = [launch for launch in launches if launch.kernel == kernel]
        assert max(launch.constants["NUM_C"] for launch in mine) > 1
        assert max(launch.grid[-1] for launch in mine) > 1
