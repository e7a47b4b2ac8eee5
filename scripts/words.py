"""Words that say nothing, in the names and docstrings of the library: words.py [--advice] [FOLDER...]

Prints a line for each fault and ends with status 1 if there is one. Checked are:

- variables called `one`, `found`, `given`, `made`, `said` or `own`: name the thing with a noun;
- docstrings that begin with what, how, which, where, who or whose: begin with a noun or a verb;
- a class name that stands for two classes of the library (adapters' `Toolgym...` apart: trainers name those);
- functions of more than 60 lines without their docstring, and public functions of more than 12 parameters.

With `--advice` also sentences that may be hard to read; they are no faults.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ["tools", "envs", "wrappers", "rollout", "front"]
EMPTY_NAMES = {"one", "found", "given", "made", "said", "own"}
EMPTY_BEGINNINGS = {"what", "how", "which", "where", "who", "whose"}
MOST_LINES = 60
MOST_PARAMETERS = 12
ADVICE = re.compile(
    r"\b(where (it|one|there|they|none|no|that)\b|nobody|whoever|says so|of (its|one's|their) own\b|anew\b"
    r"|so many\b|meanwhile\b|stands? still|there is none|\balone\b(?=[.,;:)]))",
    re.IGNORECASE,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def faults_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and texts of the faults of one file, class names apart."""
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None
        name = node.arg if isinstance(node, ast.arg) else name
        if name in EMPTY_NAMES:
            yield node.lineno, f"a variable called {name!r}"  # type: ignore[attr-defined]
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            words = (ast.get_docstring(node) or "").split()
            if words and re.sub(r"\W", "", words[0]).lower() in EMPTY_BEGINNINGS:
                yield getattr(node, "lineno", 1), f"a docstring that begins with {words[0]!r}"
        if isinstance(node, Function):
            yield from _faults_of_size(node)


def _faults_of_size(node: Function) -> Iterator[tuple[int, str]]:
    first = node.body[0]
    has_docstring = ast.get_docstring(node) is not None and first.end_lineno is not None
    docstring = first.end_lineno - first.lineno + 1 if has_docstring and first.end_lineno else 0
    length = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring
    if length > MOST_LINES:
        yield node.lineno, f"{node.name} has {length} lines"
    arguments = node.args
    count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
    count -= bool(arguments.args) and arguments.args[0].arg in {"self", "cls"}
    if count > MOST_PARAMETERS and (not node.name.startswith("_") or node.name == "__init__"):
        yield node.lineno, f"{node.name} has {count} parameters"


def main() -> int:
    """Print the faults; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advice", action="store_true", help="also sentences that may be hard to read")
    parser.add_argument("folders", nargs="*", default=LAYERS)
    options = parser.parse_args()
    roots = [(ROOT / folder).resolve() for folder in options.folders]
    classes: dict[str, list[str]] = defaultdict(list)
    count = 0
    for path in (path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        tree, shown = ast.parse(text), path.relative_to(ROOT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith(("_", "Toolgym")):
                classes[node.name].append(f"{shown}:{node.lineno}")
        if not any(path.is_relative_to(root) for root in roots):
            continue
        for line, fault in sorted(faults_of(tree)):
            print(f"{shown}:{line}: {fault}")
            count += 1
        for number, line_text in enumerate(text.split("\n"), 1):
            if options.advice and (match := ADVICE.search(line_text)):
                print(f"{shown}:{number}: (advice) {match.group(0)!r}")
    for name, places in sorted(classes.items()):
        if len(places) > 1 and any((ROOT / place).is_relative_to(root) for place in places for root in roots):
            print(f"{places[0]}: the class name {name} also stands at {', '.join(places[1:])}")
            count += 1
    print(f"{count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
