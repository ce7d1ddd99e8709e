"""Values of another type at the public functions: an error of hal's own that names the argument, whatever the type."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hal
from hal.common.contract.limits import LARGEST
from hal.config import HalError

from .helpers.fakes import ask, gqa_layer, model

SHAPE, DEVICE = model(gqa_layer()), hal.Device.from_arch("cpu")
LIMITS = hal.Limits(64, 2, 16)
PLAN = hal.plan(SHAPE, DEVICE, limits=LIMITS)
STRANGE = [5, 1.5, b"cpu", [], {}, (1,), object(), float("nan")]
CALLS: dict[str, Callable[[object], object]] = {
    "a target": hal.Device.from_arch,
    "torch_device": lambda value: hal.Device.from_arch("sm_90", torch_device=value),
    "layer": lambda value: ask(layer=value or [value]),
    "device": lambda value: ask(device=value),
    "kv_layout": lambda value: ask(kv_layout=value),
    "parallel": lambda value: ask(parallel=value),
    "software": lambda value: ask(software=value),
    "need_lse": lambda value: ask(need_lse=value),
    "deterministic": lambda value: ask(deterministic=value),
    "a backend": lambda value: hal.select(ask(), backend=value),
    "shape": lambda value: hal.plan(value, DEVICE),
    "limits": lambda value: hal.plan(SHAPE, DEVICE, limits=value),
    "versions": lambda value: hal.Software(value or [value]),
    "broken": lambda value: hal.Software({"a": "1"}, {"a": value}),
    "code": lambda value: hal.Reason(value, 1, 2),
}
COUNTS: dict[str, Callable[[object], object]] = {
    "memory_bytes": PLAN.max_tokens,
    "memory_bytes of the groups": PLAN.max_tokens_per_group,
    "memory_bytes of the model": SHAPE.max_tokens,
    "num_tokens": PLAN.blocks_per_group,
    "layer": SHAPE.layer,
    "tp": lambda value: SHAPE.kv_bytes_per_token(tp=value),
}


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(HalError, match=name):
        CALLS[name](value)


@pytest.mark.parametrize("value", [1.5, 8e9, float("inf"), "8", [], object()], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", COUNTS)
def test_what_is_no_whole_number_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(HalError, match=name.partition(" ")[0]):
        COUNTS[name](value)


@pytest.mark.parametrize("name", ["max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"])
def test_a_bound_beyond_int32_is_refused(name: str) -> None:
    values = {"max_model_len": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1}
    with pytest.raises(ValueError, match=rf"{name} is {LARGEST + 1}; expected at most {LARGEST}"):
        hal.Limits(**(values | {name: LARGEST + 1}))


@pytest.mark.parametrize("version", ["²", "1.²", "9" * 5000, "", "..", "x"], ids=lambda text: text[:4])
def test_a_version_that_nobody_can_read_is_below_every_minimum(version: str) -> None:
    verdicts = hal.supports_combination(ask(software=hal.Software({"flash_attn_3": version})))
    assert all(isinstance(reason, hal.Reason) for reasons in verdicts.values() for reason in reasons)
