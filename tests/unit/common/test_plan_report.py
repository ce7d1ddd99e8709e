"""A plan as data and in words: JSON that any run writes alike, and lines with the figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import hal

from .helpers.fakes import gqa_layer, make_backend, model, sparse_layer

LIMITS = hal.Limits(1024, 4, 64, block_size=16)
SPARSE = model(sparse_layer(0, topk=64), sparse_layer(1, topk=64, owns=False))
SCRIPT = """
import json, hal
from hal.config import read_shape
shape = read_shape({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 9})
print(json.dumps(hal.plan(shape, "cpu", limits=hal.Limits(256, 2, 32)).to_dict()))
"""


def test_the_dict_has_the_plans_figures() -> None:
    plan = hal.plan(SPARSE, "cpu", limits=LIMITS)
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["device"] == "cpu"
    assert data["dtype"] == "bfloat16"
    assert data["block_size"] == 16
    assert data["bytes_per_token"] == plan.bytes_per_token
    assert data["workspace_bytes"] == plan.workspace_bytes == sum(buffer["nbytes"] for buffer in data["buffers"])
    assert [group["layer_ids"] for group in data["groups"]] == [[0, 1], [0]]
    assert [layer["backend"] for layer in data["layers"]] == ["cpu", "cpu"]
    assert data["limits"]["max_model_len"] == 1024


def test_equal_plans_give_equal_text() -> None:
    first, second = (json.dumps(hal.plan(SPARSE, "cpu", limits=LIMITS).to_dict()) for _ in range(2))
    assert first == second


def test_the_text_does_not_depend_on_the_hash_seed() -> None:
    texts = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        texts.add(subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True).stdout)
    assert len(texts) == 1


@pytest.mark.usefixtures("no_backends")
@pytest.mark.parametrize(
    "declared",
    [
        {"archs": frozenset({"sm_80", "sm_100"})},
        {"head_dims": frozenset({96, 128})},
        {"families": frozenset({"mla", "sparse_mla"})},
        {"dtypes": ("float16",)},
    ],
    ids=["archs", "widths", "families", "dtypes"],
)
def test_every_reason_can_be_written_as_json(declared: dict) -> None:
    hal.register_backend(make_backend("cuda:good"))
    hal.register_backend(make_backend("cuda:picky", **declared))
    data = hal.plan(model(gqa_layer()), "cuda:sm_90", limits=LIMITS).to_dict()
    text = json.dumps(data["layers"][0]["rejected"])
    assert "cuda:picky" in text
    values = next(iter(declared.values()))
    assert all(str(value) in text for value in values)


@pytest.mark.usefixtures("no_backends")
def test_reasons_are_written_in_an_order_of_their_own() -> None:
    """A set would come out in another order in another process."""
    hal.register_backend(make_backend("cuda:good"))
    hal.register_backend(make_backend("cuda:picky", archs=frozenset({f"sm_{number}" for number in range(60, 80)})))
    data = hal.plan(model(gqa_layer()), "cuda:sm_90", limits=LIMITS).to_dict()
    (reason,) = data["layers"][0]["rejected"]["cuda:picky"]
    assert list(reason["want"]) == [f"sm_{number}" for number in range(60, 80)]


def test_words_have_the_backends_the_groups_and_the_buffers() -> None:
    plan = hal.plan(SPARSE, "cpu", limits=LIMITS)
    text = plan.explain()
    assert all(word in text for word in ["cpu", "bfloat16", "pages of 16", "layers 0-1", "latent", "1152 bytes", "indexer"])
    assert all(buffer.name in text for buffer in plan.buffers)
