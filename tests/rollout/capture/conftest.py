from __future__ import annotations

import pytest

from tests.rollout.capture.played_agent import PlayedAgent


@pytest.fixture
def play(scripted, tokenizer):
    """Make an agent whose policy gives these turns."""

    def make(*answers, **options):
        return PlayedAgent(scripted, tokenizer, answers, **options)

    return make
