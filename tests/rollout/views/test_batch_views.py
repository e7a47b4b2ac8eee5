"""A batch in a notebook."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import toolgym
from toolgym.rollout import make_batch, read_trajectories, show
from toolgym.rollout.views.batches import MOST_ROWS
from toolgym.rollout.views.tokens import tokens_of
from toolgym.tools.errors import ConfigError

DEMO = Path(toolgym.__file__).parent / "viewer" / "demo" / "0.jsonl"


@pytest.fixture(scope="module")
def trajectories():
    return list(read_trajectories(DEMO))


@pytest.fixture(scope="module")
def batch(trajectories):
    return make_batch(trajectories, pad_token_id=0)


def strokes(page):
    """For each kind of token, how many tokens the picture has of it."""
    paths = re.findall(r'<path d="([^"]*)"', page)
    lengths = [sum(map(int, re.findall(r"h(\d+)", path))) for path in paths]
    return dict(zip(("padding", "prompt", "policy", "env"), lengths, strict=True))


def test_the_picture_has_each_token_by_its_kind(batch):
    lengths = strokes(batch._repr_html_())
    width = batch.prompts.shape[1]
    tokens = int(batch.attention_mask.sum())
    assert lengths["policy"] == int(batch.response_mask.sum())
    assert lengths["prompt"] == int(batch.attention_mask[:, :width].sum())
    assert lengths["env"] == tokens - lengths["policy"] - lengths["prompt"]
    assert lengths["padding"] == batch.attention_mask.numel() - tokens


def test_a_row_shows_the_tokens_of_its_trajectory(batch, trajectories):
    for row in (0, len(batch) - 1):
        [number] = batch.select([row]).owners(trajectories)
        titles = re.findall(r'title="(id \d+, mask \d)', show(batch, row=row).html)
        if len(trajectories[number].sequences) == 1:
            expected = [f"id {each.id}, mask {int(each.kind == 'policy')}" for each in tokens_of(trajectories[number])]
            assert titles == expected


def test_the_tensors_have_their_shapes_and_meanings(batch):
    page = batch._repr_html_()
    for name, value in batch.tensors().items():
        assert f"<td>{name}</td><td>{tuple(value.shape)}</td>" in page


def test_a_large_batch_draws_some_rows_and_says_so(trajectories):
    many = [
        replace(each, id=f"{each.id}-{n}", group_id=f"{each.group_id}-{n}") for n in range(20) for each in trajectories
    ]
    large = make_batch(many, pad_token_id=0)
    page = large._repr_html_()
    assert f"The first {MOST_ROWS} of {len(large)} rows are drawn." in page
    assert len(page) < 500_000


def test_a_row_that_is_not_there_is_an_error(batch):
    with pytest.raises(ConfigError, match=f"so row is one of 0 to {len(batch) - 1}, got {len(batch)}"):
        show(batch, row=len(batch))
