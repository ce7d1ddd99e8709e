"""After a load nothing keeps the value it began with: parameters come from the file, buffers are computed anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaPreTrainedModel

from hal.common.contract.limits import Limits
from hal.common.contract.parallel import Parallel
from hal.models import CheckpointError, load, plan_checkpoint
from hal.models.poison import poisoned_memory

from .helpers import composites, folders, tiny

EVERY = tiny.FAMILIES | composites.COMPOSITES
LIMITS = Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32)


@pytest.mark.parametrize("family", EVERY)
def test_memory_that_is_poisoned_before_a_load_shows_nowhere_after_it(family: str, tmp_path: Path) -> None:
    module = tiny.build(EVERY[family]())
    folders.save(module, tmp_path)
    with poisoned_memory():
        other = load(tmp_path, device="cpu", limits=LIMITS, progress=False).module
    expected = dict([*module.named_parameters(), *module.named_buffers()])
    found = dict([*other.named_parameters(), *other.named_buffers()])
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_a_buffer_that_its_class_does_not_compute_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    monkeypatch.setattr(LlamaPreTrainedModel, "_init_weights", lambda *_args: None)
    with pytest.raises(CheckpointError, match=r"neither loaded nor computed: model\.rotary_emb\.inv_freq"):
        load(tmp_path, device="cpu", limits=LIMITS, progress=False)


def test_a_missing_parameter_that_its_class_does_not_draw_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    folders.rewrite(tmp_path, lambda tensors: {name: x for name, x in tensors.items() if name != "model.norm.weight"})
    plain = LlamaPreTrainedModel._init_weights

    def careless(self: LlamaPreTrainedModel, module: torch.nn.Module) -> None:
        if "Norm" not in type(module).__name__:
            plain(self, module)

    monkeypatch.setattr(LlamaPreTrainedModel, "_init_weights", careless)
    with pytest.raises(CheckpointError, match=r"neither loaded nor computed: model\.norm\.weight"):
        load(tmp_path, device="cpu", limits=LIMITS, progress=False, strict=False)


IGNORABLE = "_keys_to_ignore_on_load_missing"


def test_what_a_class_lets_files_leave_out_is_computed_by_it(tmp_path: Path) -> None:
    module = tiny.build(transformers.AXK1Config(**tiny.LATENT))
    folders.save(module, tmp_path)
    expected = module.state_dict()
    left_out = {name for name in expected if name.endswith("e_score_correction_bias")}
    folders.rewrite(tmp_path, lambda tensors: {name: x for name, x in tensors.items() if name not in left_out})
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert model.report is not None
    assert set(model.report.unstored) == left_out
    assert all("lets it be missing (e_score_correction_bias) and sets it to 0" in why for why in model.report.unstored.values())
    for name, tensor in model.module.state_dict().items():
        assert torch.equal(tensor, torch.zeros_like(tensor) if name in left_out else expected[name]), name


@pytest.mark.parametrize(
    ("left_out", "is_let_through"),
    [("model.norm.weight", True), ("lm_head.weight", False), ("model.layers.0.mlp.up_proj.weight", False)],
    ids=["a-constant", "a-head-drawn-at-random", "a-matrix-drawn-at-random"],
)
def test_what_a_class_draws_at_random_is_missing_whatever_it_declares(
    left_out: str, is_let_through: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    folders.rewrite(tmp_path, lambda tensors: {name: x for name, x in tensors.items() if name != left_out})
    assert plan_checkpoint(tmp_path).missing == (left_out,)
    monkeypatch.setattr(LlamaPreTrainedModel, IGNORABLE, [r"model\.norm", "lm_head", "up_proj"])
    plan = plan_checkpoint(tmp_path)
    assert (plan.missing, set(plan.unstored)) == (((), {left_out}) if is_let_through else ((left_out,), set()))
    if is_let_through:
        loaded = load(tmp_path, device="cpu", limits=LIMITS, progress=False).module.get_parameter(left_out)
        assert torch.equal(loaded, torch.ones_like(loaded))


def test_a_value_that_differs_by_place_is_not_computed_for_a_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "lm_head.weight"
    folders.save(tiny.build(tiny.llama()), tmp_path)
    folders.rewrite(tmp_path, lambda tensors: {key: x for key, x in tensors.items() if key != name})
    plain = LlamaPreTrainedModel._init_weights

    def count_up(self: LlamaPreTrainedModel, module: torch.nn.Module) -> None:
        if getattr(module, "weight", torch.empty(0)).shape == (128, 64):
            module.weight.data.copy_(torch.arange(128 * 64.0).view(128, 64))
        else:
            plain(self, module)

    monkeypatch.setattr(LlamaPreTrainedModel, IGNORABLE, [name])
    monkeypatch.setattr(LlamaPreTrainedModel, "_init_weights", count_up)
    assert set(plan_checkpoint(tmp_path).unstored) == {name}
    assert plan_checkpoint(tmp_path, parallel=Parallel(tp=2)).missing == (name,)


def test_the_process_s_own_settings_are_put_back(tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    settings = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert settings == (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
