"""`wrap` on objects shaped like those of GEM, which `real/test_gem.py` has for real."""

from __future__ import annotations

import random

import pytest

from tests.envs.foreign.shapes import class_of
from toolgym.envs import wrap
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError

GemBase = class_of("gem.core", "Env")


class Dice(GemBase):
    """Draws from the global generator, at `reset` and at each step, as GEM's games do."""

    __module__ = "gem.envs.game_env.dice"

    def reset(self, seed=None):
        random.seed(seed)
        self.sides = random.randint(2, 10**6)
        return f"A die of {self.sides} sides.", {"suffix": "Bet."}

    def step(self, action):
        thrown = random.randint(1, self.sides)
        return f"It shows {thrown}", 0.25, action == "stop", False, {"suffix": "Bet.", "parsed_action": action}


async def test_gem_draws_from_a_generator_of_its_own():
    await check_env(wrap(Dice), ["1", "2", "stop"], silent_reward=16.0, full_reward=100.0)
    async with wrap(Dice) as env, wrap(Dice) as other:
        stories = []
        for one in (env, other):
            stories.append([(await one.reset(seed=3))[0]])
        for _ in range(3):
            random.seed(0)  # the program draws too
            for one, story in zip((env, other), stories, strict=True):
                story.append((await one.step("1")).obs)
        assert stories[0] == stories[1]
        assert stories[0][0][0]["content"].endswith("sides.\nBet.")
        assert stories[0][1][0]["content"].endswith("\nBet.")
        assert stories[0][1] != stories[0][2]


def test_gems_wrapper_that_restates_is_refused():
    restating = type("ObservationWrapper", (GemBase,), {"__module__": "gem.wrappers.observation_wrapper"})
    made = restating()
    made.env = Dice()
    with pytest.raises(ConfigError, match="leave that wrapper out"):
        wrap(made)
