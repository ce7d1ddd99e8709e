"""README as a package index shows it: short, true to the project, and with links that lead somewhere from there."""

from __future__ import annotations

import re
import tomllib

import pytest

from .helpers.pages import PAGES, ROOT, read_headings, read_links

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 900
STATUS = "Alpha. CPU runs today; GPU kernels compile and pass in emulation, and have not run on a GPU yet."


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_the_readme_says_what_hal_is_and_then_its_status() -> None:
    title, sentence, status, *_ = [line for line in README.splitlines() if line]
    assert title == "# hal"
    assert re.fullmatch(r"[A-Z][^.]*\.", sentence)
    assert status.strip("*") == f"Status: {STATUS}"


def test_the_readme_shows_every_way_in() -> None:
    for name in (
        "pip install",
        "hal explain",
        "bind",
        "from_device",
        "warm_up",
        "build_for_capture",
        "hal.ops",
        "make demo",
        "make test",
    ):
        assert name in README, name


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for link in read_links(page):
        if link.startswith(f"{REPOSITORY}/blob/main/"):
            target, _, anchor = link.removeprefix(f"{REPOSITORY}/blob/main/").partition("#")
        elif re.match(r"https?:", link):
            continue
        else:
            assert page != "README.md", (
                f"{link}: an index shows README without the files beside it; begin with {REPOSITORY}/blob/main"
            )
            target, _, anchor = link.partition("#")
            target = (PAGES[page].parent / target).resolve().relative_to(ROOT).as_posix() if target else page
        assert (ROOT / target).exists(), f"{page} links to {link}"
        assert not anchor or anchor in read_headings(target), f"{page} links to {link}"


def test_the_readme_leads_to_every_page() -> None:
    led = {link.removeprefix(f"{REPOSITORY}/blob/main/") for link in read_links("README.md")}
    assert set(PAGES) - {"README.md"} <= led


def test_the_project_is_at_one_address() -> None:
    urls = PROJECT["urls"]
    assert set(urls) == {"Repository", "Documentation", "Issues", "Changelog"}
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    place = REPOSITORY.removeprefix("https://github.com/")
    calls = "".join(path.read_text() for path in (*PAGES.values(), *(ROOT / ".github" / "workflows").glob("*.yml")))
    assert {call for call in re.findall(r"uses: (\S+)/\.github/workflows/hardware\.yml", calls) if call != "."} == {place}


def test_targets_that_pages_make_are_those_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES.values())
    named = set(re.findall(r"(?:`|^\s*)make ([a-z][a-z-]*)", text, re.M))
    assert {"demo", "test"} <= named <= targets


def test_extras_that_pages_install_are_those_of_the_project() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES.values())
    named = {extra for group in re.findall(r"(?:hal-attention|\.)\[([\w,-]+)\]", text) for extra in group.split(",")}
    assert {"torch", "models"} <= named <= set(PROJECT["optional-dependencies"])


def test_a_word_of_the_glossary_has_one_meaning() -> None:
    rows = [line.split("|")[1].strip() for line in PAGES["docs/glossary.md"].read_text().splitlines() if line.startswith("| ")]
    words = [word for row in rows if row != "word" for word in row.split(", ")]
    assert len(words) > 50
    assert sorted(set(words)) == sorted(words)
