"""torchrun starts the ranks of the example, and they say what one rank says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import hal
from hal.models import load, plan_checkpoint

from .helpers import tiny

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LIMITS = hal.Limits(64, 2, 48, block_size=16)
PROMPTS = ["w5 w6 w7", "w9"]


def write_folder(folder: Path) -> Path:
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(128)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    tiny.build(tiny.llama()).save_pretrained(folder)
    return folder


def start(folder: Path, *prompts: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [*COMMAND, str(ROOT / "examples" / "ranks.py"), str(folder), *prompts]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=300, check=False)


def test_two_ranks_of_torchrun_generate_what_one_rank_does(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    found = start(folder, *PROMPTS)
    assert found.returncode == 0, found.stderr[-3000:]
    told, *lines = found.stdout.splitlines()
    texts = [generation.text for generation in load(folder, device="cpu", limits=LIMITS, progress=False).generate(PROMPTS, 16)]
    assert lines == [prompt + text for prompt, text in zip(PROMPTS, texts, strict=True)]
    shares = plan_checkpoint(folder, parallel=hal.Parallel(tp=2)).bytes_per_rank
    assert told == f"2 ranks read {shares[0]:,} bytes each"
