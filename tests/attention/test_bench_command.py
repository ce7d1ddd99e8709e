"""hal bench on small models of every kind that the CPU serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hal.cli import bench, main

REST = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10, "max_position_embeddings": 512}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
INDEXER = {"index_topk": 16, "index_n_heads": 2, "index_head_dim": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "windowed": {
        "model_type": "gemma2",
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 32,
        **REST,
    },
    "sinks": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 32,
        **REST,
    },
    "latent": {"model_type": "deepseek_v3", "num_hidden_layers": 3, **REST, **MLA},
    "sparse": {"model_type": "deepseek_v32", "num_hidden_layers": 3, **REST, **MLA, **INDEXER},
    "compressed": {"model_type": "deepseek_v4", "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4], "head_dim": 32}
    | {"qk_rope_head_dim": 16, "sliding_window": 32, "num_key_value_heads": 1, "q_lora_rank": 16, **REST, **INDEXER},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_is_timed_in_both_phases(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "LEAST_SECONDS", 1e-4)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    terms = ["--device", "cpu", "--context", "200", "--requests", "2", "--prefill", "150"]
    assert main(["bench", str(tmp_path), *terms, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    ids = sorted(layer_id for kind in report["layers"] for layer_id in kind["layer_ids"])
    assert ids == list(range(CONFIGS[name]["num_hidden_layers"]))
    for phase in ("decode", "prefill"):
        parts = [len(kind["layer_ids"]) * kind["seconds"][phase] for kind in report["layers"]]
        assert min(parts) > 0
        assert report["together"][phase]["seconds"] == pytest.approx(sum(parts) + report["build_seconds"][phase])
    assert main(["bench", str(tmp_path), *terms]) == 0
    assert "all together" in capsys.readouterr().out
