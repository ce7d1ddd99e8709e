"""Host arrays that are copied to a device when it gets there: none is written to while a copy may still read it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hal.common.stepping.staging import Staging

REGIONS = {"lens": ((4,), "int32"), "slots": ((2, 3), "int64")}


class Event:
    """An event of a device that does nothing until somebody waits for it."""

    def __init__(self, device: str) -> None:
        self.state = f"unused on {device}"

    def record(self, stream: object) -> None:
        self.state = f"recorded on {stream}"

    def synchronize(self) -> None:
        self.state = f"waited for, {self.state}"


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> Staging:
    """On a device whose tensors take no memory, with plain memory in place of pinned."""
    zeros = torch.zeros

    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        assert pin_memory
        return zeros(*args, **kwargs)

    monkeypatch.setattr(torch, "zeros", make)
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"the stream of {device}")
    return Staging(REGIONS, "meta")


def test_a_turn_leaves_alone_what_the_last_upload_reads(staging: Staging) -> None:
    for step in range(6):
        staging.turn()
        staging.host["lens"][:] = step
        staging.upload()
        held = staging.host["lens"]
        staging.turn()
        staging.host["lens"][:] = -1
        assert held.tolist() == [step] * 4


def test_arrays_are_written_again_only_after_a_wait_for_their_upload(staging: Staging) -> None:
    events = []
    for _ in range(2):
        staging.turn()
        staging.upload()
        events.append(staging._turns[0].uploaded)
    assert [event.state for event in events] == ["recorded on the stream of meta"] * 2
    staging.turn()
    assert [event.state.startswith("waited") for event in events] == [True, False]


def test_device_arrays_stay_where_they_are(staging: Staging) -> None:
    before = {name: id(tensor) for name, tensor in staging.device.items()}
    view = staging.see("slots", 0, 2, 1)
    staging.turn()
    staging.upload()
    assert {name: id(tensor) for name, tensor in staging.device.items()} == before
    assert staging.see("slots", 0, 2, 1) is view


def test_on_the_cpu_both_are_the_same_memory() -> None:
    staging = Staging(REGIONS, "cpu")
    pointer = staging.device["lens"].data_ptr()
    for step in range(3):
        staging.turn()
        staging.host["lens"][:] = step
        staging.upload()
        assert staging.device["lens"].tolist() == [step] * 4
        assert staging.device["lens"].data_ptr() == pointer
