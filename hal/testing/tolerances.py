"""How far a kernel's result may be from the float64 reference, by dtype; the one place that says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """|actual - expected| <= absolute + relative * |expected|, element by element."""

    absolute: float
    relative: float


TOLERANCES = {
    "float64": Tolerance(absolute=1e-6, relative=1e-6),
    "float32": Tolerance(absolute=1e-5, relative=1e-4),
    "float16": Tolerance(absolute=4e-3, relative=4e-3),
    "bfloat16": Tolerance(absolute=2e-2, relative=2e-2),
}


def tolerance(dtype: object) -> Tolerance:
    """The tolerance of results computed from inputs of a dtype, given by name or as a torch.dtype.

    float64 is held to what an fp32 LSE leaves of it, since states are merged by one.
    """
    return TOLERANCES[str(dtype).removeprefix("torch.")]
