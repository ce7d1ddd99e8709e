"""AMD GPUs as the kernel driver's files show them, then as the management libraries do: no compute context is created."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hal.common.contract.arch import match_parts, read_archs
from hal.common.vendor.probing import (
    Findings,
    Found,
    Row,
    check_count,
    number_rows,
    parse_visible,
    place_rows,
    read_running_torch,
    tell_unopened,
)

# Names of the files and their fields: the Linux kernel's documentation of the amdkfd driver.
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
FIELDS = frozenset({"simd_count", "gfx_target_version", "unique_id", "size_in_bytes"})
FILTERS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
ALIASES = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def probe() -> Found:
    """One row per visible GPU, and sentences on what was looked for."""
    findings = Findings()
    running = findings.attempt("torch.cuda", _read_running_torch)
    if running is not None:
        findings.add("torch runs on these devices already")
        return _finish(running, findings)
    sources: tuple[tuple[str, Callable[[Findings], list[Row]]], ...] = (
        ("the kernel driver's topology", _read_topology),
        ("amdsmi", _read_amdsmi),
        ("pyrsmi", _read_pyrsmi),
    )
    rows: list[Row] = []
    for what, read in sources:
        rows = findings.attempt(what, partial(read, findings)) or []
        if rows:
            break
    if not rows:
        tell_unopened("cuda", "hip", findings)
    return _finish([rows[index] for index in _visible(rows, findings)], findings)


def _finish(visible: list[Row], findings: Findings) -> Found:
    placed = place_rows(_known(visible, findings), "cuda", "hip", findings)
    return [{key: value for key, value in row.items() if key != "uuid"} for row in placed], findings.sentences


def _read_running_torch() -> list[Row] | None:
    """A ROCm torch calls its devices cuda, and their capabilities look like NVIDIA's; only the arch's name tells."""
    properties = read_running_torch("cuda", "hip")
    if properties is None:
        return None
    return [
        {"arch": str(one.gcnArchName).partition(":")[0], "name": str(one.name), "memory_bytes": int(one.total_memory)}
        for one in properties
    ]


def _visible(rows: list[Row], findings: Findings) -> list[int]:
    """The second variable counts what the first one left."""
    chosen = list(range(len(rows)))
    given = [name for name in FILTERS if name in os.environ]
    for name in given if rows else ():
        kept, remark = parse_visible(os.environ[name], [rows[index]["uuid"] for index in chosen])
        chosen = [chosen[index] for index in kept]
        if remark:
            findings.add(f"{name}: {remark}")
    if len(given) == len(FILTERS):
        findings.add(f"{' and '.join(given)} are both set: devices are filtered twice, the second counting what the first left")
    for name in ALIASES:
        if name in os.environ:
            findings.add(f"{name} is set; some releases of ROCm read it as HIP_VISIBLE_DEVICES, which is not followed here")
    return chosen


def _known(rows: list[Row], findings: Findings) -> list[Row]:
    archs = {row.name: row for row in read_archs("hal.rocm")}
    for row in rows:
        if row["arch"] and row["arch"] not in archs:
            findings.add(f"{row['name'] or 'a device'} is of arch {row['arch']}, which is not in the table: {', '.join(archs)}")
    known = number_rows([row if row["arch"] in archs else None for row in rows])
    return [{**row, "name": row["name"] or archs[row["arch"]].sample_part, "fp8": archs[row["arch"]].fp8} for row in known]


def _read_topology(findings: Findings) -> list[Row]:
    found = TOPOLOGY.iterdir() if TOPOLOGY.is_dir() else ()
    nodes = sorted((node for node in found if node.name.isdecimal()), key=lambda node: int(node.name))
    if not nodes:
        findings.add(f"{TOPOLOGY} has no nodes: the kernel driver is not loaded")
    rows = []
    for node in nodes:
        fields = findings.attempt(f"node {node.name}", partial(_read_fields, node / "properties")) or {}
        if fields.get("simd_count", 0) and fields.get("gfx_target_version", 0):
            rows.append(_describe_node(node, fields, findings))
    return rows


def _describe_node(node: Path, fields: dict[str, int], findings: Findings) -> Row:
    banks = node / "mem_banks"
    memory = findings.attempt(
        f"memory of node {node.name}",
        lambda: sum(_read_fields(bank / "properties").get("size_in_bytes", 0) for bank in banks.iterdir()),
    )
    return {
        "arch": name_target(fields["gfx_target_version"]),
        "name": "",
        "memory_bytes": memory or None,
        "uuid": f"GPU-{fields.get('unique_id', 0):016x}",
    }


def name_target(version: int) -> str:
    """The arch of a packed version: 90402 is gfx942, 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _read_fields(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[0] in FIELDS}


def _read_amdsmi(findings: Findings) -> list[Row]:
    import amdsmi

    amdsmi.amdsmi_init()
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        return [row for handle in handles if (row := _describe_handle(amdsmi, handle, findings)) is not None]
    finally:
        findings.attempt("amdsmi shutdown", amdsmi.amdsmi_shut_down)


def _describe_handle(amdsmi: Any, handle: Any, findings: Findings) -> Row | None:
    asic = findings.attempt("amdsmi", lambda: amdsmi.amdsmi_get_gpu_asic_info(handle))
    if asic is None:
        return None
    arch = str(asic.get("target_graphics_version", "")).partition(":")[0]
    vram = findings.attempt("amdsmi", lambda: amdsmi.amdsmi_get_gpu_vram_info(handle)) or {}
    mebibytes = vram.get("vram_size")
    serial = str(asic.get("asic_serial", "")).removeprefix("0x")
    return {
        "arch": arch,
        "name": str(asic.get("market_name", "")),
        "memory_bytes": mebibytes * 2**20 if isinstance(mebibytes, int) and mebibytes > 0 else None,
        "uuid": f"GPU-{serial.lower()}",
    }


def _read_pyrsmi(findings: Findings) -> list[Row]:
    """This library names devices and not their archs, which the parts in archs.toml tell; an unknown one has the arch ""."""
    from pyrsmi import rocml

    with _unlogged():
        # Getters answer with 0 and "" before this, so that a failure would look like a machine without devices.
        rocml.smi_initialize()
        try:
            count = check_count("pyrsmi", rocml.smi_get_device_count())
            return [_describe_number(rocml, index, findings) for index in range(count)]
        finally:
            findings.attempt("pyrsmi shutdown", rocml.smi_shutdown)


def _describe_number(rocml: Any, index: int, findings: Findings) -> Row:
    name = str(findings.attempt(f"pyrsmi: the name of device {index}", partial(rocml.smi_get_device_name, index)) or "")
    total = findings.attempt(f"pyrsmi: the memory of device {index}", partial(rocml.smi_get_device_memory_total, index))
    archs = match_parts(name, read_archs("hal.rocm"))
    if len(archs) != 1:
        findings.add(f"pyrsmi names a device {name!r}, which is no part in the arch table: nothing can be planned for it")
    return {
        "arch": archs[0].name if len(archs) == 1 else "",
        "name": name,
        # What it cannot read is -1.
        "memory_bytes": total if isinstance(total, int) and total > 0 else None,
        # Its identifiers are not those that the visibility variables take.
        "uuid": "",
    }


@contextmanager
def _unlogged() -> Iterator[None]:
    """A block in which errors logged on the root logger are not printed, and give it no handler that prints from then on."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
