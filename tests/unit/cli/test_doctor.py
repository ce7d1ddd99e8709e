"""hal doctor: always a report, whatever is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hal.cli import clashes, doctor, doctor_view, main, selfcheck, usability
from hal.cli.console import make_console
from hal.common.backends.registry import backends
from hal.common.contract.reason import Reason

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
    assert as_json or f"problem: {section} could not be looked at" in text


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


SCREEN_LINES, SCREEN_COLUMNS = 30, 100


def test_a_report_has_a_number_and_every_section(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)
    assert found["schema"] == doctor.SCHEMA == 1
    sections = "schema hal torch environment platforms plugins libraries clashes backends problems"
    assert list(found) == sections.split()
    assert found["problems"] == []


def test_a_report_fits_one_screen(quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    assert len(lines) <= SCREEN_LINES
    assert lines[-1] == "no problem found"


def test_a_machine_with_many_devices_says_each_thing_once(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor.examine()
    device = {"target": "cuda:sm_90", "name": "H100", "memory_bytes": 80 * 2**30}
    found["platforms"][0]["devices"] = [{**device, "index": index} for index in range(8)]
    found["platforms"][0]["findings"] = ["the fastest first"]
    doctor_view.show_report(found, make_console())
    text = capsys.readouterr().out
    assert text.count("H100") == 1
    assert "8 x H100, 80.0 GiB" in text
    assert "the fastest first" in text


def test_a_plugin_that_failed_is_a_problem_and_sets_the_exit_code(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"name": "broken", "distribution": "hal-broken", "target": "x:Y", "is_allowed": True, "failure": "OSError: libx.so"}
    monkeypatch.setattr(doctor, "examine_plugins", lambda: [row])
    (problem,) = report(capsys, expected_code=1)["problems"]
    assert problem == "the plugin broken (hal-broken) does not load: OSError: libx.so"
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"problem: {problem}"


def test_a_section_that_raises_is_a_problem(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "find_clashes", lambda: 1 / 0)
    assert report(capsys, expected_code=1)["problems"] == ["clashes could not be looked at: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("requirement", "version", "said"),
    [
        ("transformers<5.24,>=5.23; extra == 'models'", "5.24.1", "hal takes >= 5.23 and < 5.24"),
        ("transformers<5.24,>=5.23; extra == 'models'", "4.57", "hal takes >= 5.23 and < 5.24"),
        ("transformers<5.24,>=5.23; extra == 'models'", "5.23.9", ""),
        ("torch>=2.8; extra == 'torch'", "2.7.1+cpu", "torch 2.7.1+cpu is installed and hal takes >= 2.8"),
        ("torch>=2.8; extra == 'torch'", "2.13.0+cpu", ""),
        ("torch>=2.8; extra == 'torch'", None, ""),
        ('pytest>=8.4; extra == "test"', "7.0", ""),
        ("rich>=13", "12.1", "rich 12.1 is installed and hal takes >= 13"),
        ("hal-attention[torch]; extra == 'models'", "0.1.0", ""),
    ],
)
def test_a_version_that_an_extra_excludes_is_a_clash(
    requirement: str, version: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clashes, "_find_version", lambda _: version)
    found = list(clashes.find_excluded([requirement]))
    assert len(found) == bool(said)
    assert all(said in sentence for sentence in found)


def test_two_distributions_of_one_package_clash() -> None:
    owners = {"triton": ["triton-xpu", "triton"], "torch": ["torch", "torch"], "rich": ["rich", "richer"]}
    (sentence,) = clashes.find_shared(clashes.PACKAGES, owners)
    assert sentence == "several distributions install a package named triton: triton and triton-xpu; uninstall all but one"
