"""Vendor libraries declared on the command line, for devices that are not here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hal.common.backends.registry import known_libraries
from hal.common.contract.software import Software

from .console import InputError

NOTHING = "none"


def read_software(declarations: Sequence[str]) -> Software | None:
    """What "flash_attn_3=3.0.0,aiter=0.1.7" and the like declare; "none" declares that nothing is installed.

    None where nothing is declared. InputError for a library that no backend uses, or one without a version or with two.
    """
    if not declarations:
        return None
    pieces = [piece.strip() for declaration in declarations for piece in declaration.split(",")]
    if pieces == [NOTHING]:
        return Software({})
    versions: dict[str, str] = {}
    for piece in pieces:
        name, version = _read_piece(piece)
        if versions.setdefault(name, version) != version:
            raise InputError(f"--software gives {name} the versions {versions[name]} and {version}; expected one")
    return Software(versions)


def _read_piece(piece: str) -> tuple[str, str]:
    name, _, version = (word.strip() for word in piece.partition("="))
    known = known_libraries()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"--software names {name!r}, a library that no backend uses; {hint}known: {', '.join(sorted(known))}")
    if not version:
        raise InputError(f"--software has {piece!r}; expected {name}=VERSION")
    return name, version
