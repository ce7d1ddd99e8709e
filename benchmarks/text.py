"""SmolLM2-135M on hal against transformers' sdpa: one prompt, and eight ragged ones together.

    python benchmarks/text.py [FOLDER]      FOLDER as examples/fetch_smollm2.py made it (.cache/smollm2)

Both sides run fp32 in this process, round by round in turn, so that a drift of the machine's speed meets both.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch
from machine import measure_rates, time_once
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

import hal
from hal.models import Model, load

LENGTHS = (16, 512, 48, 300, 96, 420, 160, 230)
NEW_TOKENS = 64
ROUNDS = 3


def make_prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    """Random token ids, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(100, 40000, (length,), generator=generator).tolist() for length in lengths]


def run_transformers(model: PreTrainedModel, prompts: list[list[int]]) -> None:
    """Greedy text for all prompts, padded on the left to the longest, as transformers wants it."""
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    model.generate(ids, attention_mask=mask, generation_config=config)


def run_hal(model: Model, prompts: list[list[int]]) -> None:
    """Greedy text for all prompts in one paged run."""
    model.generate(prompts, NEW_TOKENS, eos_token_ids=())


def compare(name: str, theirs: PreTrainedModel, mine: Model, prompts: list[list[int]]) -> None:
    """Print both sides' tokens per second and the ratio of their medians."""
    run_transformers(theirs, prompts)
    run_hal(mine, prompts)
    seconds = [
        (time_once(lambda: run_transformers(theirs, prompts)), time_once(lambda: run_hal(mine, prompts))) for _ in range(ROUNDS)
    ]
    reference, own = (statistics.median(column) for column in zip(*seconds, strict=True))
    tokens = NEW_TOKENS * len(prompts)
    print(f"{name}: transformers {tokens / reference:.1f} tokens/s, hal {tokens / own:.1f}, ratio {reference / own:.2f}")


def main() -> None:
    """Print both comparisons."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / ".cache" / "smollm2"
    print(measure_rates())
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    mine = load(folder, limits=hal.Limits(2048, 8, 2048), progress=False)
    compare("1 prompt of 128 tokens, 64 new", theirs, mine, make_prompts((128,)))
    compare("8 prompts of 16 to 512 tokens, 64 new", theirs, mine, make_prompts(LENGTHS))


if __name__ == "__main__":
    main()
