"""hal doctor: always a report, whatever is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hal.cli import doctor, main, selfcheck, usability
from hal.common.reason import Reason
from hal.common.registry import backends

PASSED = {"passed": True, "dtype": "float32", "error": 0.0, "seconds": 0.0, "failure": None}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks without the processes they run in."""
    monkeypatch.setattr(doctor, "check_in_subprocess", lambda *_: PASSED)


def report(capsys: pytest.CaptureFixture[str], expected_code: int = 0) -> dict[str, Any]:
    assert main(["doctor", "--json"]) == expected_code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_cpu_computes_what_plain_numbers_do() -> None:
    check = selfcheck.check_in_subprocess("cpu", "cpu")
    assert check["passed"], check
    assert 0 < check["error"] < 1e-4


def test_every_backend_is_listed_with_a_verdict(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in report(capsys)["backends"]}
    assert rows.keys() == backends().keys()
    assert rows["cpu"]["usable"]
    assert all(row["usable"] or row["reasons"] for row in rows.values())


@pytest.mark.parametrize("section", ["hal", "torch", "environment", "platforms", "plugins", "libraries", "backends"])
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_a_section_that_raises_leaves_the_others(
    section: str, as_json: bool, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode() -> None:
        raise RuntimeError("the driver is on fire")

    monkeypatch.setattr(doctor, f"examine_{section}", explode)
    main(["doctor", "--json"] if as_json else ["doctor"])
    text = capsys.readouterr().out
    assert "RuntimeError: the driver is on fire" in text
    assert "vendor libraries" in text or as_json or section == "libraries"


def test_a_crashing_check_is_a_finding() -> None:
    _, failure = selfcheck._run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert failure == "killed by signal 11"


def test_a_hanging_check_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "TIMEOUT_SECONDS", 0.2)
    _, failure = selfcheck._run("import time; time.sleep(30)")
    assert failure == "no answer within 0.2 s"


def test_a_library_that_does_not_load_is_told_by_its_error() -> None:
    assert selfcheck.load_in_subprocess(["json"]) is None
    assert selfcheck.load_in_subprocess(["no_such_library"]) == "ModuleNotFoundError: No module named 'no_such_library'"


@pytest.mark.parametrize("code", ["import os; os._exit(0)", "raise SystemExit(0)"])
def test_a_library_that_leaves_while_it_is_imported_did_not_load(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert selfcheck.load_in_subprocess(["leaves"]) == "the process ended before the import did"


def write_distribution(folder: Path, name: str, metadata: bytes, *files: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(metadata)
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (folder / file).write_text("")


@pytest.mark.parametrize(
    ("metadata", "version", "failure"),
    [
        (b"\xff\xfe", "unknown", "UnicodeDecodeError"),
        (b"Metadata-Version: 2.1\nName: flash_attn\n", "unknown", None),
        (b"Metadata-Version: 2.1\nName: flash_attn\nVersion: 2.8\n", "2.8", None),
    ],
    ids=["no text", "no version", "whole"],
)
def test_metadata_that_cannot_be_read_costs_its_library_alone(
    metadata: bytes, version: str, failure: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_distribution(tmp_path, "flash_attn", metadata, "no-module.py", "class.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = {row["name"]: row for row in doctor.examine_libraries()}
    assert len(rows) > 1
    assert rows["flash_attn"]["version"] == version
    assert (rows["flash_attn"]["failure"] or "").partition(":")[0] == (failure or "")


def test_a_failed_check_sets_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"passed": False, "failure": "off by 1"}
    monkeypatch.setattr(doctor, "check_in_subprocess", lambda *_: failed)
    report(capsys, expected_code=1)
    main(["doctor"])
    assert "FAILED its check: off by 1" in capsys.readouterr().out


def test_a_backend_for_other_layers_is_usable_and_not_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(usability, "_reasons", lambda *_: (Reason("kind", "attention", "mla"),))
    monkeypatch.setattr(doctor, "check_in_subprocess", lambda *_: pytest.fail("a check that cannot pass was run"))
    (row,) = (row for row in report(capsys)["backends"] if row["name"] == "cpu")
    assert row["usable"]
    assert row["check"] is None
    main(["doctor"])
    assert "usable, not checked here: it serves mla, not attention" in capsys.readouterr().out


def test_pinned_backend_that_is_not_usable_sets_the_exit_code(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HAL_BACKEND", "cuda:triton")
    report(capsys, expected_code=1)


def test_variables_that_hide_devices_are_listed(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONE_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("TWO_VISIBLE_DEVICES", "1")
    environment = report(capsys)["environment"]
    assert environment["device_filters"] == {"ONE_VISIBLE_DEVICES": "0", "TWO_VISIBLE_DEVICES": "1"}
    assert any("filtered twice" in warning for warning in environment["warnings"])


def test_second_owner_of_the_name_is_a_warning(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = {"hal": ["hal-attention", "another-hal"]}
    monkeypatch.setattr(doctor.importlib.metadata, "packages_distributions", lambda: owners)
    (warning,) = report(capsys)["hal"]["warnings"]
    assert "another-hal" in warning
