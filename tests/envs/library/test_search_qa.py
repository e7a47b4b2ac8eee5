"""`SearchQA-v0`: its questions, its rewards, and questions and passages of one's own."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest

import toolgym
from toolgym.envs import StopReason, Task, load_tasks
from toolgym.envs.library.search_qa import CORPUS, INSTRUCTIONS, SearchQAEnv, load_questions
from toolgym.rollout import RunConfig, Runner, SamplingParams, open_engine
from toolgym.rollout.engines import CallableEngine
from toolgym.testing import check_env
from toolgym.tools import BM25Retriever, Retriever, tool
from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.message import assistant, tool_call

SEARCH_R1 = {
    "id": "test_0",
    "question": "who makes sea toffee?",
    "golden_answers": ["Paper Cone Sweets"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer with <answer>…</answer>. Question: who makes sea toffee?"}],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["Paper Cone Sweets"]}},
    "extra_info": {"index": 0, "split": "train"},
}


@pytest.fixture
async def env():
    async with SearchQAEnv() as env:
        yield env


def all_tasks(env):
    return [env.tasks.task(number) for number in range(env.tasks.size)]


async def test_each_question_needs_both_of_its_searches(env):
    tasks = all_tasks(env)
    assert len(tasks) == 42
    async with BM25Retriever(CORPUS, index=":memory:") as retriever:
        assert len(retriever) == 128
        for task in tasks:
            extra = task.extra_info
            found = await retriever.search([*extra["searches"], extra["question"]], 3)
            titles = [[one.title.strip('"') for one in each] for each in found]
            first, second = extra["supports"]
            assert first in titles[0], "the first search finds the first passage"
            assert second not in titles[0], "and not the second one"
            assert second in titles[1], "which the second search finds"
            assert second not in titles[2], "and the question does not"
            texts = {one.title.strip('"'): one.contents.lower() for each in found for one in each}
            answers = [one.lower() for one in task.ground_truth["target"]]
            assert any(one in texts[second] for one in answers)
            assert not any(one in texts[first] for one in answers)


@pytest.mark.parametrize("convention", ["tools", "tags"])
async def test_the_known_solution_of_each_question_is_right(convention):
    async with SearchQAEnv(convention=convention) as env:
        for task in all_tasks(env):
            await env.reset(options={"task": task})
            actions = env.gold_actions()
            assert len(actions) == 3
            for action in actions:
                result = await env.step(action)
            assert (result.reward, result.stop_reason) == (1.0, StopReason.ANSWERED)
            assert result.info["metrics"]["score/em"] == result.info["metrics"]["score/format"] == 1.0


async def test_the_env_passes_the_checks_of_envs():
    await check_env(SearchQAEnv(), ["<answer>Vessport</answer>"])


async def test_a_partly_right_answer_scores_by_words(env):
    task = Task(({"role": "user", "content": "Who?"},), ground_truth=["Hedda Quill"])
    async with SearchQAEnv([task], reward="f1", format_weight=0.5) as env:
        await env.reset()
        result = await env.step("It is <answer>Quill</answer>")
        assert result.reward == pytest.approx(0.5 * 2 / 3 + 0.5)
        metrics = result.info["metrics"]
        assert (metrics["score/em"], metrics["score/f1"], metrics["score/format"]) == (0, pytest.approx(2 / 3), 1)


async def test_an_episode_that_never_answers_scores_nothing():
    async with SearchQAEnv(max_turns=2) as env:
        await env.reset(seed=0)
        for action in env.gold_actions()[:2]:
            result = await env.step(action)
        assert (result.reward, result.stop_reason) == (0.0, StopReason.MAX_TURNS)


async def test_the_convention_of_search_r1():
    async with SearchQAEnv(convention="tags", tool_config={"topk": 1}) as env:
        obs, info = await env.reset(seed=0)
        assert obs[0]["content"].startswith(INSTRUCTIONS["tags"])
        assert info["tools"] == []
        result = await env.step("<think>what is the money?</think><search>tern money</search>")
        text = result.obs[0]["content"]
        assert text.startswith('<information>Doc 1 (Title: "The Tern (currency)")\n')
        assert text.endswith("</information>")
        result = await env.step("<search>tern")
        assert "closing </search> is missing" in result.obs[0]["content"]


async def test_a_runner_plays_the_convention_of_search_r1():
    turns = iter(["<search>tern money</search>", "<answer>the tern</answer>"])
    prompts = []
    task = Task(({"role": "user", "content": "What is the money?"},), ground_truth="tern")
    async with open_engine("tiny") as tiny:

        async def say(request):
            prompts.append(tiny.tokenizer.decode(request.prompt_ids))
            ids = [*tiny.tokenizer.encode(next(turns)), tiny.tokenizer.eos_token_id]
            return ids, [-1.0] * len(ids)

        engine = CallableEngine(say, tokenizer=tiny.tokenizer)
        config = RunConfig(group_size=1, parser="search_r1", sampling=SamplingParams(max_new_tokens=100))
        runner = Runner("SearchQA-v0", engine, env_kwargs={"convention": "tags"}, config=config)
        [trajectory] = await runner.run([task])
    assert (trajectory.reward, trajectory.stop_reason) == (1.0, StopReason.ANSWERED)
    assert '"name": "search"' not in prompts[0]
    assert '<information>Doc 1 (Title: "The Tern (currency)")' in prompts[1]


# ---------------------------------------------------------------------- one's own


async def test_search_r1_s_parquet_files_load_as_they_are(tmp_path):
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([SEARCH_R1]), path)
    tasks = load_tasks(path)
    async with SearchQAEnv(tasks, convention="tags") as env:
        obs, _ = await env.reset()
        assert obs == SEARCH_R1["prompt"]
        assert (await env.step("<answer>paper cone sweets</answer>")).reward == 1.0
    [task] = load_questions(path).tasks
    assert task.messages[0]["content"] == f"{INSTRUCTIONS['tools']}\n\nQuestion: {SEARCH_R1['question']}"
    assert task.ground_truth == SEARCH_R1["golden_answers"]


def test_flashrag_s_rows_load_as_they_are(tmp_path):
    row = {"golden_answers": ["a", "b"], "metadata": {"type": "bridge"}}
    rows = [{"id": f"dev_{number}", "question": f"{number}?", **row} for number in range(3)]
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = load_questions(path, convention="tags").tasks
    assert [task.ground_truth for task in tasks] == [["a", "b"]] * 3
    assert tasks[1].messages[0]["content"] == f"{INSTRUCTIONS['tags']}\n\nQuestion: 1?"
    assert tasks[1].extra_info["metadata"] == {"type": "bridge"}


async def test_rows_that_cannot_be_used_are_named():
    with pytest.raises(UnknownNameError, match="no column 'golden_answers'"):
        load_questions([{"question": "a?"}])
    with pytest.raises(ConfigError, match="task '2' of a question needs its answers"):
        load_questions([{"question": "a?", "golden_answers": ["b"]}, {"question": "a?", "golden_answers": []}])
    async with SearchQAEnv([Task(({"role": "user", "content": "a?"},), id="7")]) as env:
        with pytest.raises(ConfigError, match="task '7' of a question needs its answers"):
            await env.reset()


async def test_passages_of_ones_own(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"title": "Tern", "text": "A bird."}\n')
    async with toolgym.make("SearchQA-v0", tool_config={"corpus": str(path)}) as env:
        await env.reset(seed=0)
        result = await env.step('<tool_call>{"name": "search", "arguments": {"query_list": ["tern"]}}</tool_call>')
        assert result.obs[0]["content"] == "Doc 1 (Title: Tern)\nA bird."


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"convention": "xml"}, "convention must be one of tools, tags"),
        ({"reward": "rouge"}, "reward must be one of em, f1"),
        ({"format_weight": 2}, "format_weight must be"),
        ({"tool_config": {"topkk": 1}}, "unknown option 'topkk'"),
        ({"tool_config": {"corpus": "nosuch.jsonl"}}, "nosuch.jsonl"),
        ({"max_turn": 3}, "did you mean 'max_turns'"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        SearchQAEnv(**kwargs)


async def test_an_episode_is_forked():
    async with SearchQAEnv() as env:
        await env.reset(seed=0)
        actions = env.gold_actions()
        await env.step(actions[0])
        async with await env.fork() as twin:
            for one in (env, twin):
                await one.step(actions[1])
                assert (await one.step(actions[2])).reward == 1.0
            assert (await twin.reset(seed=1))[0]


PAGES = [
    {"id": "p-7", "contents": "Tern\nA bird that " + "flies " * 40},
    {"id": "1", "contents": "Gull\nAnother bird."},
]


def step_of(name, **arguments):
    return assistant("", [tool_call(name, arguments)])


async def test_a_page_is_opened_by_the_id_that_a_search_shows(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(page) + "\n" for page in PAGES))

    @tool
    def count(id: str) -> int:
        """Count the letters of an id."""
        return len(id)

    config = {"corpus": str(path), "max_passage_chars": 20, "max_result_chars": 150}
    async with toolgym.make("SearchQA-v0", tool_config=config, open_page=True, tools=[count]) as env:
        await env.reset(seed=0)
        assert [schema.name for schema in env.tool_schemas] == ["search", "open_page", "count"]

        async def read(name, **arguments):
            result = await env.step(step_of(name, **arguments))
            return result.obs[0]["content"], result.info["tool_calls"][0].status

        text, _ = await read("search", query_list=["tern"])
        assert text == "Doc 1 (Title: Tern, id: p-7)\nA bird that flies fl... [232 more characters]"
        text, status = await read("open_page", id="p-7")
        assert (text.startswith("Tern\nA bird that flies"), status) == (True, "ok")
        assert text.endswith("... [107 more characters; go on with start=150]")
        assert (await read("open_page", id="p-7", start=150))[0].strip().endswith("flies")
        assert (await read("open_page", id="1"))[0] == "Gull\nAnother bird."
        assert await read("open_page", id="0") == ("[There is no page with the id '0']", "no_page")
    with pytest.raises(ConfigError, match="leave open_page and tools out"):
        toolgym.make("SearchQA-v0", convention="tags", open_page=True)


async def test_a_retriever_that_cannot_open_pages_is_refused():
    class Nothing(Retriever):
        async def search(self, queries, topk):
            return [[] for _ in queries]

        async def close(self):
            pass

    with pytest.raises(ConfigError, match="cannot open a passage by its id"):
        SearchQAEnv(retriever=Nothing(), open_page=True)
