"""Which tile a kernel works in: candidates as data in each platform's launch.toml, chosen by an arch's limits alone."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from hal.common.contract.arch import Arch, read_archs
from hal.common.contract.layouts import Layout
from hal.common.contract.reason import Reason
from hal.config.dtypes import item_size

# tl.dot takes no operand side below 16.
MIN_SIDE = 16
# Bytes become elements in registers, beside the sums: at 512 columns both spill on sm_90.
_MOST_BYTES = 256
CALLS = ("attend", "latent", "sparse", "scores")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One row of launch.toml: block_m query rows by block_n keys, at most block_c columns of a latent at a time.

    copies: how many copies of a tile's keys the compiled kernel keeps in shared memory, as measured. archs and dtypes: those it
    is for, none meaning all. up_to_rows: only for calls with no more query rows than that per KV head. up_to_width: likewise
    for keys. chooses: only for calls whose keys are chosen one by one.
    """

    block_m: int
    block_n: int
    block_c: int = 1024
    num_warps: int
    num_stages: int
    copies: int
    archs: tuple[str, ...] = ()
    up_to_rows: int | None = None
    up_to_width: int | None = None
    dtypes: tuple[str, ...] = ()
    chooses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An arch's limits and its platform's candidates.

    accumulators: fp32 sums that a thread can hold beside its operands. programs: how many programs fill the device, which
    decides into how many parts a short call is split. spare_shared_bytes: what the compiler adds to a kernel's own.
    """

    arch: Arch
    accumulators: int
    programs: int
    spare_shared_bytes: int
    candidates: Mapping[str, tuple[Candidate, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """What a kernel's tile has to hold per key: main and rest elements, and a value of its own unless the key's main is it.

    splits: main may be worked on in pieces, one per program. sums_values: else it sums scores alone. share: the most
    elements of main that a piece may have; 0 for any number. chooses: a bit beside them says which query may see the key.
    """

    main: int
    rest: int = 0
    value: int = 0
    splits: bool = False
    sums_values: bool = True
    share: int = 0
    chooses: bool = False

    @property
    def block_main(self) -> int:
        """main as a power of two."""
        return block_side(self.main)

    @property
    def block_rest(self) -> int:
        """rest as a power of two."""
        return block_side(self.rest)

    @property
    def block_value(self) -> int:
        """The value's own width as a power of two, 0 where it has none."""
        return block_side(self.value) if self.value else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A candidate cut to a call: sides are powers of two; main is worked on in num_c pieces of block_c."""

    block_m: int
    block_n: int
    block_c: int
    num_c: int
    num_warps: int
    num_stages: int
    copies: int


@cache
def block_side(size: int) -> int:
    """The least power of two that a product's side may have and that covers a size."""
    return max(MIN_SIDE, 1 << (max(size, 1) - 1).bit_length())


@cache
def split_width(width: int) -> tuple[int, int]:
    """A key's width as (main, rest), where two powers of two cover it more tightly than one: 192 is 128 and 64."""
    floor = 1 << (width.bit_length() - 1)
    rest = width - floor
    if floor >= MIN_SIDE and rest and floor + block_side(rest) < block_side(width):
        return floor, rest
    return width, 0


def latent_widths(layout: Layout) -> Widths:
    """What a tile has to hold of a latent row."""
    lora, *rest = layout.widths
    return Widths(main=lora, rest=sum(rest), splits=True, share=most_at_once(layout))


def most_at_once(layout: Layout) -> int:
    """The most lanes of a latent row in a piece: those that share a scale, or as many bytes as registers take; 0 for any."""
    if layout.blocks is not None:
        return layout.blocks.block
    return _MOST_BYTES if layout.is_quantised else 0


def choose_tile(machine: Machine, call: str, widths: Widths, dtype: str, rows: int) -> Tile | Reason:
    """The first candidate that the arch can hold, or why it can hold none; a pure function of its arguments.

    rows: query rows per KV head. The reason is "memory" where shared memory is short and "head_dim" where registers are.
    """
    refusal: Reason | None = None
    for candidate in machine.candidates[call]:
        if not _concerns(candidate, machine.arch.name, dtype, rows, widths):
            continue
        tile = _cut(candidate, widths, rows)
        refusal = _refuse(machine, tile, widths, dtype)
        if refusal is None:
            return tile
    if refusal is None:
        refusal = Reason("arch", machine.arch.name, f"an arch with a tile for {call} in {dtype}")
    return refusal


def shared_bytes(tile: Tile, widths: Widths, dtype: str) -> int:
    """An upper bound on the shared memory of a kernel in a tile: queries and weights once, keys and values by their copies.

    A kernel without stages holds one piece of a key or value at a time, a staged one all that a step reads.
    """
    rest = widths.block_rest if widths.rest else 0
    if tile.num_stages == 1:
        queries = tile.block_c + rest
        keys = max(tile.block_c, rest, widths.block_value)
    else:
        queries = tile.block_c * tile.num_c + rest
        keys = queries + (tile.block_c if tile.num_c > 1 else widths.block_value)
    elements = tile.block_m * (queries + tile.block_n) + tile.copies * tile.block_n * keys
    return item_size(dtype) * elements


def _concerns(candidate: Candidate, arch: str, dtype: str, rows: int, widths: Widths) -> bool:
    if candidate.chooses and not widths.chooses:
        return False
    if candidate.archs and arch not in candidate.archs:
        return False
    if candidate.dtypes and dtype not in candidate.dtypes:
        return False
    if candidate.up_to_width is not None and widths.main > candidate.up_to_width:
        return False
    return candidate.up_to_rows is None or rows <= candidate.up_to_rows


def _cut(candidate: Candidate, widths: Widths, rows: int) -> Tile:
    block_c = min(candidate.block_c, widths.block_main, widths.share or widths.block_main) if widths.splits else widths.block_main
    return Tile(
        block_m=min(candidate.block_m, block_side(rows)),
        block_n=candidate.block_n,
        block_c=block_c,
        num_c=widths.block_main // block_c,
        num_warps=candidate.num_warps,
        num_stages=candidate.num_stages,
        copies=candidate.copies,
    )


def _refuse(machine: Machine, tile: Tile, widths: Widths, dtype: str) -> Reason | None:
    limit = machine.arch.shared_memory_bytes
    needed = shared_bytes(tile, widths, dtype) + machine.spare_shared_bytes
    if limit is not None and needed > limit:
        return Reason("memory", f"{limit} bytes", f"{needed} bytes of shared memory for its smallest tile")
    columns = (widths.block_value or tile.block_c) if widths.sums_values else tile.block_n
    threads = tile.num_warps * machine.arch.warp_size
    if tile.block_m * columns > machine.accumulators * threads:
        most = machine.accumulators * threads // tile.block_m
        return Reason("head_dim", widths.value or widths.main, f"at most {most}, what the registers of {machine.arch.name} hold")
    return None


@cache
def read_machine(package: str, arch: str) -> Machine:
    """An arch of a platform package with the platform's launch.toml; ValueError for a column or a call that means nothing."""
    row = next(row for row in read_archs(package) if row.name == arch)
    data = tomllib.loads(files(package).joinpath("launch.toml").read_text(encoding="utf-8"))
    limits = data.pop("limits")
    limits = {**limits["default"], **limits.get(arch, {})}
    unknown = data.keys() ^ set(CALLS)
    if unknown:
        raise ValueError(f"{package}/launch.toml: tables {sorted(unknown)} are unknown or missing; expected {', '.join(CALLS)}")
    candidates = {call: tuple(_read_candidate(package, call, entry) for entry in entries) for call, entries in data.items()}
    return Machine(arch=row, candidates=MappingProxyType(candidates), **limits)


def _read_candidate(package: str, call: str, entry: Mapping[str, object]) -> Candidate:
    unknown = entry.keys() - {field.name for field in fields(Candidate)}
    if unknown:
        raise ValueError(f"{package}/launch.toml: {call} has unknown columns {sorted(unknown)}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return Candidate(**values)  # type: ignore[arg-type]
