"""`show`: rich views of what a run gives, with the texts of tokens, and of more of them than fits at first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from toolgym.rollout.engines.base import Generation
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.rollout.views.tokens import STYLE, SeenToken, Texts, texts_of, tokens_html
from toolgym.rollout.views.trajectories import groups_html, trajectory_html
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.views.html import View, facts, fold, page

if TYPE_CHECKING:
    from toolgym.rollout.batch.batch import Batch


def show(
    value: Trajectory | Sequence[Trajectory] | Batch | Generation | Mapping[str, float],
    *,
    tokenizer: Any = None,
    first_token: int = 0,
    row: int = 0,
) -> View:
    """A rich view for a notebook, as text whose attribute `html` is the view; it says so where it leaves something out.

    Args:
        value: a trajectory; a list of them, shown by group with rewards and advantages; a `Batch`; a `Generation`; or
            figures by name, as `summarize` returns them.
        tokenizer: of the policy, or its folder or name: then tokens have their texts. None: they have ids.
        first_token: the token that the view of tokens begins with.
        row: the batch's row whose tokens are shown.

    Raises:
        ConfigError: the value is none of these, or the batch has no such row.
    """
    require_whole_number("first_token", first_token, at_least=0)
    texts = texts_of(tokenizer)
    if isinstance(value, Mapping):
        return View("\n".join(f"{name} {number:g}" for name, number in value.items()), figures_html(value))
    if isinstance(value, Trajectory):
        return View(repr(value), trajectory_html(value, texts, first_token))
    if isinstance(value, Generation):
        return View(repr(value), generation_html(value, texts, first_token))
    if isinstance(value, Sequence):
        members = require_trajectories(value)
        return View("\n".join(map(repr, members)), groups_html(members))
    if not hasattr(value, "response_mask"):
        raise ConfigError(f"show takes a trajectory, a list of them, a Batch or figures by name, got {value!r:.200}")
    from toolgym.rollout.views.batches import batch_html  # needs torch

    return View(repr(value), batch_html(value, texts, row, first_token))


def figures_html(figures: Mapping[str, float]) -> str:
    """Figures by the first part of their names."""
    parts = [
        fold(group, facts((name, f"{number:.6g}") for name, number in rows), shown=True)
        for group, rows in groupby(sorted(figures.items()), lambda item: item[0].rpartition("/")[0] or "all")
    ]
    return page(f"{len(figures)} figures", *parts)


def metrics_html(metrics: Any) -> str:
    """The figures of a `RunMetrics`."""
    return figures_html(metrics.metrics())


def settings_html(settings: Any) -> str:
    """The fields of a dataclass that can be made without arguments; those that have their default are folded."""
    default = type(settings)()
    rows = [(item.name, getattr(settings, item.name)) for item in dataclasses.fields(settings)]
    chosen = [(name, value) for name, value in rows if value != getattr(default, name)]
    rest = [row for row in rows if row not in chosen]
    return page(type(settings).__name__, facts(chosen), fold(f"{len(rest)} defaults", facts(rest)))


def generation_html(generation: Generation, texts: Texts | None = None, first_token: int = 0) -> str:
    columns = zip(generation.token_ids, generation.logprobs, generation.weight_versions, strict=True)
    tokens = [SeenToken(0, 0, token, "policy", logprob, version) for token, logprob, version in columns]
    payloads = [(name, f"{array.dtype} {list(array.shape)}") for name, array in generation.aligned.items()]
    rows = [("finish reason", generation.finish_reason), ("cached tokens", generation.cached_tokens), *payloads]
    picture = tokens_html(tokens, texts, first_token)
    return page(f"generation, {len(tokens)} tokens", facts(rows), picture, style=STYLE)
