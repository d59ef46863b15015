"""The documentation tells the truth: its code runs, its links lead somewhere, its citations are in the bibliography.

Fences marked ``python`` are executed, page by page, top to bottom in one namespace; fences marked ``pycon`` are run as
doctests in the same namespace, so that the output shown is the output there is. A fence below the line
``<!-- no-run: reason -->`` shows code for something that is not there (a plan, or a long run) and is only compiled.
"""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"(?P<skip><!-- no-run: [^\n]+ -->\n)?^```(?P<language>python|pycon)\n(?P<code>.*?)^```$", re.M | re.S
)
LINK = re.compile(r"\]\((?!https?://|#)(?P<target>[^)#\s]+)")
CITATION = re.compile(r"\[@(?P<key>[a-z]+\d{4}[a-z]*)(?:,[^\]]+)?\]")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int
    runs: bool

    def compile(self, page: Path) -> Any:
        # The leading newlines make the line numbers of a traceback those of the page.
        return compile("\n" * self.line + self.code, str(page), "exec", dont_inherit=True)

    def execute(self, page: Path, namespace: dict[str, Any]) -> None:
        if self.language == "python":
            exec(self.compile(page), namespace)
            return
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        example = doctest.DocTestParser().get_doctest(self.code, namespace, page.name, str(page), self.line)
        # The runner copies names back only when told not to clear what the test defined.
        doctest.DebugRunner(optionflags=flags).run(example, clear_globs=False)
        namespace.update(example.globs)


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        yield Block(match["language"], match["code"], line, runs=match["skip"] is None)


@every_page
def test_code_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    for block in blocks(page):
        if block.runs:
            block.execute(page, vars(module))
        elif block.language == "python":
            block.compile(page)


@every_page
def test_every_fence_is_read(page: Path) -> None:
    fences = re.findall(r"^```py\S*", page.read_text(), re.M)
    assert len(fences) == len(list(blocks(page)))


@every_page
def test_links_lead_to_files(page: Path) -> None:
    missing = [
        link["target"] for link in LINK.finditer(page.read_text()) if not (page.parent / link["target"]).exists()
    ]
    assert not missing


@every_page
def test_citations_are_in_the_bibliography(page: Path) -> None:
    known = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text(), re.M))
    assert {citation["key"] for citation in CITATION.finditer(page.read_text())} <= known


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES[2:])


def test_a_wrong_output_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("```python\nx = 1\n```\n\n```pycon\n>>> x + 1\n3\n```\n")
    with pytest.raises(doctest.DocTestFailure):
        test_code_runs(page, monkeypatch)
