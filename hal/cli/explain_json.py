"""An explanation as plain data: reasons keep their values and carry their sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import hal
from hal.common.backends.proof import say_state
from hal.common.backends.registry import platforms
from hal.config import LayerShape
from hal.config.runs import group_layers
from hal.matrix.proof import Proof

from .explain_answer import DeviceAnswer, Explanation, LayerAnswer
from .words import say_layer, say_verdict

SCHEMA = 1
"""Goes up where a field changes its meaning or goes away."""


def to_dict(answer: Explanation) -> dict[str, Any]:
    """The explanation; served says that every layer has a backend, proof how far its calls are shown to work.

    fits: whether the memory, where it is known, has room for a token beside the weights and the workspace, as far as those are.
    """
    shape = answer.shape
    return {
        "schema": SCHEMA,
        "hal": hal.__version__,
        "verdict": say_verdict(answer),
        "served_on": [found.device.target for found in answer.devices if found.is_served],
        "model": {
            "model_type": shape.model_type,
            "text_path": shape.text_path,
            "num_layers": shape.num_layers,
            "max_position_embeddings": shape.max_position_embeddings,
            "is_mla": shape.is_mla,
            "is_sparse": shape.is_sparse,
            "index_topk": shape.index_topk,
            "layers": _list_layers(shape.layers),
            "draft_layers": _list_layers(shape.draft_layers),
            "notes": shape.notes,
            "warnings": shape.warnings,
        },
        "dtype": answer.dtype,
        "backend": answer.backend,
        "kv_layout": answer.kv_layout,
        "limits": asdict(answer.limits),
        "parallel": asdict(answer.parallel),
        "weights": None if answer.weights is None else asdict(answer.weights),
        "devices": [_device_dict(found) for found in answer.devices],
    }


def _list_layers(layers: Sequence[LayerShape]) -> list[dict[str, Any]]:
    return [{"layer_ids": ids, "what": say_layer(layer)} for layer, ids in group_layers(layers)]


def _device_dict(found: DeviceAnswer) -> dict[str, Any]:
    return {
        "target": found.device.target,
        "name": found.device.name,
        "present": found.device.present,
        "served": found.is_served,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "index_bytes_per_token": found.index_bytes_per_token,
        "capacity": asdict(found.capacity) if found.capacity is not None else None,
        "fits": not found.capacity.is_nothing if found.capacity is not None else None,
        "software": dict(found.software.versions) if found.software is not None else None,
        "workspace_bytes": found.plan.workspace_bytes if found.plan is not None else None,
        "refusal": found.refusal,
        "layers": [_layer_dict(found, row) for row in found.layers],
    }


def _layer_dict(found: DeviceAnswer, row: LayerAnswer) -> dict[str, Any]:
    chosen = row.selection
    return {
        "layer_ids": row.layer_ids,
        "draft": row.is_draft,
        "family": row.family,
        "backend": chosen.backend if chosen else None,
        "source": chosen.source if chosen else None,
        "providers": dict(chosen.providers) if chosen else {},
        "kv_layout": chosen.kv_layout if chosen else None,
        "index_layout": chosen.index_layout if chosen else None,
        "block_size": chosen.block_size if chosen else None,
        "proof": None if row.proof is None else _proof_dict(found, row.proof),
        "also_able": row.also_able,
        "rejected": {
            name: [{**asdict(reason), "text": str(reason)} for reason in reasons] for name, reasons in row.rejected.items()
        },
    }


def _proof_dict(found: DeviceAnswer, proof: Proof) -> dict[str, Any]:
    is_card = not platforms()[found.device.platform].always_present
    kept = ("backend", "call", "state", "suite", "means", "device", "commit", "date", "passed")
    return {
        "state": proof.state,
        "text": say_state(proof.state, is_card=is_card),
        "calls": dict(proof.calls),
        "evidence": [{name: getattr(each, name) for name in kept} for each in proof.evidence],
    }
