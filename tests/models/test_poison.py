"""After a load nothing keeps the value it began with: parameters come from the file, buffers are computed anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaPreTrainedModel

from hal.common.contract.limits import Limits
from hal.models import CheckpointError, load
from hal.models.poison import poisoned_memory

from . import composites, folders, tiny

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


def test_the_process_s_own_settings_are_put_back(tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.llama()), tmp_path)
    settings = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert settings == (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
