"""The arch table against the facts it was filled from."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from hal.common.backends.registry import platforms
from hal.common.contract.arch import COLUMNS, Arch, read_archs

FACTS = Path(__file__).parents[4] / "shared" / "reference" / "vendors.md"
needs_facts = pytest.mark.skipif(not FACTS.is_file(), reason="the facts in ../shared are not beside this checkout")
XPU_PARTS = {"PVC": "pvc", "BMG": "bmg", "LNL": "lnl", "A770": "dg2"}


def table(heading: str) -> list[list[str]]:
    """Cells of the rows below a heading of the facts, the header and its rule left out."""
    section = FACTS.read_text(encoding="utf-8").partition(f"### {heading}")[2].partition("\n###")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def archs(platform: str) -> dict[str, Arch]:
    return {arch.name: arch for arch in platforms()[platform].archs()}


def names_of(cell: str) -> list[str]:
    """The archs that a row speaks of: "sm_120/121" is two."""
    first, *others = cell.split("/")
    return [first, *(f"{first.partition('_')[0]}_{other}" for other in others)]


def first_number(cell: str) -> int:
    return int(re.match(r"\d+", cell).group())


@needs_facts
def test_archs_of_cuda_are_those_of_the_facts() -> None:
    known, seen = archs("cuda"), set()
    for cells in table("3.1 NVIDIA"):
        for name in names_of(cells[0]):
            arch = known[name]
            seen.add(name)
            assert arch.shared_memory_bytes == first_number(cells[1]), name
            assert arch.registers_per_thread == 255
            assert arch.warp_size == first_number(cells[4])
            assert (arch.fp8 is None) == cells[5].startswith("no"), name
            assert arch.matrix == cells[6].split()[0], name
    assert seen == set(known)


@needs_facts
def test_archs_of_rocm_are_those_of_the_facts() -> None:
    known, seen = archs("rocm"), set()
    for cells in table("3.2 AMD"):
        arch = known[cells[0]]
        seen.add(cells[0])
        assert arch.shared_memory_bytes == first_number(cells[1])
        assert arch.warp_size == int(cells[2])
        assert arch.registers_per_thread == (None if cells[3] == "-" else first_number(cells[3]))
        expected = None if cells[4] == "none" else "e4m3fnuz" if "e4m3fnuz" in cells[4] else "e4m3fn"
        assert arch.fp8 == expected, cells[0]
        if cells[5] != "-":
            assert arch.matrix == cells[5].lower()
    assert seen == set(known)


@needs_facts
def test_archs_of_xpu_are_those_of_the_facts() -> None:
    known, seen = archs("xpu"), set()
    for cells in table("3.3 Intel"):
        names = {arch for part, arch in XPU_PARTS.items() if part in cells[0]}
        for name in names:
            seen.add(name)
            assert known[name].shared_memory_bytes == first_number(cells[1]), name
            assert str(known[name].warp_size) in re.findall(r"\d+", cells[3]), name
            assert (known[name].fp8 is None) == (cells[4] == "no"), name
    assert seen == set(known)


@needs_facts
@pytest.mark.parametrize(("platform", "heading", "column"), [("cuda", "3.1 NVIDIA", 7), ("rocm", "3.2 AMD", 6)])
def test_throughput_is_the_published_figure_or_none(platform: str, heading: str, column: int) -> None:
    """Figures marked as approximate or derived are not facts to compute a roofline from."""
    known = archs(platform)
    for cells in table(heading):
        figures = {int(number) for number in re.findall(r"\b\d{3,4}\b", cells[column])}
        for name in names_of(cells[0]) if platform == "cuda" else [cells[0]]:
            stated = {known[name].bf16_tflops, known[name].bandwidth_gb_s} - {None}
            assert stated <= figures, name


def test_only_gfx94x_has_the_other_encoding() -> None:
    fnuz = {arch.name for name in platforms() for arch in archs(name).values() if arch.fp8 == "e4m3fnuz"}
    assert fnuz == {"gfx942"}


@pytest.mark.parametrize("platform", ["cuda", "rocm", "xpu", "cpu"])
def test_every_row_says_what_it_is(platform: str) -> None:
    for arch in archs(platform).values():
        assert arch.warp_size >= 1
        assert arch.sample_part or arch.note or arch.name == "gfx1250"
        assert arch.fp8 in (None, "e4m3fn", "e4m3fnuz")


def test_an_unknown_column_is_refused_with_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "odd_archs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "archs.toml").write_text("[arch.x1]\nwarp_size = 32\ncolour = 'red'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"x1 has unknown columns \['colour'\].*warp_size"):
        read_archs("odd_archs")


BROKEN = {
    "no_table": ("warp_size = 1", r"has the tables \['warp_size'\]; expected one \[arch.NAME\]"),
    "row_that_is_none": ("arch.a = 3", "expected one"),
    "unknown_column": ("[arch.a]\nwarp_size = 1\ncolour = 1", r"arch a has unknown columns \['colour'\]; known: \['aliases'"),
    "no_warp_size": ("[arch.a]\nfp8 = 'e4m3fn'", "arch a has no warp_size"),
    "text_for_a_number": ("[arch.a]\nwarp_size = '32'", "warp_size '32'; expected a whole number"),
    "switch_for_a_number": ("[arch.a]\nwarp_size = true", "warp_size True; expected a whole number"),
    "nothing_for_a_size": ("[arch.a]\nwarp_size = 1\nshared_memory_bytes = 0", "shared_memory_bytes 0; expected more than 0"),
    "text_for_a_rate": ("[arch.a]\nwarp_size = 1\nbandwidth_gb_s = 'fast'", "bandwidth_gb_s 'fast'; expected a number"),
    "one_part": ("[arch.a]\nwarp_size = 1\nparts = 'A1'", "parts 'A1'; expected a list of texts"),
    "part_of_no_text": ("[arch.a]\nwarp_size = 1\nparts = [1]", r"parts \[1\]; expected a list of texts"),
    "unknown_encoding": ("[arch.a]\nwarp_size = 1\nfp8 = 'e5m2'", "fp8 'e5m2'; expected one of e4m3fn, e4m3fnuz"),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_a_table_that_is_wrong_names_the_arch_and_the_column(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "archs.toml").write_text(text)
    monkeypatch.setattr("hal.common.contract.arch.files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=f"pkg/archs.toml.*{said}"):
        read_archs("pkg")


def test_every_column_is_documented() -> None:
    assert {field.name for field in fields(Arch)} - {"name"} == set(COLUMNS)
    assert [name for name in COLUMNS if not re.search(rf"\b{name}\b", Arch.__doc__)] == []
