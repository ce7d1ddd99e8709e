"""The support table: its cells are selection's own answers, its states the reports', and its files read back as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import hal
from hal.common.backends.registry import platforms
from hal.common.contract.errors import InputError
from hal.matrix.cells import DEFAULT_VARIANTS, Cell, Variant, compute_cells, fleet_targets
from hal.matrix.features import FEATURES
from hal.matrix.models import listed_models
from hal.matrix.support_file import parse, to_text

MODELS = listed_models()
FEW = {name: MODELS[name] for name in ("llama-3.1-8b", "gpt-oss-20b", "deepseek-v3.2", "deepseek-v4-flash", "mpt-7b")}
DEVICES = [hal.Device.from_arch(target) for target in ("cpu", "sm_90", "gfx942", "pvc")]


def few_cells() -> tuple[Cell, ...]:
    return compute_cells(FEW, DEVICES)


def test_every_arch_of_the_fleet_is_asked() -> None:
    targets = {device.target for device in fleet_targets()}
    assert len(targets) == sum(len(platform.archs()) for platform in platforms().values())


def test_a_cell_is_there_once_for_every_combination() -> None:
    cells = few_cells()
    assert len({cell.key for cell in cells}) == len(cells)
    asked = {cell.key[:2] for cell in cells}
    assert asked == {(name, device.target) for name in FEW for device in DEVICES}
    plain = [variant for variant in DEFAULT_VARIANTS if not variant.feature]
    assert sum(not cell.feature for cell in cells) == len(plain) * len(FEW) * len(DEVICES)


@pytest.mark.parametrize("variant", [Variant(), Variant(dtype="float32"), Variant(kv_layout="fp8")], ids=str)
@pytest.mark.parametrize("name", FEW)
def test_a_cell_is_what_a_plan_says(name: str, variant: Variant) -> None:
    for device in DEVICES:
        (cell,) = compute_cells({name: FEW[name]}, [device], [variant])
        limits = hal.Limits(256, 2, 256)
        try:
            made = hal.plan(
                FEW[name], device, limits=limits, dtype=variant.dtype, kv_layout=variant.kv_layout, software=hal.Software({})
            )
        except hal.NoBackend:
            made = None
        if made is not None:
            assert cell.is_served
        if cell.is_served:
            every = [hal.select(request) for request in _requests(name, device, variant)]
            assert set(cell.backends) == {one.backend for one in every}
            assert set(cell.providers) == {provider for one in every for provider in one.providers.values()}
            assert cell.state != "unsupported"
            assert not cell.reasons
        else:
            assert (cell.state, cell.bytes_per_token, cell.providers) == ("unsupported", 0, {})
            assert cell.reasons


def _requests(name: str, device: hal.Device, variant: Variant) -> list[hal.Request]:
    shape = FEW[name]
    return [
        hal.Request(layer, device, variant.dtype, shape.layout_of(layer, variant.kv_layout))
        for layer in shape.layers
        if layer.kind != "none"
    ]


def test_bytes_are_the_shapes_own_in_each_layout() -> None:
    for cell in few_cells():
        shape = FEW[cell.model]
        if cell.is_served and cell.target == "cpu" and not cell.feature:
            kv = shape.kv_bytes_per_token(cell.kv_layout, cell.dtype)
            assert cell.bytes_per_token == kv + shape.index_bytes_per_token(cell.kv_layout, cell.dtype)


REFUSED = {"graphs": "graph capture", "dcp": "decode-context ranks", "sinks": "attention sinks"}


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_asked_of_every_model_it_concerns(name: str) -> None:
    variants = [Variant(), Variant(feature=name)]
    found = compute_cells(FEW, DEVICES, variants)
    plain = {cell.key[:2]: cell for cell in found if not cell.feature}
    for cell in found:
        if cell.feature and cell.is_served:
            assert plain[cell.key[:2]].is_served
    refused = [cell for cell in found if cell.feature and not cell.is_served and plain[cell.key[:2]].is_served]
    assert all(any(REFUSED.get(name, "") in reason for reason in cell.reasons) for cell in refused)
    concerned = {cell.model for cell in found if cell.feature}
    concerns = FEATURES[name].concerns
    assert concerned == {
        model for model, shape in FEW.items() if concerns is None or any(concerns(layer) for layer in shape.layers)
    }


def test_a_feature_of_the_fleet_is_refused_somewhere_and_served_somewhere() -> None:
    found = compute_cells(FEW, DEVICES, [Variant(feature="dcp")])
    assert {cell.is_served for cell in found} == {True, False}


def test_the_table_reads_back_as_it_was() -> None:
    cells = few_cells()
    assert parse("table.json", to_text(cells)) == {cell.key: cell for cell in cells}
    report = json.loads(to_text(cells))
    assert (report["schema"], report["hal"]) == (1, hal.__version__)


def changed(**changes: Any) -> str:
    (cell,) = compute_cells({"llama-3.1-8b": FEW["llama-3.1-8b"]}, DEVICES[:1], [Variant()])
    report = json.loads(to_text([cell]))
    report["cells"][0] = {**report["cells"][0], **changes}
    return json.dumps(report)


BROKEN = {
    "no_json": ("{", "table.json is no JSON"),
    "a_list": ("[]", "table.json has schema None"),
    "another_schema": (json.dumps({"schema": 7, "cells": []}), "has schema 7 where 1 is read"),
    "two_cells_of_one_name": (changed(targets=["cpu", "cpu"]), "two cells of one name: llama-3.1-8b cpu bfloat16 auto"),
    "a_state_of_nobodys": (changed(state="believed"), "state 'believed'; expected one of verified"),
    "a_reason_that_is_not_there": (changed(reasons=[99]), "has a cell that cannot be read"),
    "no_targets": (changed(targets=None), "has a cell that cannot be read"),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_table_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse("table.json", text)


def test_the_state_is_the_weakest_of_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of two kinds of layers is no better proved than the lesser."""
    from hal.matrix import proof

    known = proof.read_evidence()
    monkeypatch.setattr(proof, "read_evidence", lambda: known)
    assert compute_cells({"m": FEW["gpt-oss-20b"]}, DEVICES[:1], [Variant()])[0].state == "verified"
    less = tuple(replace(one, state="emulated") if one.call == "apply_sink" else one for one in known)
    monkeypatch.setattr(proof, "read_evidence", lambda: less)
    assert compute_cells({"m": FEW["gpt-oss-20b"]}, DEVICES[:1], [Variant()])[0].state == "emulated"
    monkeypatch.setattr(proof, "read_evidence", lambda: ())
    assert compute_cells({"m": FEW["gpt-oss-20b"]}, DEVICES[:1], [Variant()])[0].state == "declared"
