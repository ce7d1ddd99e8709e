"""The compile proof as rows of a report file: which calls have good binaries for which arch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hal.common.backends.proof_report import name_processor
from hal.common.backends.registry import backends
from hal.common.contract.backend import CALLS_BY_FAMILY
from hal.common.contract.device import Device
from hal.common.contract.request import Request
from hal.common.triton.backend import TritonBackend
from hal.config import ModelShape

from .compile import DEFAULT_DTYPE, CompileReport
from .fleet import read_fleet

SUITE = "hal compile"


def report_rows(report: CompileReport, models: Mapping[str, ModelShape]) -> list[dict[str, Any]]:
    """A row per arch: for each call of the models' layers how many binaries are good and how many are not."""
    return [_row(report, models, target) for target in dict.fromkeys(row.target for row in report.rows)]


def _row(report: CompileReport, models: Mapping[str, ModelShape], target: str) -> dict[str, Any]:
    device = Device.from_arch(target)
    (formats,) = (proof.proof for proof in read_fleet() if proof.platform == device.platform)
    calls: dict[str, dict[str, Any]] = {}
    for name, shape in models.items():
        rows = [row for row in report.rows if row.target == target and name in row.models]
        failed = sum(bool(row.faults) for row in rows)
        for call in sorted(set(_calls(shape, device))):
            counts = calls.setdefault(call, {"passed": 0, "failed": 0, "layouts": [], "dtypes": []})
            counts["passed"] += len(rows) - failed
            counts["failed"] += failed
            counts["dtypes"] = sorted({*counts["dtypes"], shape.dtype or DEFAULT_DTYPE})
    return {
        "suite": SUITE,
        "backend": _portable(device.platform),
        "arch": device.arch,
        "state": "compiled",
        "means": f"triton {report.toolchain.version}, to {formats}",
        "device": name_processor(),
        "calls": calls,
    }


def _calls(shape: ModelShape, device: Device) -> Iterator[str]:
    for layer in shape.layers:
        yield from CALLS_BY_FAMILY.get(Request(layer, device, shape.dtype or DEFAULT_DTYPE).family, ())


def _portable(platform: str) -> str:
    """The platform's backend whose own calls all compile."""
    found = (cls for cls in backends().values() if issubclass(cls, TritonBackend) and cls.platform == platform)
    return next(cls.name for cls in found if cls.provides is None)
