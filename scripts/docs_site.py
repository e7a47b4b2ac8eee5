"""Build the documentation site from docs/, the README, the notebooks and the docstrings.

    python scripts/docs_site.py           # pages into .cache/docs, the site into site/; fails on any warning
    python scripts/docs_site.py --serve   # http://127.0.0.1:8000, which follows changes

Pages work on GitHub as they stand; here they are copied, with links as the site needs them. A file of the repository
that a page links to, such as a notebook, is copied too. Zensical makes the site. At last every link, anchor and
resource of the built pages is looked up.
"""

from __future__ import annotations

import argparse
import html
import html.parser
import json
import os
import posixpath
import re
import subprocess
import sys
import time
import urllib.parse
from base64 import b64decode
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from docs_api import api_pages, indented, link_sources

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "by_purpose.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/tiny_policy/README.md": "tiny_policy.md",
}
"""Pages that stand elsewhere on the site than in the repository."""


def settings(root: Path = ROOT) -> dict[str, Any]:
    """Return mkdocs.yml as it stands, its tags left out."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("", lambda loader, suffix, node: None)
    return yaml.load((root / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


LINK = re.compile(
    r"(?P<code>^ *```.*?^ *```|`[^`\n]+`)|(?P<before>\]\(|(?:src|href)=\")(?P<target>[^)\s\"]+)(?P<after>[)\"])",
    re.MULTILINE | re.DOTALL,
)
"""Code, in which nothing is a link, or a link."""


@dataclass
class Pages:
    """Writes the pages of the site below `out`, and leaves files alone that would not change."""

    root: Path
    out: Path
    broken: list[str] = field(default_factory=list)
    written: set[Path] = field(default_factory=set)

    def write(self) -> None:
        """Write all pages, and remove what an earlier run left. `broken` names links that lead nowhere."""
        for source in self.sources():
            path = self.out / (self.place(source) or source)
            if source.endswith(".md"):
                self.put(path, self.page(source, (self.root / source).read_text(encoding="utf-8")))
            elif source.endswith(".ipynb"):
                self.put(path, self.notebook(source))
            else:
                self.put(path, (self.root / source).read_bytes())
        for path, text in api_pages(self.root):
            self.put(self.out / path, text)
        for path in sorted(self.out.rglob("*"), reverse=True):
            if path.is_file() and path not in self.written:
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def sources(self) -> list[str]:
        """Paths of the repository that the site is made of."""
        outside = [name for name in PAGES if not name.startswith("docs/")]
        notebooks = sorted(str(path.relative_to(self.root)) for path in (self.root / "notebooks").glob("*.ipynb"))
        inside = sorted(path for path in (self.root / "docs").rglob("*") if path.is_file())
        return [*outside, *notebooks, *(str(path.relative_to(self.root)) for path in inside)]

    def place(self, source: str) -> str | None:
        """Return where a path of the repository stands on the site; None for what does not."""
        if source in PAGES:
            return PAGES[source]
        if (self.root / source).is_dir():
            source = posixpath.join(source, "README.md")
            return self.place(source) if (self.root / source).exists() else None
        if source.startswith("notebooks/") and source.endswith(".ipynb"):
            return source.removesuffix(".ipynb") + ".md"
        if not source.startswith("docs/"):
            return None
        return re.sub(r"(^|/)README\.md$", r"\1index.md", source.removeprefix("docs/"))

    def page(self, source: str, text: str) -> str:
        """Return a page's text for the site: with its links, lists and drawings as Zensical needs them."""

        def links(match: re.Match[str]) -> str:
            return match["code"] or match["before"] + self.link(source, match["target"]) + match["after"]

        text = LINK.sub(links, indented(text))
        rows = re.compile(r"^\|.*", re.MULTILINE)  # GitHub wants a bar in code escaped, and Zensical would show that
        text = rows.sub(lambda row: re.sub("`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row[0]), text)
        drawing = re.compile(r"^!\[([^\]]*)\]\(([^)\s]*drawings/[^)\s]*\.svg)\)$", re.MULTILINE)
        return drawing.sub(lambda match: self.drawing(source, match[1], match[2]), text)

    def link(self, source: str, target: str) -> str:
        """Return a link of a page as the site needs it."""
        path, sign, anchor = target.partition("#")
        if not path or "://" in target or target.startswith(("mailto:", "data:")):
            return target
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), urllib.parse.unquote(path)))
        if there.startswith("..") or not (self.root / there).exists():
            self.broken.append(f"{source}: {target} is not in the repository")
            return target
        place = self.place(there)
        if place is None and (self.root / there).is_dir():
            self.broken.append(f"{source}: {target} is a folder, which the site does not show")
            return target
        if place is None:
            place = there
            self.put(self.out / place, (self.root / there).read_bytes())
        here = posixpath.dirname(self.place(source) or "")
        return posixpath.relpath(place, here or ".") + sign + anchor

    def drawing(self, source: str, title: str, path: str) -> str:
        """Return an SVG as a part of the page, so that it follows the site's switch between light and dark."""
        there = self.out / posixpath.normpath(posixpath.join(posixpath.dirname(self.place(source) or ""), path))
        drawing = self.root / "docs" / there.relative_to(self.out)
        svg = drawing.read_text(encoding="utf-8")
        svg = svg.replace("@media (prefers-color-scheme: dark)", '[data-md-color-scheme="slate"]')
        svg = re.sub(r"\s*\n\s*", " ", svg[svg.index("<svg") :]).strip()
        label = f' role="img" aria-label="{html.escape(title)}"'
        return f'<div class="drawing">{svg.replace("<svg", f"<svg{label}", 1)}</div>'

    def notebook(self, source: str) -> str:
        """Return a notebook as a page: its texts, its programs, and the outputs that it was committed with."""
        parts = []
        for number, cell in enumerate(json.loads((self.root / source).read_text(encoding="utf-8"))["cells"]):
            text = "".join(cell["source"]).strip()
            if cell["cell_type"] == "markdown":
                parts.append(self.page(source, text))
            elif cell["cell_type"] == "code":
                parts.append(f"```python\n{text}\n```")
                for place, output in enumerate(cell["outputs"]):
                    parts.append(self.output(f"{Path(source).stem}-{number}-{place}", output))
        title, _, rest = "\n\n".join(part for part in parts if part).partition("\n")
        self.put(self.out / source, (self.root / source).read_bytes())
        note = f"This page is the notebook [{source}]({posixpath.basename(source)}) of the repository."
        return f"{title}\n\n{note}\n\n{rest.strip()}\n"

    def output(self, name: str, output: dict[str, Any]) -> str:
        """Return one output of a cell; a picture becomes a file beside the page."""
        data = output.get("data", {})
        if "image/png" in data:
            self.put(self.out / "notebooks" / f"{name}.png", b64decode("".join(data["image/png"])))
            return f"![Output of the cell above]({name}.png)"
        if "text/html" in data or "image/svg+xml" in data:
            markup = "".join(data.get("text/html") or data["image/svg+xml"])
            styles = re.compile(r"<style.*?</style>", re.DOTALL)
            markup = styles.sub(lambda match: " ".join(match[0].split()), markup.strip())
            return '<div class="output">' + markup.replace("\n", "&#10;") + "</div>"
        text = "".join(output.get("text", "") or data.get("text/plain", "")).rstrip()
        return f"````text\n{text}\n````" if text else ""

    def put(self, path: Path, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.written.add(path)
        if path.exists() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class Page(html.parser.HTMLParser):
    """What a built page refers to, and what it offers to refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") != "canonical":
            self.resources.append(values.get("href", ""))
        elif "src" in values:
            self.resources.append(values["src"])


def faults(site: Path, url: str) -> list[str]:
    """Return what is wrong with a built site: links and anchors that lead nowhere, resources of other hosts."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    top = urllib.parse.urlsplit(url).path
    wrong = []
    for path, page in pages.items():
        here = path.relative_to(site)
        wrong += [f"{here}: {there} is loaded from another host" for there in page.resources if _foreign(there, url)]
        for there in dict.fromkeys([*page.links, *page.resources]):
            target, _, anchor = there.removeprefix(url.removesuffix(top)).partition("#")
            if _foreign(there, url) or re.match(r"(mailto|data|javascript):", there):
                continue
            inside = site / target.removeprefix(top) if target.startswith(top) else path.parent / target
            file = Path(os.path.normpath(urllib.parse.unquote(str(inside)))) if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                wrong.append(f"{here}: {there} leads nowhere")
            elif anchor and file in pages and urllib.parse.unquote(anchor) not in pages[file].ids:
                wrong.append(f"{here}: {there} has no such anchor")
    return wrong


def _foreign(there: str, url: str) -> bool:
    return there.startswith(("http://", "https://", "//")) and not there.startswith(url)


def prepare(root: Path, out: Path) -> list[str]:
    """Write pages and sources for Zensical below `out`. Returns what is wrong with their links."""
    pages = Pages(root, out / "pages")
    pages.write()
    link_sources(root, out / "sources")
    return pages.broken


def list_once(path: Path) -> None:
    """Leave of a list's equal items the first: a pattern of llms.txt cannot leave out what stands in other sections."""
    listed: set[str] = set()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not (line.startswith("- ") and line in listed) and not listed.add(line)]
    path.write_text("".join(kept), encoding="utf-8")


def build(root: Path) -> list[str]:
    """Build the site into site/. Returns what is wrong with it."""
    wrong = prepare(root, root / ".cache/docs")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode or re.search(r"warning", output, re.IGNORECASE):
        return [*wrong, output.strip()]
    list_once(root / "site/llms.txt")
    return wrong + faults(root / "site", settings(root)["site_url"])


def serve(root: Path) -> None:
    """Serve the site, and write the pages anew as their sources change, until it is interrupted."""
    prepare(root, root / ".cache/docs")
    with subprocess.Popen([sys.executable, "-m", "zensical", "serve"], cwd=root) as server:
        try:
            while server.poll() is None:
                time.sleep(1)
                prepare(root, root / ".cache/docs")
        except KeyboardInterrupt:
            server.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--serve", action="store_true", help="serve it, and follow changes")
    serving = parser.parse_args().serve
    if find_spec("zensical") is None or find_spec("mkdocstrings_handlers") is None:
        print(f"the site needs Zensical: {sys.executable} -m pip install -c constraints.txt '.[docs]'", file=sys.stderr)
        return 1
    if serving:
        serve(ROOT)
        return 0
    begun, wrong = time.monotonic(), build(ROOT)
    for fault in wrong:
        print(fault)
    pages = len(list((ROOT / "site").rglob("*.html")))
    print(f"site/: {pages} pages in {time.monotonic() - begun:.1f} s, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
