"""One model on several ranks: torchrun --nproc-per-node 2 examples/ranks.py MODEL_FOLDER "The capital of France is"

Each rank reads its part of the weights and keeps a cache of its own heads: one card a rank, or the CPU where there is none.
"""

import os
import sys

import torch
import torch.distributed as dist

from hal.models import load


def find_device() -> str:
    """This rank's card, by its number on the machine."""
    if not torch.accelerator.is_available():
        return "cpu"
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    return f"{torch.accelerator.current_accelerator()}:{os.environ['LOCAL_RANK']}"


def main(folder: str, prompts: list[str]) -> None:
    """Generate together, and print on the first rank; all ranks make the same calls and have the same tokens."""
    device = find_device()
    dist.init_process_group()
    try:
        model = load(folder, device=device, group=dist.group.WORLD)
        generations = model.generate(prompts, max_new_tokens=16)
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks read {model.report.bytes_per_rank[0]:,} bytes each")
            for prompt, generation in zip(prompts, generations, strict=True):
                print(prompt + generation.text)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
