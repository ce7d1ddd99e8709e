"""Prefills that an indexer prunes, decompressed on the portable kernels: what the CPU gives absorbed, with contexts in chunks."""

from __future__ import annotations

import os

import pytest

import hal
from hal.common.stepping import runs
from hal.common.triton.launch import Launcher

from .helpers.small_layers import LAYERS, make_inputs, open_layer

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="the interpreter is chosen when a kernel is decorated: run this folder alone, with TRITON_INTERPRET=1",
)
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

TABLE = np.arange(6, dtype=np.int32).reshape(2, 3)


@pytest.mark.parametrize("target", ["cuda:sm_90", "rocm:gfx942", "xpu:pvc"])
def test_a_pruned_prefill_may_be_decompressed(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = ["decompressed", "absorbed"]
    attentions = [
        open_layer(LAYERS["sparse"], place, "auto", "never")
        for place in (hal.Device.from_arch(target, torch_device="cpu"), "cpu")
    ]
    attentions[0].warm_up()
    marked = []
    run = Launcher.run
    monkeypatch.setattr(Launcher, "run", lambda self, launch: (marked.append(launch.kernel), run(self, launch))[1])
    generator, lengths = torch.Generator().manual_seed(2), np.zeros(2, np.int64)
    for counts in ([19, 3], [14, 11]):
        lengths += counts
        inputs = make_inputs(LAYERS["sparse"], sum(counts), generator)
        found = []
        for attention, form in zip(attentions, forms, strict=True):
            monkeypatch.setattr(runs, "choose_form", lambda *_, form=form: form)
            metadata = attention.build(hal.Batch(counts, lengths.copy(), TABLE))
            found.append(attention.attend_mla(0, metadata=metadata, **inputs))
        torch.testing.assert_close(*found, atol=2e-4, rtol=2e-4)
    assert "choice:mark_keys" in marked
    assert "sparse:attend_rows" not in marked
    assert attentions[0].compile_misses == 0
