"""`SearchTool` with a retriever in this process, and what its model reads."""

from __future__ import annotations

import asyncio
from types import MappingProxyType

import pytest

import toolgym
from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.testing import ToolSuite
from toolgym.tools import Passage, Retriever, SearchTool
from toolgym.tools.errors import ConfigError, RetrievalError
from toolgym.tools.search.tool import NO_QUERIES, SEARCH_FAILED, render_passages


class Words(Retriever):
    """Finds the passages of a few that have a word of the query."""

    passages = (Passage("Paris", "capital of France"), Passage("Rome", "capital of Italy"), Passage("Cats", "animals"))

    def __init__(self, error=None):
        self.error, self.running, self.most, self.closed = error, 0, 0, False

    async def search(self, queries, topk):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        if self.error is not None:
            raise self.error
        return [
            [one for one in self.passages if set(query.split()) & set(one.text.split())][:topk] for query in queries
        ]

    async def close(self):
        self.closed = True


class TestSearch(ToolSuite):
    arguments = MappingProxyType({"query_list": ["capital"]})
    forks = True

    @pytest.fixture
    def tool(self):
        return SearchTool(retriever=Words())


async def searched(tool, *queries, **kwargs):
    instance = await tool.create()
    try:
        return await tool.execute(instance, {"query_list": list(queries)}, **kwargs)
    finally:
        await tool.release(instance)


async def test_the_model_reads_numbered_passages_for_each_query():
    tool = SearchTool({"topk": 2}, retriever=Words())
    text, reward, metrics = await searched(tool, "capital city", "animals")
    assert text == (
        "Doc 1 (Title: Paris)\ncapital of France\n\nDoc 2 (Title: Rome)\ncapital of Italy\n---\n"
        "Doc 1 (Title: Cats)\nanimals"
    )
    assert (reward, metrics["status"], metrics["query_count"], metrics["total_results"]) == (0.0, "ok", 2, 3)
    text, _, _ = await searched(tool, "capital", topk=1)
    assert text == "Doc 1 (Title: Paris)\ncapital of France"
    text, _, metrics = await searched(tool, "nothing")
    assert (text, metrics["status"]) == ("No search results found.", "no_results")


async def test_a_failure_is_the_infrastructure_s_and_names_no_host_to_the_model():
    tool = SearchTool(retriever=Words(RetrievalError("http://secret:1 cannot be reached")))
    text, _, metrics = await searched(tool, "a")
    assert text == SEARCH_FAILED
    assert metrics["infra_failure"]
    assert "secret" in metrics["error"]


@pytest.mark.parametrize("queries", [[], [""], [3], "text", None])
async def test_other_arguments_are_told_to_the_model_where_the_schema_lets_them_pass(queries):
    tool = SearchTool(retriever=Words())
    assert (await tool.execute(await tool.create(), {"query_list": queries})).text == NO_QUERIES


async def test_in_an_env_the_model_searches_and_answers():
    task = Task(({"role": "user", "content": "What is the capital of France?"},), ground_truth="Paris")
    tool = SearchTool(retriever=Words())
    env = ToolEnv([tool], [task], scorer=lambda text, task: float(task.ground_truth in text))
    await env.reset(seed=0)
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": {"query_list": ["France"]}}}
    result = await env.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert result.obs[0]["content"] == "Doc 1 (Title: Paris)\ncapital of France"
    assert (await env.step({"role": "assistant", "content": "It is Paris."})).reward == 1.0
    await env.close()


async def test_no_more_calls_at_once_than_the_options_say():
    retriever = Words()
    tool = SearchTool({"num_workers": 3}, retriever=retriever)
    await asyncio.gather(*(searched(tool, "capital") for _ in range(12)))
    assert retriever.most == 3
    await tool.close()
    assert not retriever.closed  # the caller's


async def test_long_results_are_cut_and_say_so():
    text = render_passages([[Passage("T", "x" * 100)]], 64)
    assert text.startswith("Doc 1 (Title: T)\nxxx")
    assert text.endswith("\n... [53 characters cut]")


def test_it_is_made_from_a_file_of_verl_s_shape():
    config = {"retrieval_service_url": "http://127.0.0.1:8000/retrieve", "default_timeout": 5, "type": "native"}
    [tool] = toolgym.from_config({"tools": [{"class_name": "toolgym.tools.SearchTool", "config": config}]})
    assert tool.options.timeout == 5
    assert tool.retriever.urls == ("http://127.0.0.1:8000/retrieve",)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "give one of the options 'retrieval_service_url'"),
        ({"corpus": "c.jsonl", "retrieval_service_url": "http://a/retrieve"}, "give one of the options"),
        ({"corpus": "nosuch.jsonl"}, "nosuch.jsonl"),
        ({"protocol": "rest"}, "option 'protocol'"),
        ({"retrieval_service_url": "no address"}, "address of a retrieval server"),
        ({"topkk": 3}, "unknown option 'topkk', did you mean 'topk'"),
        ({"topk": 0}, "option 'topk'"),
    ],
)
def test_what_cannot_be_used_is_refused(config, expected):
    with pytest.raises(ConfigError, match=expected):
        SearchTool(config)


def test_a_schema_without_the_argument_is_refused():
    schema = {"type": "function", "function": {"name": "s", "parameters": {"type": "object", "properties": {}}}}
    with pytest.raises(ConfigError, match="query_list"):
        SearchTool(None, schema, retriever=Words())
