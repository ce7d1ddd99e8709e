"""The parity table as JSON, and what a later one may not do to an earlier: open a hole that was not there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import hal
from hal.common.contract.errors import InputError

from .parity import Parity

SCHEMA = 1


def to_dict(parity: Parity) -> dict[str, Any]:
    """Schema number, hal's version, what each feature's platforms are, and every hole with its reason."""
    return {
        "schema": SCHEMA,
        "hal": hal.__version__,
        "platforms": list(parity.platforms),
        "has": {feature: sorted(names) for feature, names in parity.has.items()},
        "holes": [{"feature": feature, "platform": name, "reason": reason} for (feature, name), reason in parity.holes.items()],
    }


def to_text(parity: Parity) -> str:
    """The same as a file."""
    return json.dumps(to_dict(parity), indent=1) + "\n"


def is_parity(report: object) -> bool:
    """Whether parsed JSON is such a table."""
    return isinstance(report, Mapping) and {"platforms", "has", "holes"} <= report.keys()


def find_new_holes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences on what platforms had, or did not lack, and now lack. InputError: the old file cannot be read.

    A feature that is new to the table may have holes, each with its reason, and so may a platform; others may only lose them.
    """
    try:
        before = {(hole["feature"], hole["platform"]) for hole in old["holes"]}
        return tuple(_compare(before, old, new))
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{name} is no parity table ({type(error).__name__}: {error}); expected hal matrix parity --json"
        ) from error


def _compare(before: set[tuple[str, str]], old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for hole in new["holes"]:
        feature, platform = hole["feature"], hole["platform"]
        if not hole["reason"]:
            yield f"{feature} is missing on {platform} without a reason"
        elif feature in old["has"] and platform in old["platforms"] and (feature, platform) not in before:
            yield f"{feature} is missing on {platform}, where it was not"
    for feature, platforms in old["has"].items():
        if feature not in new["has"] and platforms:
            yield f"{feature} is gone; {', '.join(platforms)} had it"
