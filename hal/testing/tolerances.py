"""How far a kernel's result may be from the float64 reference, by dtype; the one place that says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """|actual - expected| <= absolute + relative * |expected|, element by element."""

    absolute: float
    relative: float


# Half precision is allowed one unit in the last place: half of it for rounding the weights, half for rounding the result.
# Kernels that cut either off are further away.
TOLERANCES = {
    "float64": Tolerance(absolute=1e-6, relative=1e-6),
    "float32": Tolerance(absolute=1e-5, relative=1e-4),
    "float16": Tolerance(absolute=1e-3, relative=1e-3),
    "bfloat16": Tolerance(absolute=4e-3, relative=4e-3),
}


def tolerance(dtype: object) -> Tolerance:
    """The tolerance of results in a dtype, given by name or as a torch.dtype; an LSE and scores are fp32 whatever they came from.

    float64 is held to what an fp32 LSE leaves of it, since states are merged by one.
    """
    return TOLERANCES[str(dtype).removeprefix("torch.")]
