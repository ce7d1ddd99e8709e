"""The fleet's files against the arch table, and the support table against selection."""

from __future__ import annotations

from pathlib import Path

import pytest

from hal.cli import main
from hal.common.backends.registry import backends, platforms
from hal.matrix import read_fleet, support_table
from hal.matrix.build import READERS
from hal.matrix.models import listed_models


def test_every_platform_has_a_file() -> None:
    assert {proof.platform for proof in read_fleet()} == set(platforms())


@pytest.mark.parametrize("proof", read_fleet(), ids=lambda proof: proof.platform)
def test_archs_to_prove_are_in_the_table(proof) -> None:
    assert set(proof.archs) <= {arch.name for arch in platforms()[proof.platform].archs()}


@pytest.mark.parametrize("proof", read_fleet(), ids=lambda proof: proof.platform)
def test_what_is_compiled_has_a_compiler_and_a_reader(proof) -> None:
    assert (proof.compiler is None) == (proof.proof == "run")
    assert proof.proof == "run" or proof.proof in READERS


BROKEN = {
    "key": ('proof = "run"\narchs = []\nnote = 1', r"matrix/new.toml has the keys \['archs', 'note', 'proof'\]"),
    "proof": ('proof = "faith"\narchs = []', "proof is 'faith'; expected one of run, cubin"),
    "no_compiler": ('proof = "cubin"\narchs = []', "the proof 'cubin' needs a compiler"),
    "compiler_to_run": ('proof = "run"\narchs = []\n[compiler]\nname = "a"', "the proof 'run' needs no compiler"),
    "spill": ('proof = "run"\narchs = ["one"]\n[[spill]]\narch = "two"\nkernel = "a:b"\nreason = "c"', "expected an arch of one"),
    "no_reason": ('proof = "run"\narchs = ["a"]\n[[spill]]\narch = "a"\nkernel = "b"\nreason = ""', "a kernel and a reason"),
    "arch_as": ('proof = "cubin"\narchs = []\n[compiler]\narch_as = "guess"', "arch_as 'guess'; expected name, backend"),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new.toml").write_text(text)
    monkeypatch.setattr("hal.matrix.fleet.files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=said):
        read_fleet()


def test_support_table_has_every_arch_once() -> None:
    targets = [row.target for row in support_table()]
    assert len(targets) == len(set(targets)) == sum(len(platform.archs()) for platform in platforms().values())


def test_a_kind_is_served_by_the_archs_own_platform() -> None:
    served = {(row.target.partition(":")[0], name) for row in support_table() for name in row.backends.values() if name}
    assert served
    assert all(backends()[name].platform == platform for platform, name in served)


def test_cpu_serves_every_kind_it_declares() -> None:
    (row,) = (row for row in support_table("float32") if row.target == "cpu")
    assert {kind for kind, name in row.backends.items() if name == "cpu"} >= {"GQA", "window", "sinks", "MLA", "sparse MLA"}


def test_command_shows_every_platform_and_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix"]) == 0
    text = capsys.readouterr().out
    for name in (*platforms(), *listed_models()):
        assert name in text
    assert "verified on a CPU" in text
    assert "a position bias (alibi), it takes layers without one" in text
