"""A batch of tensors in a notebook: shapes, a picture of its rows, and the tokens of one of them."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.batch.batch import Batch
from toolgym.rollout.batch.fields import FIELDS, SHAPES, dtype_name
from toolgym.rollout.views.tokens import STYLE, SeenToken, Texts, tokens_html
from toolgym.tools.errors import ConfigError
from toolgym.tools.views.html import fold, grid, note, page

MOST_ROWS = 64
"""Rows of the picture."""

_PAD, _PROMPT, _POLICY, _ENV = range(4)
_COLOURS = {"padding": "rgba(128,128,128,.15)", "prompt": "#8a8f98", "policy": "#2f9e5f", "env": "#5b82f0"}


def batch_html(batch: Batch, texts: Texts | None = None, row: int = 0, first_token: int = 0) -> str:
    """Shapes and types of the tensors, a picture of the tokens' kinds, and the tokens of one row. Raises ConfigError if
    the batch has no such row."""
    if not 0 <= row < len(batch):
        raise ConfigError(f"the batch has {len(batch)} rows, so row is one of 0 to {len(batch) - 1}, got {row!r}")
    places = {field.name: SHAPES[field.place] for field in FIELDS}
    tensors = [
        (name, tuple(value.shape), places.get(name, "[rows, response, ...]"), dtype_name(value.dtype))
        for name, value in batch.tensors().items()
    ]
    opened = texts is not None or row > 0 or first_token > 0
    title = f"row {row} of {len(batch)}: {batch.ids[row]}, reward {float(batch.rewards[row]):g}"
    return page(
        repr(batch)[1:-1],
        _picture(batch),
        fold(title, tokens_html(_row_tokens(batch, row), texts, first_token), shown=opened),
        fold(f"{len(tensors)} tensors", grid(["name", "shape", "meaning", "dtype"], tensors), shown=True),
        style=STYLE,
    )


def _kinds(batch: Batch, rows: slice) -> NDArray[np.int64]:
    """The kind of each token of some rows, `[rows, prompt + response]`."""
    kinds: NDArray[np.int64] = batch.attention_mask[rows].cpu().numpy() * _ENV
    width = batch.prompts.shape[1]
    kinds[:, :width][kinds[:, :width] > 0] = _PROMPT
    kinds[:, width:][batch.response_mask[rows].cpu().numpy() > 0] = _POLICY
    return kinds


def _picture(batch: Batch) -> str:
    """A line for each row, coloured by kind, as SVG: one path for each kind."""
    kinds = _kinds(batch, slice(0, MOST_ROWS))
    paths: list[list[str]] = [[], [], [], []]
    for row, line in enumerate(kinds):
        ends = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), len(line)]
        for start, end in itertools.pairwise(ends):
            paths[line[start]].append(f"M{start} {row}.5h{end - start}")
    strokes = zip(paths, _COLOURS.values(), strict=True)
    shapes = "".join(f'<path d="{"".join(path)}" stroke="{colour}" stroke-width=".8"/>' for path, colour in strokes)
    size = f'viewBox="0 0 {kinds.shape[1]} {len(kinds)}" width="100%" height="{min(14 * len(kinds), 320)}"'
    legend = "".join(f'<i style="background:{colour}">&nbsp;&nbsp;</i> {kind} ' for kind, colour in _COLOURS.items())
    more = note(f"The first {MOST_ROWS} of {len(batch)} rows are drawn.") if len(batch) > MOST_ROWS else ""
    return f'<div class="n">{legend}</div><svg {size} preserveAspectRatio="none">{shapes}</svg>{more}'


def _row_tokens(batch: Batch, row: int) -> list[SeenToken]:
    kinds, width = _kinds(batch, slice(row, row + 1))[0].tolist(), batch.prompts.shape[1]
    columns = [batch.rollout_log_probs[row], batch.weight_versions[row], batch.token_rewards[row]]
    names = {number: name for name, number in batch.version_numbers.items()}
    tokens, turn = [], -1
    for place, (token, kind) in enumerate(zip(batch.input_ids[row].tolist(), kinds, strict=True)):
        turn += kind == _POLICY != kinds[place - 1]
        if kind == _POLICY:
            logprob, version, reward = (column[place - width].item() for column in columns)
            values = {"reward": reward} if reward else {}
            tokens.append(SeenToken(0, turn, token, "policy", logprob, names.get(version, str(version)), values))
        elif kind != _PAD:
            tokens.append(SeenToken(0, turn, token, "prompt" if kind == _PROMPT else "env"))
    return tokens
