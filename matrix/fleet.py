"""Which archs the fleet promises, one file per platform."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

PROOFS = ("run", "cubin", "hsaco", "spirv")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformProof:
    """One platform's promise: its archs, and what shows that kernels are good for them ("run", or a compiled format)."""

    platform: str
    proof: str
    archs: tuple[str, ...]


def read_fleet() -> tuple[PlatformProof, ...]:
    """Every platform file of this package, by name; ValueError names the file and the entry that does not belong."""
    found = sorted(item.name for item in files(__package__).iterdir() if item.name.endswith(".toml"))
    return tuple(_read(name) for name in found)


def _read(name: str) -> PlatformProof:
    data = tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
    if data.keys() != {"proof", "archs"}:
        raise ValueError(f"matrix/{name} has the keys {sorted(data)}; expected archs and proof")
    if data["proof"] not in PROOFS:
        raise ValueError(f"matrix/{name}: proof is {data['proof']!r}; expected one of {', '.join(PROOFS)}")
    return PlatformProof(platform=name.removesuffix(".toml"), proof=data["proof"], archs=tuple(data["archs"]))
