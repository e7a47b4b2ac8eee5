"""The rules of an episode: its budgets and deadlines, the past that the policy sees, turns that were cut."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.keywords import named_fields


class HistoryMode(enum.StrEnum):
    """The past that the policy sees."""

    APPEND = "append"
    """What it generated, token by token. One sequence, also where the template would rewrite history."""
    TEMPLATE = "template"
    """What the chat template makes of them, as at inference. Several sequences where the template rewrites history."""


class TruncationPolicy(enum.StrEnum):
    """The fate of a turn that reached its length, or was aborted and not resumed. Either way it is marked
    (`Turn.truncated`).

    A turn that ended with a stop token of the caller's is closed like with `CLOSE`, and unmarked.
    """

    END = "end"
    """The episode ends, and the env scores it with the text as it was written (`BaseEnv.truncate`), whose calls are not
    run. The stop reason is `length`, `budget` if the budget left less than `max_new_tokens`, or `aborted`, which is not
    scored."""
    CLOSE = "close"
    """The chat's closing ids are appended as the env's tokens (never trained on), and the env is stepped with the text.
    If no tokens are left for them, the episode ends with `budget`."""


@named_fields
@dataclass(frozen=True)
class EpisodeLimits:
    """Budgets and deadlines of an episode.

    Attributes:
        max_prompt_tokens: most tokens of the first prompt; None: what the engine's context holds. A longer prompt is
            refused, never cut.
        max_response_tokens: most tokens behind the prompt, the env's included; None: what the context holds. It holds
            for each token sequence; and none gets longer than the first prompt and this together.
        max_resumes: how often one turn that the engine aborted goes on from what it had; 0: an abort ends it for good.
        engine_timeout: wall seconds for one request to the engine; a turn that is resumed is several.
        env_timeout: wall seconds for making the env, a fork, and each `reset` and `step` of an env that does not keep
            deadlines itself (`BaseEnv.keeps_deadlines`), as a `ToolEnv` does.
        context_timeout: wall seconds for one call of a context policy.
        turn_timeout: wall seconds for one turn of the policy and the step that follows, without scoring and without
            waiting for permits; None: as long as the other deadlines allow. It begins again when a suspended episode
            goes on.
        episode_timeout: wall seconds for the whole episode, without those that it stands still.
        score_grace: further wall seconds if the episode's scorer is at work when `episode_timeout` passes; 0: none.

    Raises:
        ConfigError: a number is not positive or of the wrong kind, or `max_resumes` or `score_grace` is negative.
    """

    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    max_resumes: int = 32
    engine_timeout: float = 600.0
    env_timeout: float = 600.0
    context_timeout: float = 120.0
    turn_timeout: float | None = None
    episode_timeout: float = 3600.0
    score_grace: float = 120.0

    def __post_init__(self) -> None:
        require_whole_number("max_resumes", self.max_resumes, at_least=0)
        for name in ("max_prompt_tokens", "max_response_tokens"):
            if getattr(self, name) is not None:
                require_whole_number(name, getattr(self, name), at_least=1)
        for name in ("engine_timeout", "env_timeout", "context_timeout", "turn_timeout", "episode_timeout"):
            value = getattr(self, name)
            if value is None and name == "turn_timeout":
                continue
            if not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")
        if not isinstance(self.score_grace, int | float) or not self.score_grace >= 0:
            raise ConfigError(f"score_grace must be a number of seconds, 0 or more, got {self.score_grace!r}")
