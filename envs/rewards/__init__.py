"""Scorers, which give an episode its reward; `toolgym.envs.rewards.base` has their contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.envs.rewards.answer import exact as exact
    from toolgym.envs.rewards.answer import numeric as numeric
    from toolgym.envs.rewards.base import weighted as weighted
    from toolgym.envs.rewards.conduct import THINK as THINK
    from toolgym.envs.rewards.conduct import called as called
    from toolgym.envs.rewards.conduct import called_successfully as called_successfully
    from toolgym.envs.rewards.conduct import failed_calls as failed_calls
    from toolgym.envs.rewards.conduct import overlong_penalty as overlong_penalty
    from toolgym.envs.rewards.conduct import turn_format as turn_format
    from toolgym.envs.rewards.judge import LLMJudge as LLMJudge
    from toolgym.envs.rewards.math_answer import same_value as same_value
    from toolgym.envs.rewards.qa import AnswerScorer as AnswerScorer
    from toolgym.envs.rewards.unit_tests import UnitTests as UnitTests
    from toolgym.tools.library.final_answer import score_final_answer as score_final_answer
else:
    __getattr__, __dir__ = lazy_names(__name__)
