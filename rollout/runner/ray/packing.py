"""Jobs and trajectories between processes. The texts of a trajectory are not sent; the driver decodes them when they
are first read. The schemas of its tools are sent once for each worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from toolgym.rollout.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tools = tuple[dict[str, Any], ...]
Decode = Callable[[Sequence[int]], str]

_TEXTS = ("_prompt_text", "_response_text")
"""Where a trajectory keeps its texts: each is a text, or a function that was not called yet."""


class Packer:
    """Packs the trajectories of one worker, which refer to its `tools` by number."""

    def __init__(self) -> None:
        self.tools: list[Tools] = []

    def pack(self, trajectory: Trajectory, *, texts: bool = False) -> bytes:
        """Pack a trajectory; with its `texts`, where the driver cannot decode them."""
        if texts:
            _ = trajectory.prompt_text, trajectory.response_text  # reading them keeps them
        state = dict(trajectory.__dict__)
        if trajectory.tools not in self.tools:
            self.tools.append(trajectory.tools)
        state["tools"] = self.tools.index(trajectory.tools)
        unread = [name for name in _TEXTS if not isinstance(state[name], str)]
        for name in unread:
            del state[name]
        return pickle.dumps((state, unread), protocol=5)


def unpack(data: bytes, tools: Sequence[Tools], decode: Decode) -> Trajectory:
    """Read what `Packer.pack` made; `decode` makes texts of token ids when they are first read."""
    state, unread = pickle.loads(data)
    state["tools"] = tools[state["tools"]]
    sequences = state["sequences"]
    for name in unread:
        last = sequences[-1] if sequences else None
        state[name] = partial(_text, decode, last, name == "_prompt_text") if last is not None else ""
    trajectory: Trajectory = object.__new__(Trajectory)
    trajectory.__dict__.update(state)
    return trajectory


def portable(error: BaseException) -> Exception:
    """An error that can be sent to another process: this one, or else one of its nearest base with the same text."""
    for kind in type(error).__mro__:
        rebuilt = error if kind is type(error) else None
        try:
            rebuilt = rebuilt or kind(str(error))
            copied = pickle.loads(pickle.dumps(rebuilt))
        except Exception:  # noqa: BLE001  it cannot be sent, so its base is tried
            continue
        if isinstance(copied, Exception) and str(copied) == str(error):
            return copied
    return RuntimeError(f"{type(error).__name__}: {error}")


class TextDecoder:
    """Decodes token ids to text in the driver, with the workers' tokenizer, which is loaded at the first text."""

    def __init__(self) -> None:
        self.packed: bytes | None = None  # a worker's tokenizer; those of the others are the same
        self._tokenizer: PreTrainedTokenizerBase | None = None

    def __call__(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens included, as `ChatRenderer.decode` gives it."""
        if self._tokenizer is None:
            assert self.packed is not None, "a trajectory came before its worker's tokenizer"
            self._tokenizer = cloudpickle.loads(self.packed)
        ids = list(token_ids)
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _text(decode: Decode, last: Any, is_prompt: bool) -> str:
    ids: np.ndarray[Any, Any] = last.prompt_ids if is_prompt else last.response_ids
    return decode(ids.tolist())
