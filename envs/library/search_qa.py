"""`SearchQAEnv`: answer a question with the help of a search, and give the answer between `<answer>` tags."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from toolgym.envs.base import Action
from toolgym.envs.library.embedded import DATA, embedded_rows
from toolgym.envs.rewards.qa import AnswerScorer, Measure, gold_answers
from toolgym.envs.tasks.loading import load_tasks
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.sources import TaskList, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import ToolFunction
from toolgym.tools.message import Message, assistant, text_of, tool_call, user
from toolgym.tools.schema import ToolSchema
from toolgym.tools.search.open_page import OpenPageTool
from toolgym.tools.search.retriever import Retriever
from toolgym.tools.search.tool import SearchTool

Convention = Literal["tools", "tags"]
"""The form of a search: a tool call as the policy's model writes them, or `<search>query</search>`."""

CORPUS = DATA / "search_qa_corpus.jsonl"

INSTRUCTIONS: Mapping[Convention, str] = {
    "tools": (
        "Answer the question. Think first, and look up what you do not know with the tool `search`, as often as you "
        "need: what one search finds may be what the next one asks for. At the end give the answer alone, in a few "
        "words, between tags: <answer>your answer</answer>."
    ),
    "tags": (
        "Answer the question. Think first, between <think> and </think>. To look something up, write "
        "<search>your query</search> and stop: what was found then comes between <information> and </information>. "
        "Search as often as you need: what one search finds may be what the next one asks for. At the end give the "
        "answer alone, in a few words, between tags: <answer>your answer</answer>."
    ),
}


class SearchQAEnv(ToolEnv):
    """An env whose policy answers questions and has a search. A task without right answers is a `ConfigError` at
    `reset`.

    Args:
        tasks: where questions come from, see `load_questions`. None: 42 questions about an invented archipelago, over
            128 passages; each needs two searches.
        tool_config: options of the search, see `toolgym.tools.search.tool.SearchConfig`: `corpus` for a file of
            passages, or `retrieval_service_url` for a server. Without either it searches the embedded passages.
        retriever: search with this one instead; it stays the caller's to close.
        reward: what the reward is made of: `em`, exact match, or `f1`, of words.
        format_weight: the part of the reward that is for the form of the answer, from 0 to 1.
        open_page: whether the policy also has the tool `open_page`, which shows a whole passage by its id. With the
            option `max_passage_chars` in `tool_config`, searches show the beginning of each passage.
        tools: further tools of the policy, which stay the caller's to close.
        convention: how the policy asks for a search. With `tags` the chat template is given no tool, actions that are
            text are read by the parser `search_r1` (a runner needs `RunConfig(parser="search_r1")`), and results stand
            between `<information>` tags.
        env_kwargs: the other arguments of `ToolEnv`, such as `max_turns` and `tool_timeout`.
    """

    def __init__(
        self,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        tool_config: Mapping[str, Any] | None = None,
        retriever: Retriever | None = None,
        reward: Measure = "em",
        format_weight: float = 0.0,
        open_page: bool = False,
        tools: Sequence[BaseTool | ToolFunction[..., Any]] = (),
        convention: Convention = "tools",
        **env_kwargs: Any,
    ) -> None:
        _check_convention(convention)
        self.convention = convention
        env_kwargs.setdefault("scorer", AnswerScorer.checked(reward, format_weight))
        config = dict(tool_config or {})
        if retriever is None and not {"corpus", "retrieval_service_url"} & set(config):
            config |= {"corpus": str(CORPUS), "index": ":memory:"}
        config.setdefault("show_ids", convention == "tools")
        if convention == "tags":
            if open_page or tools:
                raise ConfigError('with convention="tags" the policy only searches: leave open_page and tools out')
            config.setdefault("result_tag", "information")
            env_kwargs.setdefault("parser", "search_r1")
        search = SearchTool(config, retriever=retriever)
        owned: list[BaseTool] = [search]
        if open_page:
            options = {name: config[name] for name in ("max_result_chars",) if name in config}
            owned.append(OpenPageTool(options, retriever=search.retriever))
        env_kwargs["owns_tools"] = owned
        super().__init__([*owned, *tools], tasks if tasks is not None else _embedded(convention), **env_kwargs)

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        return super().tool_schemas if self.convention == "tools" else []

    def prepare(self, task: Task) -> Task:
        gold_answers(task)  # a row without answers is an error now, and not when it is scored
        return task

    def gold_actions(self) -> list[Action] | None:
        if self.task is None:
            return None
        searches = self.task.extra_info.get("searches") or ()
        answer = f"<answer>{gold_answers(self.task)[0]}</answer>"
        if self.convention == "tags":
            return [*(f"<search>{query}</search>" for query in searches), answer]
        return [*(_search(number, query) for number, query in enumerate(searches)), assistant(answer)]


def load_questions(source: str | Path | Iterable[Mapping[str, Any]], *, convention: Convention = "tools") -> TaskList:
    """Read questions, and put the instructions of `SearchQA-v0` before each. Errors are those of `load_tasks`.

    Args:
        source: a file or rows, as `load_tasks` takes them, with the columns `question` and `golden_answers`, as those
            of FlashRAG and Search-R1.
        convention: how the policy asks for a search.
    """
    _check_convention(convention)
    loaded = load_tasks(source, columns={"prompt": "question", "ground_truth": "golden_answers"})
    tasks = []
    for task in map(loaded.task, range(loaded.size)):
        gold_answers(task)
        tasks.append(replace(task, messages=(_asked(text_of(task.messages[0]["content"]), convention),)))
    return TaskList(tasks)


@functools.cache
def _embedded(convention: Convention) -> TaskList:
    tasks = []
    for row in embedded_rows("search_qa"):
        prompt, truth = [_asked(row["question"], convention)], {"target": row["answers"]}
        extra = {"index": row["id"], **{name: row[name] for name in ("question", "searches", "supports")}}
        task = verl_row("toolgym/search_qa", prompt, truth, extra, ability="fact-reasoning")
        tasks.append(Task.from_row(task))
    return TaskList(tasks)


def _asked(question: str, convention: Convention) -> Message:
    return user(f"{INSTRUCTIONS[convention]}\n\nQuestion: {question}")


def _check_convention(convention: Convention) -> None:
    if convention not in get_args(Convention):
        raise ConfigError(f"convention must be one of {', '.join(get_args(Convention))}, got {convention!r}")


def _search(number: int, query: str) -> Message:
    return assistant("", [tool_call("search", {"query_list": [query]}, id=f"call_{number}")])
