"""The declaration that the entry point names."""

from __future__ import annotations

from hal.backend import Platform

PLATFORM = Platform(
    name="dummy",
    package="hal_dummy",
    backends=("hal_dummy.portable:DummyPortable", "hal_dummy.narrow:DummyNarrow"),
    probe_path="hal_dummy.probe:probe",
    torch_type="cpu",
)
