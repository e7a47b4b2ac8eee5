"""The pages of the documentation site: what is made of ours, and that each stands in its navigation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import docs_api  # noqa: E402
import docs_site  # noqa: E402


@pytest.fixture
def root(tmp_path):
    """A repository with two pages, a program, a notebook and a package of one name."""
    files = {
        "README.md": "[a](docs/a.md#part) [code](run.py) [web](https://example.org) `[no](x)`\n",
        "CHANGELOG.md": "# Changes\n",
        "SECURITY.md": "",
        "CONTRIBUTING.md": "",
        "examples/tiny_policy/README.md": "",
        "run.py": "print(1)",
        "folder/run.py": "",
        "docs/README.md": "[up](../README.md) [folder](more)\n",
        "docs/a.md": "# A\n\n## Part\n\n```text\n](no)\n```\n![a drawing](drawings/b.svg)\n",
        "docs/drawings/b.svg": "<?xml?>\n<svg><style>@media (prefers-color-scheme: dark) { a {} }</style>\n</svg>",
        "docs/more/README.md": "[notebook](../../notebooks/n.ipynb) [gone](gone.md) [out](../../folder)\n",
        "setup.cfg": "[options]\npackage_dir =\n  toolgym = front\n  toolgym.tools = tools\n"
        "packages =\n  toolgym\n  toolgym.tools\n",
        "front/__init__.py": '"""All. More."""\nfrom toolgym.tools.a import A as A\n',
        "tools/__init__.py": '"""Tools."""\nfrom toolgym.tools.a import A as A\n',
    }
    cells = [
        {"cell_type": "markdown", "source": ["# N\n", "[a](../docs/a.md)"]},
        {"cell_type": "code", "source": "1 + 1", "outputs": [{"data": {"text/plain": ["2"]}}]},
        {"cell_type": "code", "source": "shown", "outputs": [{"data": {"text/html": "<pre>a\n\nb</pre>"}}]},
        {"cell_type": "code", "source": "plot", "outputs": [{"data": {"image/png": "iVBORw=="}}]},
    ]
    for name, text in {**files, "notebooks/n.ipynb": json.dumps({"cells": cells})}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def pages(root, monkeypatch):
    monkeypatch.setattr(docs_site, "api_pages", lambda root: [("api/index.md", "# API\n")])
    written = docs_site.Pages(root, root / "out")
    written.write()
    return written


def test_links_lead_to_pages_and_to_copies_of_other_files(pages):
    assert (pages.out / "index.md").read_text() == (
        "[a](a.md#part) [code](run.py) [web](https://example.org) `[no](x)`\n"
    )
    assert (pages.out / "by_purpose.md").read_text() == "[up](index.md) [folder](more/index.md)\n"
    assert (pages.out / "run.py").read_text() == "print(1)"
    assert "](no)" in (pages.out / "a.md").read_text()


def test_a_link_that_leads_nowhere_is_named(pages):
    assert pages.broken == [
        "docs/more/README.md: gone.md is not in the repository",
        "docs/more/README.md: ../../folder is a folder, which the site does not show",
    ]


def test_a_bar_in_the_code_of_a_table_needs_no_backslash(pages):
    assert pages.page("docs/a.md", r"| `a\|b` | c\|d |" + "\n\n`e\\|f`") == r"| `a|b` | c\|d |" + "\n\n`e\\|f`"


def test_a_drawing_becomes_a_part_of_its_page_and_follows_the_sites_switch(pages):
    page = (pages.out / "a.md").read_text()
    assert page.count("<svg") == 1
    assert 'aria-label="a drawing"' in page
    assert '[data-md-color-scheme="slate"] { a {} }' in page


def test_a_notebook_is_a_page_with_its_outputs(pages):
    page = (pages.out / "notebooks/n.md").read_text()
    assert page.startswith("# N\n\nThis page is the notebook [notebooks/n.ipynb](n.ipynb)")
    assert (pages.out / "notebooks/n.ipynb").exists()
    assert "[a](../a.md)" in page
    assert "```python\n1 + 1\n```\n\n````text\n2\n````" in page
    assert '<div class="output"><pre>a&#10;&#10;b</pre></div>' in page
    assert (pages.out / "notebooks/n-3-0.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_gone_is_removed_and_what_is_equal_is_left_alone(pages):
    before = (pages.out / "a.md").stat().st_mtime_ns
    (pages.root / "docs/more/README.md").unlink()
    (pages.root / "docs/README.md").write_text("none")
    again = docs_site.Pages(pages.root, pages.out)
    again.write()
    assert (pages.out / "a.md").stat().st_mtime_ns == before
    assert not (pages.out / "more").exists()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("- a\n  b\n\n  c\n\nd", "- a\n    b\n\n    c\n\nd"),
        ("- a\n  - b\n    c\n- d", "- a\n    - b\n        c\n- d"),
        ("1. a\n\n   ```sh\n   x\n     y\n   ```\n\n2. b", "1. a\n\n    ```sh\n    x\n      y\n    ```\n\n2. b"),
        ("- a\nlazy\n\n    code", "- a\nlazy\n\n      code"),
        ("```\n- a\n  b\n```", "```\n- a\n  b\n```"),
    ],
)
def test_what_belongs_to_an_item_is_indented_by_four(text, wanted):
    assert docs_api.indented(text) == wanted


def test_the_reference_has_each_public_name_once(root):
    pages = dict(docs_api.api_pages(root, modules=()))
    assert "::: toolgym.tools.A" in pages["api/toolgym.tools.md"]
    assert "[`A`][toolgym.tools.A]" in pages["api/toolgym.md"]
    assert "::: toolgym.A" not in pages["api/toolgym.md"]
    assert "| [`toolgym`](toolgym.md) | All |" in pages["api/index.md"]


def test_a_doctest_of_a_docstring_is_a_program():
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    import docs_docstrings

    text = "Doubles.\n\n>>> double(\n...     2)\n4\n\nNot zero:\n- a\n  b"
    assert docs_docstrings.for_the_site("A.\n\n>>> f(2)\n4\n\n- a\n  b") == (
        "A.\n\n```pycon\n>>> f(2)\n4\n```\n\n- a\n    b"
    )
    assert docs_docstrings.for_the_site(text).count("```") == 2


def test_the_library_is_linked_as_it_is_imported(root):
    for _ in range(2):  # once more changes nothing
        docs_api.link_sources(root, root / "sources")
    assert (root / "sources/toolgym/__init__.py").read_text().startswith('"""All.')
    assert (root / "sources/toolgym/tools/__init__.py").read_text().startswith('"""Tools.')


def test_the_check_of_a_built_site_finds_what_is_wrong(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="a/#x"></a><a href="a/#y"></a><a href="/t/a/"></a><a href="https://other.org">'
        '<img src="https://other.org/i.png"><a href="https://e.org/t/gone"></a><a href="#top"></a>'
    )
    (tmp_path / "a/index.html").write_text('<h1 id="x"></h1>')
    assert docs_site.faults(tmp_path, "https://e.org/t/") == [
        "index.html: https://other.org/i.png is loaded from another host",
        "index.html: a/#y has no such anchor",
        "index.html: https://e.org/t/gone leads nowhere",
        "index.html: #top has no such anchor",
    ]


def named(nav):
    """Pages that a navigation names."""
    for item in nav:
        values = item.values() if isinstance(item, dict) else [item]
        for value in values:
            yield from named(value) if isinstance(value, list) else [value]


def test_each_page_stands_in_the_navigation_and_each_of_its_pages_is_there(tmp_path):
    pages = docs_site.Pages(ROOT, tmp_path)
    pages.write()
    nav = list(named(docs_site.settings()["nav"]))
    written = {str(path.relative_to(tmp_path)) for path in pages.written if path.suffix == ".md"}
    assert sorted(nav) == sorted(written), "mkdocs.yml names each page once"
    assert pages.broken == []


def test_every_decision_is_listed(tmp_path):
    listed = (ROOT / "docs/decisions/README.md").read_text()
    assert [path.name for path in (ROOT / "docs/decisions").glob("0*.md") if f"]({path.name})" not in listed] == []
