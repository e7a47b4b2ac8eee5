"""Recording a run, and playing it again without its engine and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.recording.engine import CassetteEngine as CassetteEngine
    from toolgym.rollout.recording.engine import JournaledEngine as JournaledEngine
    from toolgym.rollout.recording.engine import RecordingEngine as RecordingEngine
    from toolgym.rollout.recording.recorder import recorded as recorded
    from toolgym.rollout.recording.replay import Difference as Difference
    from toolgym.rollout.recording.replay import Replay as Replay
else:
    __getattr__, __dir__ = lazy_names(__name__)
