"""The support table as one HTML page that needs nothing else, not even a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from hal.common.backends.proof import STATES

from .cells import Cell
from .features import FEATURES
from .markdown import MEANINGS
from .parity import Parity
from .parity_file import to_dict as parity_to_dict
from .proof import Evidence
from .support_file import to_dict

_PLACE = "/*DATA*/null"


def support_page(cells: Sequence[Cell], parity: Parity, evidence: Sequence[Evidence]) -> str:
    """The page with its data inside."""
    data = {
        "support": to_dict(cells),
        "parity": parity_to_dict(parity),
        "evidence": [_evidence_dict(each) for each in evidence],
        "features": {name: feature.meaning for name, feature in FEATURES.items()},
        "states": {state: MEANINGS[state] for state in STATES},
    }
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    if template.count(_PLACE) != 1:
        raise ValueError(f"page.html has {template.count(_PLACE)} places for its data; expected one {_PLACE}")
    # A script ends at the first "</", wherever it stands.
    return template.replace(_PLACE, json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/"))


def _evidence_dict(each: Evidence) -> dict[str, Any]:
    return {key: sorted(value) if isinstance(value, frozenset) else value for key, value in asdict(each).items()}
