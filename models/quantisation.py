"""How a checkpoint's weights are stored where they are not plain numbers, by the name of the format."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint_header import PACKED_BITS, StoredTensor

FLOAT8 = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
WHOLE = frozenset({"I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"})

SIDE_FILES = {
    "quantize_config.json": "GPTQ",
    "quant_config.json": "AWQ",
    "hf_quant_config.json": "ModelOpt",
}
"""Files that a quantising tool leaves beside the weights (AutoGPTQ, AutoAWQ, NVIDIA's ModelOpt)."""

METHODS = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "fp8": "fp8 with scales (finegrained_fp8)",
    "mxfp4": "MXFP4",
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
    "modelopt": "ModelOpt",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "vptq": "VPTQ",
    "spqr": "SpQR",
    "eetq": "EETQ",
    "higgs": "HIGGS",
    "bitnet": "BitNet",
    "gguf": "GGUF",
    "auto-round": "AutoRound",
}
"""How a quant_method of transformers is spelled to people, where that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormat:
    """A quantised storage format: its name, and what in the folder says so."""

    name: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.name} ({self.evidence})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Tensors that stand for one weight in a format: the endings of their names, and the element types that tell them apart.

    A name is split at its last dot or colon, or the one before; every ending in `leaves` must occur under one front.
    """

    format: str
    leaves: tuple[str, ...]
    dtypes: Mapping[str, frozenset[str]]

    def fits(self, found: Mapping[str, StoredTensor]) -> bool:
        """Whether the tensors under one front, by ending, are this format's."""
        if not all(leaf in found for leaf in self.leaves):
            return False
        return all(found[leaf].dtype in dtypes for leaf, dtypes in self.dtypes.items())


def _signature(name: str, *leaves: str, **dtypes: frozenset[str]) -> Signature:
    return Signature(format=name, leaves=leaves, dtypes=dtypes)


SIGNATURES = (
    _signature("GPTQ", "qweight", "g_idx", qweight=WHOLE),
    _signature("AWQ", "qweight", "qzeros", "scales", qweight=WHOLE),
    _signature("HIGGS", "qweight", "tables"),
    _signature("NVFP4 (compressed-tensors)", "weight_packed", "weight_scale", "weight_global_scale"),
    _signature("compressed-tensors", "weight_packed"),
    _signature("NVFP4 (ModelOpt)", "weight", "weight_scale", "weight_scale_2", weight=WHOLE),
    _signature("bitsandbytes", "weight", "SCB", weight=WHOLE),
    _signature("MXFP4", "blocks", "scales", blocks=WHOLE),
    _signature("block-wise fp8", "weight", "weight_scale_inv", weight=FLOAT8),
    _signature("MXFP8", "weight", "weight_scale", weight=FLOAT8, weight_scale=frozenset({"U8", "F8_E8M0"})),
    _signature("fp8 with a scale", "weight", "weight_scale", weight=FLOAT8),
    _signature("fp8 with a scale", "weight", "scale", weight=FLOAT8),
    _signature("BitNet", "weight", "weight_scale", weight=frozenset({"U8"})),
    _signature("int8 with a scale", "weight", "weight_scale", weight=WHOLE),
    _signature("EETQ", "weight", "weight_scales", weight=WHOLE),
    _signature("HQQ", "W_q"),
    _signature("torchao", "qdata", "scale"),
    _signature("torchao", "weight_qdata"),
    _signature("quanto", "_data", "_scale"),
    _signature("AQLM", "codes", "codebooks"),
    _signature("VPTQ", "centroids.weight", "indices"),
    _signature("SpQR", "dense_weights", "row_offsets"),
)
"""From the tensors that each tool writes; the more telling first."""


def find_quantisation(config: Any, folder: Path, tensors: Mapping[str, StoredTensor]) -> StoredFormat | None:
    """The format of weights that are not plain numbers, from the config, the tool's own file or the tensors; None if plain."""
    return _by_config(config) or _by_side_file(folder) or _by_tensors(tensors)


def _by_config(config: Any) -> StoredFormat | None:
    for where, part in (("", config), ("text_config.", config.get_text_config(decoder=True))):
        for name in ("quantization_config", "compression_config"):
            stated = getattr(part, name, None)
            if stated is None:
                continue
            content: Mapping[str, Any] = stated if isinstance(stated, Mapping) else stated.to_dict()
            return StoredFormat(name=_name_method(content), evidence=f"config.json's {where}{name}")
    return None


def _name_method(content: Mapping[str, Any]) -> str:
    method = str(content.get("quant_method") or "").lower()
    if not method:
        method = "bitsandbytes" if content.get("load_in_4bit") or content.get("load_in_8bit") else ""
    # compressed-tensors and ModelOpt are containers; what lies in them is a format of its own.
    inner = str(content.get("format") or content.get("quant_algo") or content.get("fmt") or "")
    name = METHODS.get(method, method or "an unnamed quantisation")
    return f"{name}, {inner}" if inner and method in ("compressed-tensors", "modelopt", "") else name


def _by_side_file(folder: Path) -> StoredFormat | None:
    for file, name in SIDE_FILES.items():
        if not (folder / file).is_file():
            continue
        try:
            content = json.loads((folder / file).read_text(encoding="utf-8"))
            inner = content.get("quant_method") or content.get("quantization", {}).get("quant_algo") or ""
        except (OSError, ValueError, AttributeError, RecursionError):
            inner = ""
        return StoredFormat(name=METHODS.get(str(inner).lower(), str(inner)) or name, evidence=file)
    return None


def _by_tensors(tensors: Mapping[str, StoredTensor]) -> StoredFormat | None:
    marked = next((name for name in tensors if "quant_state.bitsandbytes" in name or name.endswith(".quant_map")), None)
    if marked is not None:
        return StoredFormat(name="bitsandbytes", evidence=marked)
    likely = _likely_signatures(tensors)
    groups: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for name, tensor in tensors.items() if likely else ():
        for front, leaf in _splits(name):
            groups[front][leaf] = tensor
    for signature in likely:
        for group in groups.values():
            if signature.fits(group):
                evidence = " and ".join(group[leaf].name for leaf in signature.leaves[:2])
                return StoredFormat(name=signature.format, evidence=evidence)
    narrow = next((tensor for tensor in tensors.values() if tensor.dtype in PACKED_BITS or tensor.dtype == "F8_E8M0"), None)
    return StoredFormat(name="packed weights", evidence=f"{narrow.name} is {narrow.dtype}") if narrow is not None else None


def _likely_signatures(names: Iterable[str]) -> list[Signature]:
    """Those all of whose leaves end some name's last component; names have few of these, and most files no telling one."""
    last = {name.rpartition(".")[2] for name in names}
    return [
        signature
        for signature in SIGNATURES
        if all(any(each.endswith(leaf.rpartition(".")[2]) for each in last) for leaf in signature.leaves)
    ]


def _splits(name: str) -> Iterator[tuple[str, str]]:
    for mark in (".", ":"):
        front, found, leaf = name.rpartition(mark)
        if found:
            yield front, leaf
    outer, found, _ = name.rpartition(".")[0].rpartition(".")
    if found:
        yield outer, name.removeprefix(f"{outer}.")
    # gpt-oss keeps a fused parameter's parts under names with an underscore.
    front, _, leaf = name.rpartition("_")
    if leaf in ("blocks", "scales"):
        yield front, leaf
