"""The project's pages, and the code blocks in them.

What a block is, a reader sees as a test does:

- `python`: part of the page's program; all of a page's parts run in order in one process. Where the first line is
  `# Needs ...` it asks for hardware or files that are not everywhere, and is compiled.
- `text`: what the `python` block before it prints.
- `console`: commands after `$ `, and what they print. `...` stands for what is left out.
- `sh`: commands without their output. Those of hal itself run, all are read by bash.
- `toml`, `yaml`: read.
- Any block whose first line is a comment with a path is that file, in the folder where the page's commands run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "benchmarks" / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    )
}
LANGUAGES = frozenset({"python", "text", "console", "sh", "toml", "yaml"})
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")
_PROMPT = "$ "


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; line is that of its first line of code, from 1."""

    page: str
    line: int
    language: str
    text: str

    @property
    def id(self) -> str:
        """Page and line."""
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The path of the file that the block is, None where it is none."""
        found = _FILE.match(self.text) if self.language != "text" else None
        return found[1] if found else None

    @property
    def needs_more(self) -> bool:
        """Whether it asks for what is not everywhere, and says so."""
        return self.text.startswith("# Needs ")

    @property
    def is_program(self) -> bool:
        """Whether it is a part of the page's program."""
        return self.language == "python" and self.file is None and not self.needs_more


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a page, and what it prints there; None where the page does not show it."""

    block: Block
    words: str
    output: str | None

    @property
    def id(self) -> str:
        """Page, line and command."""
        return f"{self.block.id} {self.words}"

    @property
    def is_own(self) -> bool:
        """Whether it is the project's, or runs a page's own tests."""
        return re.match(r"hal |python -m (hal|pytest)\b|python examples/", self.words) is not None


def read_blocks(page: str) -> tuple[Block, ...]:
    """The code blocks of a page; ValueError for an indented one, whose language nobody can tell."""
    blocks = []
    for token in MarkdownIt("commonmark").parse(PAGES[page].read_text(encoding="utf-8")):
        if token.type not in ("fence", "code_block"):
            continue
        line = token.map[0] + 2 if token.map else 0
        if token.type == "code_block":
            raise ValueError(f"{page}:{line - 1}: an indented block; fence it and name its language")
        blocks.append(Block(page=page, line=line, language=token.info.strip(), text=token.content))
    return tuple(blocks)


def read_links(page: str) -> tuple[str, ...]:
    """Where the links and pictures of a page lead."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(PAGES[page].read_text(encoding="utf-8")):
        for child in token.children or ():
            found += [str(child.attrs[name]) for name in ("href", "src") if name in child.attrs]
    return tuple(found)


def read_headings(page: str) -> tuple[str, ...]:
    """The anchors of a page's headings."""
    tokens = MarkdownIt("commonmark").parse(PAGES[page].read_text(encoding="utf-8"))
    texts = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return tuple(re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in texts)


def read_commands(block: Block) -> Iterator[Command]:
    """The commands of a console or shell block; a line that ends in a backslash goes on."""
    text = block.text.replace("\\\n", "")
    if block.language == "sh":
        for line in text.splitlines():
            words = line.partition(" #")[0].strip()
            if words and not words.startswith("#"):
                yield Command(block=block, words=words, output=None)
        return
    for piece in re.split(rf"^(?={re.escape(_PROMPT)})", text, flags=re.M):
        if piece:
            first, _, output = piece.partition("\n")
            if not first.startswith(_PROMPT):
                raise ValueError(f"{block.id}: output before any command; a command begins with {_PROMPT!r}")
            yield Command(block=block, words=first.removeprefix(_PROMPT), output=output)


BLOCKS = tuple(block for page in PAGES for block in read_blocks(page))
COMMANDS = tuple(
    command for block in BLOCKS if block.language in ("console", "sh") and block.file is None for command in read_commands(block)
)
