"""The pages of the API's reference, and the library laid out as it is imported; nothing of it is imported."""

from __future__ import annotations

import ast
import configparser
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    "toolgym.tools.errors",
    "toolgym.rollout.endpoint",
    "toolgym.rollout.engine_player",
    "toolgym.rollout.adapters.agent_lightning",
    "toolgym.rollout.adapters.gem",
    "toolgym.rollout.adapters.miles",
    "toolgym.rollout.adapters.openrlhf",
    "toolgym.rollout.adapters.rllm",
    "toolgym.rollout.adapters.tinker",
    "toolgym.rollout.adapters.titanrl",
    "toolgym.rollout.adapters.torchrl",
    "toolgym.rollout.adapters.transfer_queue",
    "toolgym.rollout.adapters.tunix",
    "toolgym.exports.row_model",
    "toolgym.report.estimators",
    "toolgym.report.evaluation",
    "toolgym.report.report",
    "toolgym.viewer.query",
    "toolgym.viewer.run_index",
    "toolgym.viewer.tokens",
)
"""Modules that are public as they are, and have a page in the reference."""


ITEM = re.compile(r"( *)([-*]|\d+\.) ")


def indented(text: str) -> str:
    """Return Markdown with what belongs to an item of a list indented by four blanks a level, as Zensical wants it."""
    lines: list[str] = []
    levels: list[int] = []  # columns in which the texts of the open items begin
    in_code = False
    for line in text.split("\n"):
        content = line.lstrip(" ")
        blanks = len(line) - len(content)
        item = None if in_code else ITEM.match(line)
        follows = bool(lines and lines[-1].strip())
        while content and not in_code and levels and blanks < levels[-1] and (item or not follows):
            levels.pop()
        inside = levels[-1] if levels else 0
        if content and blanks >= inside:
            line = " " * (4 * len(levels) + blanks - inside) + content
        if item:
            levels.append(item.end())
        in_code ^= content.startswith("```")
        lines.append(line)
    return "\n".join(lines)


def packages(root: Path) -> dict[str, Path]:
    """Return each package of the library with its folder, by the name that it is imported by."""
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg")
    lines = config["options"]["package_dir"].split()
    tops = {name: root / folder for name, folder in zip(lines[::3], lines[2::3], strict=True)}
    folders = {}
    for name in config["options"]["packages"].split():
        top = max((top for top in tops if name == top or name.startswith(top + ".")), key=len)
        folders[name] = tops[top].joinpath(*name.removeprefix(top).split(".")[1:])
    return folders


def exports(path: Path) -> dict[str, str]:
    """Return the public names of a package with the modules that they come from: its `from X import Y as Y`."""
    modules = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("toolgym"):
            names = [alias.name for alias in node.names if alias.asname == alias.name]
            modules |= {name: node.module for name in names if not name.startswith("_")}
    return modules


def api_pages(root: Path, modules: tuple[str, ...] = MODULES) -> Iterator[tuple[str, str]]:
    """Yield the pages of the reference: one for each package with public names, and one for each of `modules`."""
    folders = packages(root)
    public = {name: exports(folder / "__init__.py") for name, folder in folders.items()}
    homes = _homes(public)
    index = ["# The API\n", "Each public name stands on one page, with the package that it is imported from.\n"]
    index.append("| package | |\n| --- | --- |")
    for package, names in sorted(public.items()):
        if not names:
            continue
        docstring = _docstring(folders[package] / "__init__.py")
        text = [f"# {package}\n", indented(docstring) + "\n"]
        elsewhere = {name: homes[f"{module}.{name}"] for name, module in names.items()}
        others = sorted((name, home) for name, home in elsewhere.items() if home != package)
        if others:
            links = ", ".join(f"[`{name}`][{home}.{name}]" for name, home in others)
            text.append(f"From its rooms, where they are described: {links}.\n")
        text += [f"::: {package}.{name}\n" for name, home in sorted(elsewhere.items()) if home == package]
        index.append(f"| [`{package}`]({package}.md) | {_first_sentence(docstring)} |")
        yield f"api/{package}.md", "\n".join(text)
    for module in modules:
        package, _, name = module.rpartition(".")
        docstring = _docstring(folders[package] / f"{name}.py")
        index.append(f"| [`{module}`]({module}.md) | {_first_sentence(docstring)} |")
        yield f"api/{module}.md", f"# {module}\n\n::: {module}\n    options:\n      show_root_heading: false\n"
    yield "api/index.md", "\n".join(index) + "\n"


def _homes(public: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the package that describes each object: of those that have it, the one that is nearest to its module."""
    homes: dict[str, str] = {}
    for package, names in public.items():
        for name, module in names.items():
            there = f"{module}.{name}"
            if there not in homes or _near(package, there) > _near(homes[there], there):
                homes[there] = package
    return homes


def _near(package: str, there: str) -> int:
    return len(posixpath.commonprefix([package + ".", there]))


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _first_sentence(docstring: str) -> str:
    return " ".join(docstring.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".:")


def link_sources(root: Path, out: Path) -> None:
    """Make a folder that holds the library as it is imported: mkdocstrings knows no map of folders."""
    for name, folder in packages(root).items():
        if "." not in name:  # what stands in the folder of a package at the top stays where it is
            for path in sorted(folder.iterdir()):
                _link(out / name / path.name, path)
        elif folder.parent == root:
            _link(out.joinpath(*name.split(".")), folder)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink() or path.readlink() != target:
        path.unlink(missing_ok=True)
        path.symlink_to(target)
