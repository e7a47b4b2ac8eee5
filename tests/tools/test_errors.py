"""What the errors of the whole library say."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

from toolgym.tools.errors import (
    ConfigError,
    MissingExtraError,
    ToolgymError,
    check_seconds,
    missing_file,
    on_one_line,
    shorten,
)


def test_a_missing_file_names_its_nearest_sibling(tmp_path):
    (tmp_path / "tasks.jsonl").touch()
    wrong = tmp_path / "task.jsonl"
    assert str(missing_file("task file", wrong)) == f"no task file at {str(wrong)!r}, did you mean 'tasks.jsonl'?"
    nowhere = tmp_path / "no" / "folder"
    assert str(missing_file("task file", nowhere)) == f"no task file at {str(nowhere)!r}"


@pytest.mark.parametrize("value", [0, -1, float("nan"), "3", None])
def test_seconds_are_positive(value):
    if value is None:
        check_seconds(timeout=None)
        return
    with pytest.raises(ConfigError, match="^tool_timeout must be a positive number of seconds, got"):
        check_seconds(timeout=1, tool_timeout=value)


def test_a_long_value_is_cut():
    assert shorten("a" * 300) == "a" * 300
    assert shorten("a" * 301) == "a" * 297 + "..."
    assert shorten([1, 2], most=5) == "[1..."


def test_every_public_error_hangs_in_the_tree():
    outside = []
    layers = [importlib.import_module(f"toolgym.{layer}") for layer in ("tools", "envs", "wrappers", "rollout")]
    for found in [one for layer in layers for one in pkgutil.walk_packages(layer.__path__, f"{layer.__name__}.")]:
        if "sandbox.local." in found.name or found.name.endswith(("__main__", "judge.inside.emptiness")):
            continue  # template processes and the judge's driver load those without the tree
        try:
            module = importlib.import_module(found.name)
        except MissingExtraError:
            continue
        outside += [
            f"{found.name}.{name}"
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, Exception)
            and value.__module__ == found.name
            and not name.startswith("_")
            and not issubclass(value, ToolgymError)
        ]
    assert outside == []


def test_a_text_for_a_log_stays_on_one_line_and_draws_nothing():
    hostile = "a\nWARNING forged\r\x1b[2J\u202e\u2028\ud800é"
    assert on_one_line(hostile) == r"a\nWARNING forged\r\x1b[2J\u202e\u2028\ud800é"
    assert len(on_one_line("x" * 10_000)) == 300
