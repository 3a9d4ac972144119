"""The documentation has short sentences: at most 25 words on average on each page, tables and code left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_WORDS = 25.0
FOLDERS = (
    "docs",
    "docs/how-to",
    "docs/explanation",
    "docs/reference",
    "docs/internals",
    "docs/measurements",
    "docs/decisions",
)
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md")),
    ]
)
#: Pages that are not yet rewritten, with the reason. One that passes leaves the list.
NOT_YET: dict[str, str] = {}


def sentences(markdown: str) -> list[str]:
    """The sentences of paragraphs and list items; a paragraph or item ends one, whatever it ends with."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "\n", markdown)
    text = re.sub(r"(?s)<!--.*?-->", "", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    lines = ["" if re.match(r"\s*(\||#)", line) else line for line in text.splitlines()]
    items = re.split(r"(?m)\n\s*\n|^\s*(?:[*-]|\d+\.)\s+", "\n".join(lines))
    parts = [part for item in items for part in re.split(r"(?<=[.?!])[\s)*]+(?=\S)", item)]
    return [part for part in parts if re.search(r"\w", part)]


def mean_words(markdown: str) -> float:
    """Words of a sentence, on average; 0 where there is none."""
    found = sentences(markdown)
    return sum(len(re.findall(r"\S*\w\S*", sentence)) for sentence in found) / len(found) if found else 0.0


def test_sentences_are_counted_without_tables_code_and_headings():
    page = "# A title. Of two\n\nOne two `three four`. Five\nsix seven!\n\n| a | table. |\n"
    page += "\n```\ncode. code.\n```\n* an item\n* [a link](x.md)\n"
    assert [len(sentence.split()) for sentence in sentences(page)] == [3, 3, 2, 2]
    assert mean_words(page) == 2.5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_short_sentences(page):
    name, words = page.relative_to(ROOT).as_posix(), mean_words(page.read_text(encoding="utf-8"))
    if name in NOT_YET:
        assert words > MOST_WORDS, f"{name} has {words:.1f} words a sentence now: take it off the list"
    else:
        assert words <= MOST_WORDS, (
            f"{name} has {words:.1f} words a sentence; at most {MOST_WORDS:g}: split the long ones"
        )


def test_pages_on_the_list_exist():
    assert set(NOT_YET) <= {page.relative_to(ROOT).as_posix() for page in PAGES}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_pages_outside_the_site_lead_to_files(name):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert not [link for link in links if not (ROOT / link).exists()]


def test_pages_that_the_code_names_exist():
    rooms = [
        room for room in ROOT.iterdir() if room.is_dir() and room.name[0] != "." and (room / "__init__.py").exists()
    ]
    files = [file for room in [*rooms, ROOT / "scripts", ROOT / "examples"] for file in room.rglob("*.py")]
    cited = {(file, page) for file in files for page in re.findall(r"\bdocs/[\w./-]+\.md", file.read_text("utf-8"))}
    assert len(cited) > 10
    missing = sorted((str(file.relative_to(ROOT)), page) for file, page in cited if not (ROOT / page).exists())
    assert not missing
