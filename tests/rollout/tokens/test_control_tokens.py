"""A slice of `benchmarks/control_tokens.py`: no hostile text becomes a control token, and the count can find one."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.trl_templates import FOLDER
from toolgym.rollout.tokens.safe_encoder import SafeEncoder

PATH = Path(__file__).parents[3] / "benchmarks/control_tokens.py"


@pytest.fixture(scope="module")
def control_tokens():
    spec = importlib.util.spec_from_file_location("control_tokens", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("template", ["deepseek_r1_distill", "qwen3"])
def test_no_hostile_text_becomes_a_control_token(control_tokens, template):
    for seed, kind in enumerate(control_tokens.KINDS):
        counted = control_tokens.play(control_tokens.Job(FOLDER / f"{template}.jinja", kind, 150, seed))
        assert (counted.passed, counted.refused, counted.leaks) == (150, 0, []), kind


def test_a_leak_would_be_counted(control_tokens, monkeypatch):
    monkeypatch.setattr(SafeEncoder, "protect", lambda self, text, but=(): text)
    counted = control_tokens.play(control_tokens.Job(FOLDER / "qwen3.jinja", "bytes", 150, 0))
    assert len(counted.leaks) > 15


def test_a_hidden_character_beside_a_token_counts_as_what_it_is(control_tokens):
    """A token that counts as a whole word stands beside `<`, which hides as letters."""
    template = (FOLDER / "deepseek_r1_distill.jinja").read_text()
    renderer = control_tokens.ChatRenderer(control_tokens.tokenizer_of(template, "whole words"))
    result = control_tokens.places(renderer)[0].ids
    ids, calm = result([("<eo", "s.")]), result([(". eo", "s.")])
    assert [token for token in ids if token in renderer.added_ids] == [
        token for token in calm if token in renderer.added_ids
    ]


def test_the_strings_are_shared_out_to_templates_and_kinds(control_tokens):
    few, many = (control_tokens.jobs([FOLDER], count, 0) for count in (3_000, 1_000_000))
    assert (len(few), sum(job.strings for job in few)) == (6, 3_000)
    assert {job.kind for job in few} == set(control_tokens.KINDS)
    assert sum(job.strings for job in many) == 1_000_000
    assert {(job.path.stem, job.kind) for job in many} == {
        (path.stem, kind) for path in FOLDER.glob("*.jinja") for kind in control_tokens.KINDS
    }
