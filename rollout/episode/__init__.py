"""One episode of a policy and an env: its state, its budget, and what it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.episode.episode import Episode as Episode
    from toolgym.rollout.episode.observer import EpisodeObserver as EpisodeObserver
    from toolgym.rollout.episode.observer import Phase as Phase
    from toolgym.rollout.limits import EpisodeLimits as EpisodeLimits
    from toolgym.rollout.limits import HistoryMode as HistoryMode
    from toolgym.rollout.limits import TruncationPolicy as TruncationPolicy
else:
    __getattr__, __dir__ = lazy_names(__name__)
