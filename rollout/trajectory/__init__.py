"""Records of episodes: token sequences, trajectories, and their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.trajectory.failures import RunFailedError as RunFailedError
    from toolgym.rollout.trajectory.file import TrajectoryWriter as TrajectoryWriter
    from toolgym.rollout.trajectory.file import read_trajectories as read_trajectories
    from toolgym.rollout.trajectory.summary import summarize as summarize
    from toolgym.rollout.trajectory.token_sequence import Segment as Segment
    from toolgym.rollout.trajectory.token_sequence import TokenSequence as TokenSequence
    from toolgym.rollout.trajectory.trajectory import Failure as Failure
    from toolgym.rollout.trajectory.trajectory import Peer as Peer
    from toolgym.rollout.trajectory.trajectory import Trajectory as Trajectory
    from toolgym.rollout.trajectory.trajectory import Turn as Turn
    from toolgym.rollout.trajectory.withholding import withhold_constrained as withhold_constrained
else:
    __getattr__, __dir__ = lazy_names(__name__)
