"""Trajectories and groups in a notebook: real ones, of the viewer's demo."""

from __future__ import annotations

import html.parser
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import toolgym
from toolgym.rollout import group_advantages, read_trajectories, show, tiny_policy_path
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.rollout.views.tokens import MOST_TOKENS, tokens_of
from toolgym.tools.errors import ConfigError

DEMO = Path(toolgym.__file__).parent / "viewer" / "demo"
VOID = {"meta", "br", "path"}


@pytest.fixture(scope="module")
def demo():
    return [trajectory for step in (0, 1) for trajectory in read_trajectories(DEMO / f"{step}.jsonl")]


class Balanced(html.parser.HTMLParser):
    """Collects titles of tokens, and fails for tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.titles, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.titles += [value for name, value in attributes if name == "title"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_each_trajectory_shows_conversation_turns_tokens_and_facts(demo):
    for trajectory in demo:
        page = Balanced(trajectory._repr_html_())
        assert len(page.titles) == len(list(tokens_of(trajectory)))
        text = " ".join(page.texts)
        for part in (
            "conversation, ",
            "turns, ",
            "tokens, ",
            "facts",
            trajectory.stop_reason.value,
            trajectory.group_id,
        ):
            assert part in text
        for problem in trajectory.problems:
            assert problem in text


def test_an_episode_of_very_many_turns_says_how_many_it_leaves_out(demo):
    page = replace(demo[0], turns=demo[0].turns[:1] * 300)._repr_html_()
    assert len(page) < 1_000_000
    assert "[100 more turns left out: trajectory.turns[200:]]" in page


def test_a_token_tells_all_that_is_known_of_it(demo):
    trajectory = next(each for each in demo if len(each.turns) > 1)
    titles = Balanced(trajectory._repr_html_()).titles
    policy = [title for title in titles if "mask 1" in title]
    assert len(policy) == trajectory.policy_tokens
    token = next(token for token in tokens_of(trajectory) if token.kind == "policy")
    assert policy[0].startswith(f"id {token.id}, mask 1, log-prob {token.logprob:.4g} (")
    assert f"version {token.version}" in policy[0]
    assert "mask 0" in titles[0]


def test_tokens_have_texts_where_there_is_a_tokenizer(demo):
    trajectory = next(each for each in demo if len(each.turns) > 1)
    first = "".join(trajectory.turns[0].text.split())
    without = show(trajectory)
    assert without == repr(trajectory)
    assert "These are ids." in without.html
    view = Balanced(show(trajectory, tokenizer=str(tiny_policy_path())).html)
    assert "These are ids." not in " ".join(view.texts)
    assert first in "".join("".join(view.texts).replace("⏎", "").split())


def test_a_trajectory_of_32000_tokens_is_small_and_says_what_it_leaves_out(demo):
    tokens = 32_000
    segment = Segment.policy(np.arange(tokens) % 500, np.full(tokens, -0.5), ["v<1>"] * tokens)
    messages = ({"role": "user", "content": "&" * tokens * 4}, {"role": "assistant", "content": "<" * tokens * 4})
    long = replace(demo[0], sequences=(TokenSequence([1], (segment,)),), messages=messages)
    page = show(long, tokenizer=Escaped()).html
    assert len(page) < 1_000_000
    assert f"Tokens 0 to {MOST_TOKENS:,} of 32,001 are shown; the next ones: " in page
    assert "[... 123000 characters left out ...]" in page
    rest = show(long, first_token=31_001).html
    assert len(Balanced(rest).titles) == 1_000
    assert "Tokens 31,001 to 32,001 of 32,001 are shown." in rest


class Escaped:
    def decode(self, ids):
        return "<&" * 40


def test_groups_have_their_rewards_and_advantages(demo):
    view = show(demo)
    assert view.splitlines() == list(map(repr, demo))
    page = Balanced(view.html)
    text = " ".join(page.texts)
    assert f"{len(demo)} trajectories in {len({each.group_id for each in demo})} groups" in text
    for trajectory, advantage in zip(demo, group_advantages(demo), strict=True):
        assert trajectory.stop_reason.value in text
        assert ("not trained on" if advantage is None else f"{advantage:+.3f}") in page.texts


def test_a_list_of_thousands_says_how_many_it_leaves_out(demo):
    many = [replace(each, id=f"{each.id}-{n}", group_id=f"{each.group_id}-{n}") for n in range(100) for each in demo]
    page = show(many).html
    assert f"[{len(many) - 200} trajectories left out: show a slice of the list]" in page
    assert len(page) < 300_000


@pytest.mark.parametrize("value", [3, "text", [3], object()])
def test_what_cannot_be_shown_is_an_error(value):
    with pytest.raises(ConfigError, match="got "):
        show(value)
    with pytest.raises(ConfigError, match="first_token must be a whole number"):
        show([], first_token=-1)
