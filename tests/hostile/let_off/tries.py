"""The table of tries to be let off."""

from __future__ import annotations

from collections.abc import Iterator

from tests.actors import call
from tests.hostile.let_off import models, programs, repositories, texts
from tests.hostile.let_off.play import CELLS, COMPILED_TASKS, PROGRAM_TASKS, REPOSITORIES, SHELLS, Try, cell, command

QUICK = {
    "bash, file": ("kill all later", "a pipe as the answer", "a thousand nested folders"),
    "bash, verifier": ("no working folder",),
    "bash, verifier on a copy": ("kill all later",),
    "python, cell": ("close all descriptors", "end the interpreter"),
    "python, file": ("no builtins",),
    "judge, functions": ("kill the ancestors",),
    "judge, output": ("kill all",),
    "judge, interactor": ("kill all",),
    "SQL-v0": ("a text that is no UTF-8", "half of an emoji", "deep JSON"),
    "GSM8K-v0": ("half of an emoji", "an argument of depth 100,000"),
    "CodeJudge-v0": ("an argument that Python knows",),
    "SearchQA-v0": ("a list with half of an emoji",),
}  # fmt: skip
"""Tries that are played in each run of the tests, by env."""

QUICK_MODELS = (
    "judge: a filter of contents", "judge: no verdict", "judge: an empty reply", "user: an empty reply",
    "user: a filter of contents", "user: a reply of thinking",
)  # fmt: skip


def _tries() -> Iterator[tuple[str, str, tuple[str, ...], float]]:
    for env in SHELLS:
        for name, text in programs.COMMANDS.items():
            yield name, env, (command(text), "done"), 0.6 if "(sleep 0." in text else 0.0
    for env in CELLS:
        for name, text in programs.CELLS.items():
            yield name, env, (cell(text), "done"), 0.4 if " later" in name else 0.0
    for env in PROGRAM_TASKS:
        for name, text in programs.SOLUTIONS.items():
            yield name, env, (f"```python\n{text}\ndef f(n): return 0\n```",), 0.0
    for env in COMPILED_TASKS:
        for name, text in programs.COMPILED.items():
            yield name, env, (f"```cpp\n{text}\n```",), 0.0
    for env in REPOSITORIES:
        for name, text in repositories.COMMANDS.items() if env == "repository, unittest" else ():
            yield name, env, (command(text), "done"), 1.0 if "(sleep 0." in text else 0.0
        for name, text in repositories.CODE.items():
            yield f"code: {name}", env, (call("editor", command="create", path="calc.py", file_text=text), "done"), 0.0
    for env, mark in texts.MARKS.items():
        for name, value in {**texts.VALUES, **(texts.QUERIES if env == "SQL-v0" else {})}.items():
            yield name, env, (mark.format(value),), 0.0
    for env, called in texts.CALLED.items():
        for name, turn in texts.calls(*called).items():
            yield name, env, (turn, "done"), 0.0
    for env in models.ENVS:
        yield "a word", env, (f"Say {models.WORD}.",), 0.0


TRIES = {
    f"{env}: {name}": Try(name, env, turns, wait, env in QUICK_MODELS or name in QUICK.get(env, ()))
    for name, env, turns, wait in _tries()
}
