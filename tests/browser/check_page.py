"""Opens matrix/support.html in headless Chromium, without a network, and looks at what its script made of it.

Run as a script: `python tests/browser/check_page.py [PAGE]`; 0 when every check holds, 2 where there is no browser. The
screenshot it leaves is for a person to look at.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

Cell = dict[str, Any]

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A container has no user namespaces for the sandbox; names resolve to nothing, so that a page that needs a network shows it.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--window-size=1700,1500",
    "--virtual-time-budget=10000",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


class Page(HTMLParser):
    """The rows of the tables and the text of elements, by id, as the browser's document has them."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self.text: dict[str, str] = {}
        self._table = self._named = ""
        self._depth = 0
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = dict(attrs).get("id") or ""
        if tag == "table":
            self._table = name
            self.rows[name] = []
        elif tag == "tr":
            self.rows[self._table].append([])
        elif tag in ("td", "th"):
            self.rows[self._table][-1].append("")
        if self._named and tag not in ("input", "br"):
            self._depth += 1
        elif name and tag in ("p", "section", "dl"):
            self._named, self._depth = name, 1
            self.text[name] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._table = ""
        if self._named:
            self._depth -= 1
            if not self._depth:
                self._named = ""

    def handle_data(self, data: str) -> None:
        if self._table and self.rows[self._table] and self.rows[self._table][-1]:
            self.rows[self._table][-1][-1] += f" {data}" if self.rows[self._table][-1][-1] else data
        if self._named:
            self.text[self._named] += f"{data} "


def find_browser() -> str:
    """The browser's path; the script ends with 2 where there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        print(f"no browser: none of {', '.join(NAMES)} is on PATH; on Debian: apt-get install chromium", file=sys.stderr)
        raise SystemExit(2)
    return found


def browse(page: Path, fragment: str, *more: str) -> str:
    """The document after its script has run, at a link."""
    with tempfile.TemporaryDirectory() as profile:
        link = f"{page.resolve().as_uri()}#{fragment}"
        command = [find_browser(), *FLAGS, f"--user-data-dir={profile}", *more, "--dump-dom", link]
        result = subprocess.run(command, capture_output=True, text=True, timeout=180)
    if result.returncode != 0 or 'data-ready="yes"' not in result.stdout:
        raise SystemExit(f"FAILED the script of {page} ran to its end\n{result.stderr[-2000:]}")
    return result.stdout


def check(name: str, holds: bool, detail: object = "") -> None:
    """One line for a check; a failed one ends the run."""
    if not holds:
        raise SystemExit(f"FAILED {name}: {detail}")
    print(f"ok {name}")


def check_whole(page: Path, cells: list[Cell], parity: dict[str, Any]) -> None:
    """The page as it opens has everything that its data have."""
    whole = Page(browse(page, ""))
    head, *rows = whole.rows["grid"]
    expected = [cell for cell in cells if (cell["dtype"], cell["kv_layout"], cell["feature"]) == ("bfloat16", "auto", "")]
    check("every model has a row", {row[0] for row in rows} == {cell["model"] for cell in expected}, rows)
    check("every arch has a column", set(head[1:]) == {cell["target"] for cell in expected}, head)
    shown = {(row[0], target): text for row in rows for target, text in zip(head[1:], row[1:], strict=True)}
    check("each cell has its state", all(shown[cell["model"], cell["target"]].startswith(cell["state"]) for cell in expected))
    served = sum(bool(cell["backends"]) for cell in expected)
    check("the count is the table's", f"{len(expected)} cells, {served} served" in whole.text["count"], whole.text["count"])
    check("every feature has a row", [row[0] for row in whole.rows["parity"][1:]] == list(parity["has"]))
    said = " ".join(" ".join(row) for row in whole.rows["parity"])
    check("every hole has its reason", all(hole["reason"] in said for hole in parity["holes"]))
    check("reports are listed", len(whole.rows["evidence"]) > 10, len(whole.rows["evidence"]))


def check_filters(page: Path, cells: list[Cell], support: dict[str, Any]) -> None:
    """What a link asks for is what is shown."""
    narrow = Page(browse(page, "model=deepseek&platform=cuda&feature=dcp&detail=deepseek-v3.2@cuda:sm_90"))
    head, *rows = narrow.rows["grid"]
    check("a name filters", bool(rows) and all("deepseek" in row[0] for row in rows), rows)
    check("a platform filters", all(name.startswith("cuda:") for name in head[1:]), head)
    wanted = ("deepseek-v3.2", "cuda:sm_90", "dcp")
    (asked,) = [cell for cell in cells if (cell["model"], cell["target"], cell["feature"]) == wanted]
    words = [support["reasons"][place] for place in asked["reasons"]] or [*support["providers"][asked["providers"]]]
    said = narrow.text["detail"]
    check("a cell tells who serves it, or why nobody does", all(word in said for word in words), said)
    nothing = Page(browse(page, "model=no-such-model"))
    check("an empty answer is said", len(nothing.rows["grid"]) == 1 and "Nothing fits" in nothing.text["count"])


def main() -> None:
    """Every check on one page, and its screenshot in the folder of temporary files."""
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "matrix" / "support.html"
    support, parity = (json.loads((page.parent / name).read_text()) for name in ("support.json", "parity.json"))
    cells = [{**cell, "target": target} for cell in support["cells"] for target in cell["targets"]]
    check("the page names nothing on a network", not re.search(r"(?:src|href|url)\s*[=(]\s*[\"']?https?:", page.read_text()))
    check_whole(page, cells, parity)
    check_filters(page, cells, support)
    picture = Path(tempfile.gettempdir()) / "hal-support.png"
    browse(page, "", f"--screenshot={picture}")
    check(f"a screenshot lies in {picture}", picture.stat().st_size > 10_000)


if __name__ == "__main__":
    main()
