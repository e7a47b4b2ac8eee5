"""`show`: rich views of what a run gives, with the texts of tokens, and of more of them than fits at first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.rollout.views.tokens import texts_of
from toolgym.rollout.views.trajectories import groups_html, trajectory_html
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.views.html import View

if TYPE_CHECKING:
    from toolgym.rollout.batch.batch import Batch


def show(
    value: Trajectory | Sequence[Trajectory] | Batch, *, tokenizer: Any = None, first_token: int = 0, row: int = 0
) -> View:
    """A rich view for a notebook, as text whose attribute `html` is the view; it says so where it leaves something out.

    Args:
        value: a trajectory; a list of them, shown by group with rewards and advantages; or a `Batch`.
        tokenizer: of the policy, or its folder or name: then tokens have their texts. None: they have ids.
        first_token: the token that the view of tokens begins with.
        row: the batch's row whose tokens are shown.

    Raises:
        ConfigError: the value is none of these, or the batch has no such row.
    """
    require_whole_number("first_token", first_token, at_least=0)
    texts = texts_of(tokenizer)
    if isinstance(value, Trajectory):
        return View(repr(value), trajectory_html(value, texts, first_token))
    if isinstance(value, Sequence):
        members = require_trajectories(value)
        return View("\n".join(map(repr, members)), groups_html(members))
    if not hasattr(value, "response_mask"):
        raise ConfigError(f"show takes a trajectory, a list of them, or a Batch, got {value!r:.200}")
    from toolgym.rollout.views.batches import batch_html  # needs torch

    return View(repr(value), batch_html(value, texts, row, first_token))
