"""`prepare`: the tasks of a public data set, out of the files that users download."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from toolgym.envs.tasks.loading import folder_records, records
from toolgym.envs.tasks.prepare.programs import GENERATED_TESTS, contest, mbpp, program
from toolgym.envs.tasks.prepare.readers import (
    DataRecord,
    Prepared,
    UnusableRecordError,
    dapo_math,
    gsm8k,
    math,
    question,
)
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, shorten

_CHECKED = (
    "Solve the problem step by step. Check your answer with the tool calc_gsm8k_reward before you give it, and solve "
    "the problem again if it is wrong. End with `#### <number>`."
)
_NUMBER = "Solve the problem step by step. End with `#### <number>`."
_BOXED = "Solve the problem step by step. End with the answer in \\boxed{}."
_SEARCH = (
    "Answer the question. Look up what you do not know with the tool search. End with the answer alone, in a few "
    "words, between <answer> and </answer>."
)
_PROGRAM = "Solve the task in Python. End with the whole program in one block that begins with ```python."


class Recipe(NamedTuple):
    """The way from a data set to tasks: `data_source` and `ability` of its rows as verl knows them, their env, first
    message and reader. `plain` is the first message for an env without the tool that the rows have kwargs for.
    """

    source: str
    ability: str
    env_id: str
    system: str
    read: Callable[[DataRecord], Prepared]
    plain: str = ""
    repeats: bool = False


def _searched(source: str) -> Recipe:
    return Recipe(f"searchR1_{source}", "fact-reasoning", "SearchQA-v0", _SEARCH, question)


def _judged(source: str, read: Callable[[DataRecord], Prepared]) -> Recipe:
    return Recipe(source, "code", "CodeJudge-v0", _PROGRAM, read)


RECIPES: dict[str, Recipe] = {
    "gsm8k": Recipe("openai/gsm8k", "math", "GSM8K-v0", _CHECKED, gsm8k, plain=_NUMBER),
    "math": Recipe("DigitalLearningGmbH/MATH-lighteval", "math", "Math-v0", _BOXED, math),
    "dapo-math": Recipe("math_dapo", "math", "Math-v0", _BOXED, dapo_math, repeats=True),
    "hotpotqa": _searched("hotpotqa"),
    "2wiki": _searched("2wikimultihopqa"),
    "musique": _searched("musique"),
    "nq": _searched("nq"),
    "triviaqa": _searched("triviaqa"),
    "popqa": _searched("popqa"),
    "bamboogle": _searched("bamboogle"),
    "mbpp": _judged("mbpp", mbpp),
    "humaneval": _judged("openai_humaneval", program("humaneval")),
    "apps": _judged("apps", contest),
    "taco": _judged("taco", contest),
    "codecontests": _judged("codecontests", program("codecontests")),
    "codeforces": _judged("codeforces", program("codeforces")),
    "livecodebench": _judged("livecodebench", program("livecodebench")),
    "leetcode": _judged("leetcode", program("leetcode")),
    "synthetic-1": _judged("synthetic-1", program("synthetic-1")),
    "deepcoder": _judged("deepcoder", program("deepcoder")),
}


@dataclass
class Preparation:
    """The tasks of a data set, read while one iterates over them.

    Args:
        name: of the data set, see `RECIPES`.
        path: the file as downloaded, or a folder of such.
        split: `extra_info.split` of the rows. If the records say their splits (`mbpp`), only those of this split. None:
            what the records say, else the split in the file's name (`test.jsonl`), else `train`.
        system: the first message in place of the data set's own; empty: none.
        agent_name: the rows' `agent_name`, by which verl chooses its agent loop; None: no such column.
        with_tools_kwargs: whether rows have what the env's tools are made with. Without, they fit any env.
        ignore_columns: columns that may be overlooked, although their names or contents are those of columns that
            change what a right answer is. Default: such a column is an error.

    Attributes:
        left_out: how many records made no task, by the reason.

    Raises:
        UnknownNameError: there is no such data set; names the nearest one. While one iterates, also: no such file.
        ConfigError: while one iterates: a file or record cannot be read; names file, row and field.
    """

    name: str
    path: str | Path
    split: str | None = None
    system: str | None = None
    agent_name: str | None = None
    with_tools_kwargs: bool = True
    ignore_columns: Collection[str] = ()
    left_out: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        if self.name not in RECIPES:
            raise UnknownNameError(
                f"there is no data set {self.name!r}{nearest(str(self.name), RECIPES) or ';'} "
                f"expected one of: {', '.join(RECIPES)}"
            )

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.name]

    def __iter__(self) -> Iterator[Task]:
        self.left_out.clear()
        seen: set[str] = set()
        index = 0
        path = Path(self.path)
        folder = path if path.is_dir() else path.parent
        rows = folder_records(path, skip=GENERATED_TESTS) if path.is_dir() else records(path)
        for where, _, fields in rows:
            prepared = self._prepared(where, fields, folder)
            if prepared is None:
                continue
            if self.split is not None and prepared.split not in (None, self.split):
                self.left_out["belongs to another split"] += 1
            elif self.recipe.repeats and prepared.id in seen:
                self.left_out["is there already, with the same id"] += 1
            else:
                if self.recipe.repeats and prepared.id is not None:
                    seen.add(prepared.id)
                yield Task.from_row(self._row(prepared, index))
                index += 1

    def _prepared(self, where: str, fields: object, folder: Path) -> Prepared | None:
        try:
            if not isinstance(fields, Mapping):
                raise ConfigError(f"expected a JSON object, got {shorten(repr(fields), 60)}")
            return self.recipe.read(DataRecord(fields, folder, self.ignore_columns))
        except UnusableRecordError as reason:
            self.left_out[str(reason)] += 1
            return None
        except ConfigError as error:
            raise type(error)(f"{where}: {error}") from error

    def _row(self, prepared: Prepared, index: int) -> dict[str, Any]:
        recipe, kwargs = self.recipe, prepared.tools_kwargs if self.with_tools_kwargs else {}
        system = recipe.system if self.with_tools_kwargs else recipe.plain or recipe.system
        system = system if self.system is None else self.system
        extra = {
            "split": prepared.split or self.split or _named_split(Path(self.path)),
            "index": index,
            **prepared.extra_info,
        }
        if prepared.id is not None:
            extra["id"] = prepared.id
        if kwargs:
            extra["tools_kwargs"] = kwargs
        if prepared.interaction_kwargs:
            extra["interaction_kwargs"] = prepared.interaction_kwargs
        prompt = [{"role": "user", "content": prepared.question}]
        if system:
            prompt.insert(0, {"role": "system", "content": system})
        columns = {} if self.agent_name is None else {"agent_name": self.agent_name}
        extra["need_tools_kwargs"] = bool(kwargs)
        return verl_row(recipe.source, prompt, prepared.ground_truth, extra, ability=recipe.ability, **columns)


def _named_split(path: Path) -> str:
    """The split in a file's name, as `validation` of `validation-00000-of-00001.parquet`; else `train`."""
    names = {*re.split(r"[^a-z]+", path.name.lower())} & {"train", "test", "validation", "valid", "val", "dev"}
    return names.pop() if len(names) == 1 and not path.is_dir() else "train"
