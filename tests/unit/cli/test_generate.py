"""hal generate on a tiny random model with a real tokenizer."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hal.cli import main

WORDS = ["<eos>", "user:", "hello", "world", "model:", *(f"w{i}" for i in range(59))]
POSITIONS = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(WORDS),
        max_position_embeddings=POSITIONS,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(path)
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<eos>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    tokenizer.chat_template = "user: {{ messages[0]['content'] }} model:"
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def greedy(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder).eval()


def expected(model: LlamaForCausalLM, prompt: str, count: int) -> list[str]:
    ids = torch.tensor([[WORDS.index(word) for word in prompt.split()]])
    out = model.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    return [WORDS[i] for i in out.tolist() if i != 0]


def test_chat_template_is_applied(folder: Path, greedy: LlamaForCausalLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), "hello world", "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out.split() == expected(greedy, "user: hello world model:", 8)


def test_raw_leaves_the_template_out(folder: Path, greedy: LlamaForCausalLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), "hello world", "--raw", "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out.split() == expected(greedy, "hello world", 8)


def draw(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main(["generate", str(folder), "hello world", "--max-new-tokens", "12", *more]) == 0
    return capsys.readouterr().out


def test_a_seed_draws_the_same_text_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, again, other = (draw(folder, capsys, "--temperature", "5", "--seed", seed) for seed in ("1", "1", "2"))
    assert one == again != other


def test_a_narrow_top_p_leaves_the_likeliest_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    greedy = draw(folder, capsys)
    assert draw(folder, capsys, "--temperature", "5", "--top-p", "0.000001", "--seed", "3") == greedy
    assert draw(folder, capsys, "--temperature", "5", "--top-p", "1", "--seed", "3") != greedy


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"], ids=["bare", "newline", "crlf"])
def test_a_dash_reads_the_prompt_from_stdin(
    ending: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"hello world{ending}"))
    assert main(["generate", str(folder), "-", "--max-new-tokens", "8"]) == 0
    piped = capsys.readouterr().out
    assert main(["generate", str(folder), "hello world", "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out == piped


def test_stdin_that_is_no_text_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x80"), encoding="utf-8"))
    assert main(["generate", str(folder), "-"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "stdin is no text" in captured.err


def test_stats_go_to_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), "hello", "--stats", "--max-new-tokens", "4", "--dtype", "float32"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("cpu in float32: loaded in ")
    assert "3 prompt tokens" in captured.err
    assert "loaded" not in captured.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["hello " * (POSITIONS + 1)], f"the model has {POSITIONS} positions"),
        (["hello", "--device", "cuda:sm_90"], "is not in this machine"),
        (["hello", "--backend", "cuda:triton"], "cuda:triton (chosen by argument) cannot serve"),
    ],
    ids=["prompt-too-long", "device-not-here", "backend-of-another-platform"],
)
def test_refusal_is_one_line(arguments: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(folder), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert text in captured.err


def test_missing_weights_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert main(["generate", str(tmp_path), "hello"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "safetensors" in captured.err
