"""Parity: no feature can be declared by one platform alone without the others saying why not."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hal.cli import main
from hal.common.backends.registry import backends, platforms
from hal.common.contract.capabilities import Capabilities
from hal.common.contract.errors import InputError
from hal.matrix import parity
from hal.matrix.parity import LIMITS, compute_parity, list_features, parse_reasons

ROOT = Path(__file__).parents[3]
CUDA = backends()["cuda:triton"]
ADDED = {
    "a_bias": {"position_biases": frozenset({"alibi"})},
    "a_graph": {"graphs": "always"},
    "a_layout": {"kv_layouts": {**CUDA.capabilities.kv_layouts, "mla": (*CUDA.capabilities.kv_layouts["mla"], "compressed")}},
    "an_index_layout": {"index_layouts": ("indexer", "indexer_fp8", "indexer_fp4")},
    "a_dtype": {"dtypes": ("bfloat16", "float16", "float32", "float8_e4m3fn")},
    "a_family": {"families": CUDA.capabilities.families | {"linear"}},
}


@pytest.mark.parametrize("changes", ADDED.values(), ids=ADDED)
def test_a_feature_of_one_platform_alone_opens_holes_on_the_others(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compute_parity()
    monkeypatch.setattr(CUDA, "capabilities", replace(CUDA.capabilities, **changes))
    after = compute_parity()
    gained = {feature for feature, names in after.has.items() if "cuda" in names and "cuda" not in before.has.get(feature, ())}
    assert gained
    for feature in gained:
        assert {name for name in after.platforms if name not in after.has[feature]} == {
            platform for hole, platform in after.holes if hole == feature
        }
    # What cuda lacked with a reason is no hole any more, and that reason is stale; what nobody had needs reasons elsewhere.
    assert after.stale or after.unexplained


def test_the_command_fails_where_a_hole_has_no_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix", "parity"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(CUDA, "capabilities", replace(CUDA.capabilities, position_biases=frozenset({"alibi"})))
    assert main(["matrix", "parity"]) == 1
    error = capsys.readouterr().err
    assert "position biases alibi is missing on rocm without a reason" in error
    assert error.count("\n") == 1


def test_every_hole_of_this_checkout_has_a_reason_and_every_reason_a_hole() -> None:
    found = compute_parity()
    assert found.unexplained == ()
    assert found.stale == ()
    assert found.holes


def test_a_new_field_of_capabilities_is_a_feature_without_anyones_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    added = [("paged_prefill", bool, False), ("tiers", tuple, ())]
    wider = make_dataclass("Wider", added, bases=(Capabilities,), frozen=True, kw_only=True)
    values = {field.name: getattr(CUDA.capabilities, field.name) for field in fields(CUDA.capabilities)}
    monkeypatch.setattr(CUDA, "capabilities", wider(**values, paged_prefill=True, tiers=("host",)))
    assert {"paged prefill", "tiers host"} <= set(list_features(CUDA))
    holes = {hole for hole in compute_parity().unexplained if hole[0] in ("paged prefill", "tiers host")}
    assert holes == {(feature, name) for feature in ("paged prefill", "tiers host") for name in platforms().keys() - {"cuda"}}


def test_a_field_that_nobody_can_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = make_dataclass("Odd", [("oddity", object, None)], bases=(Capabilities,), frozen=True, kw_only=True)
    values = {field.name: getattr(CUDA.capabilities, field.name) for field in fields(CUDA.capabilities)}
    monkeypatch.setattr(CUDA, "capabilities", odd(**values))
    with pytest.raises(TypeError, match=r"Capabilities\.oddity is None"):
        compute_parity()


def test_limits_are_fields_of_capabilities() -> None:
    assert {field.name for field in fields(Capabilities)} >= LIMITS


def test_every_kind_of_feature_is_in_the_table() -> None:
    features = compute_parity().has
    for wanted in (
        *("call paged_attention", "call compress_states", "window", "chunk", "non causal", "sink", "dcp", "graphs always"),
        *("kv layouts mla: fp8_ds_mla", "index layouts indexer_fp8", "max spec tokens", "family compressed attention"),
        *("warm-up attend:attend_keys", "warm-up topk:choose_columns", "lse", "deterministic", "dtypes bfloat16"),
    ):
        assert wanted in features


GOOD = {"features": ["a"], "platforms": ["b"], "reason": "c"}
BROKEN = {
    "no_json": ("{", "is no entry"),
    "no_reason": (json.dumps({**GOOD, "reason": " "}), "a reason in words"),
    "no_features": (json.dumps({**GOOD, "features": []}), "a reason in words"),
    "a_key_too_many": (json.dumps({**GOOD, "who": "me"}), "expected features, platforms"),
    "a_key_too_few": (json.dumps({"features": ["a"]}), "is no entry"),
    "twice": ("\n".join([json.dumps(GOOD)] * 2), "a on b has two reasons"),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_reason_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_reasons(text)


def test_json_of_the_command_is_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "parity", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["has"] == {feature: sorted(names) for feature, names in compute_parity().has.items()}
    assert parity.read_reasons() == {(hole["feature"], hole["platform"]): hole["reason"] for hole in report["holes"]}


OWN = {
    "no_reason": ("reason = ' '", "a reason in words"),
    "no_features": ("features = []", "a reason in words"),
    "features_of_no_list": ("features = 'a'", "a reason in words"),
    "a_key_too_many": ("platforms = ['cpu']", "expected features and a reason"),
    "a_feature_twice": ("features = ['a', 'a']", "a on cuda has two reasons"),
}


@pytest.mark.parametrize(("line", "said"), OWN.values(), ids=OWN)
def test_a_broken_reason_in_a_platforms_file_is_named(line: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"features": ["a"], "reason": "c"} | tomllib.loads(line)
    monkeypatch.setattr(parity, "read_tables", lambda: {"cuda": {"hole": [entry]}})
    with pytest.raises(InputError, match=rf"matrix/cuda\.toml: .*{said}"):
        parity.read_reasons.__wrapped__()


def test_a_platforms_file_has_the_reasons_of_its_own_holes() -> None:
    own = tomllib.loads((ROOT / "matrix" / "cpu.toml").read_text(encoding="utf-8"))["hole"]
    features = {(feature, "cpu"): entry["reason"] for entry in own for feature in entry["features"]}
    assert features
    assert features.items() <= parity.read_reasons().items()
