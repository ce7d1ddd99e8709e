"""Devices: one of this machine, or any arch of the table as a planning target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that hal can plan for. torch_device: where tensors live, None where nothing runs; fp8: its e4m3 encoding."""

    platform: str
    arch: str
    index: int = 0
    name: str = ""
    memory_bytes: int | None = None
    fp8: str | None = None
    torch_device: str | None = None
    present: bool = False

    def __str__(self) -> str:
        return self.target

    @property
    def target(self) -> str:
        """The device in the one target grammar: "cuda:sm_90", "cpu"."""
        return self.platform if self.arch == self.platform else f"{self.platform}:{self.arch}"

    @classmethod
    def from_arch(cls, target: str, torch_device: str | None = None) -> Device:
        """A device of any arch of the table, present or not, from "cuda:sm_90", "sm_90", "cpu", or a part: "H100".

        torch_device="cpu" puts tensors on the CPU while decisions stay the arch's. ValueError lists the archs, and names what
        may have been meant.
        """
        from hal.common.backends.targets import find_target

        return find_target(target, torch_device)
