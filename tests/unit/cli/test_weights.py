"""hal explain --weights: by a checkpoint's headers, by the config, or as given; and what they leave to the caches."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from hal.cli import main

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
PARAMETERS = 2 * 100 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1}


def write_file(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    header, start = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
        start += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(start))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def weigh(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["explain", *arguments, "--device", "cpu", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["weights"]
    return found


def test_a_config_alone_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = weigh(capsys, str(folder), "--weights", "auto")
    assert found["bytes_on_rank"] == 2 * PARAMETERS
    assert "counted from the config's widths, within a few per cent" in found["basis"]


@pytest.mark.parametrize(
    ("stored", "dtype", "width", "said"),
    [
        ("BF16", "auto", 2, "as they are stored"),
        ("F32", "auto", 2, "floats as bfloat16"),
        ("F8_E4M3", "float32", 1, "as they are"),
    ],
    ids=["as_stored", "converted", "quantised"],
)
def test_weights_are_the_sum_of_a_checkpoints_headers(
    stored: str, dtype: str, width: int, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(folder / "model.safetensors", {"a": (stored, [10, 30]), "b": (stored, [50])})
    for source in (folder, folder / "config.json"):
        found = weigh(capsys, str(source), "--weights", "auto", "--dtype", dtype)
        assert found["bytes_on_rank"] == 350 * width
        assert said in found["basis"]


def test_an_index_names_the_files_that_count(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"):
        write_file(folder / name, {name: ("BF16", [100])})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weigh(capsys, str(folder), "--weights", "auto")["bytes_on_rank"] == 400


def test_ranks_share_what_is_divided(capsys: pytest.CaptureFixture[str]) -> None:
    composite = Path(__file__).parents[3] / "examples" / "composite-deepseek-v3.2.json"
    whole, eighth = (weigh(capsys, str(composite), "--weights", "auto", "--tp", tp)["bytes_on_rank"] for tp in ("1", "8"))
    assert whole / 8 < eighth < whole / 7


@pytest.mark.parametrize(
    ("asked", "size"), [("16e9", 16 * 10**9), ("15GiB", 15 * 2**30), ("1.5g", 1_500_000_000), ("0", 0), ("7 kB", 7000)], ids=str
)
def test_a_size_is_taken_as_it_is(asked: str, size: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weigh(capsys, str(folder), "--weights", asked)["bytes_on_rank"] == size


def test_weights_leave_the_rest_of_the_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def capacity(*more: str) -> dict[str, Any]:
        asked = ["explain", str(folder), "--device", "cpu", "--max-model-len", "100000000", "--json", *more]
        assert main(asked) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["devices"][0]["capacity"]
        return found

    beside, alone = capacity("--memory", "3", "--weights", "1e9"), capacity("--memory", "2")
    for name in ("one_request", "each_request", "pool_tokens"):
        assert beside[name] == alone[name]
    assert beside["taken_bytes"] == alone["taken_bytes"] + 10**9
    nothing = capacity("--memory", "1", "--weights", "2e9")
    assert (nothing["one_request"], nothing["pool_tokens"]) == (0, 0)
    assert main(["explain", str(folder), "--device", "cpu", "--memory", "1", "--weights", "2e9"]) == 0
    assert "none: the weights and the workspace take" in capsys.readouterr().out


BROKEN = {
    "short": b"\x00",
    "no_json": struct.pack("<Q", 4) + b"{{{{",
    "no_offsets": struct.pack("<Q", 29) + b'{"a":{"dtype":"F32","shape":""}'[:29],
    "too_long": struct.pack("<Q", 2**62) + b"{}",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_named_in_one_line(content: bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert main(["explain", str(folder), "--device", "cpu", "--weights", "auto"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "model.safetensors" in error
    assert "copy it again" in error


ROOM = {
    "weights_alone": (["--memory", "1", "--weights", "1000000000"], False),
    "more_than_weights": (["--memory", "1", "--weights", "10000000000"], False),
    "no_room_for_one_token": (["--memory", "0.000001"], False),
    "enough": (["--memory", "1", "--weights", "1000000"], True),
    "known_of_neither": (["--memory", "1"], True),
}


@pytest.mark.parametrize("device", ["cpu", "cuda:sm_90", "rocm:gfx942"])
@pytest.mark.parametrize(("asked", "fits"), ROOM.values(), ids=ROOM)
def test_the_verdict_names_where_a_served_model_does_not_fit(
    asked: list[str], fits: bool, device: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["explain", str(folder), "--device", device, "--max-num-batched-tokens", "128", "--max-num-seqs", "2", *asked]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["devices"][0]["fits"] is fits
    assert ("does not fit in the " in report["verdict"]) is not fits
    assert (f" of {device}" in report["verdict"]) is not fits
    assert main(command) == 0
    assert " ".join(capsys.readouterr().out.split()).endswith(report["verdict"])
