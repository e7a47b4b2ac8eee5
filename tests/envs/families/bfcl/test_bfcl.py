"""`BFCL/...-v0` with the real `bfcl-eval`: what its checker says of the known solutions and of silence."""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import toolgym
from toolgym.envs.families.bfcl import env as bfcl_env
from toolgym.envs.families.bfcl import package, work
from toolgym.envs.families.bfcl.package import format_call
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, SamplingParams, open_engine, rollout, tiny_policy_path
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import assistant, tool_call, user

pytest.importorskip("bfcl_eval")

SETS = ["multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context"]


def call(name: str, /, id: str = "call", **arguments):
    return assistant("", [tool_call(name, arguments, id=id)])


def make(category: str = "multi_turn_base", **kwargs):
    return toolgym.make(f"BFCL/{category}-v0", **kwargs)


async def begin(env, number: int):
    category = env.tasks.task(0).id.rpartition("_")[0]
    task = next(one for one in env.tasks.tasks if one.id == f"{category}_{number}")
    return await env.reset(options={"task": task})


async def play(env, actions) -> float:
    for at in range(200):
        result = await env.step(actions[min(at, len(actions) - 1)])
        if result.done:
            return result.reward
    raise AssertionError("the episode has no end")


async def scores(category: str, places) -> tuple[float, float]:
    """What the known solutions and silence score in all."""
    gold = silence = 0.0
    async with make(category) as env:
        for place in places:
            await env.reset(options={"task": env.tasks.task(place)})
            gold += await play(env, env.gold_actions())
            await env.reset(options={"task": env.tasks.task(place)})
            silence += await play(env, [assistant("")])
    return gold, silence


@pytest.mark.parametrize("category", SETS)
async def test_known_solutions_score_1_and_silence_scores_0(category):
    assert await scores(category, range(0, 200, 10)) == (20.0, 0.0)


@pytest.mark.long
@pytest.mark.parametrize("category", SETS)
async def test_all_200_known_solutions_score_1_and_silence_scores_0(category):
    assert await scores(category, range(200)) == (200.0, 0.0)


async def test_each_task_has_tools_of_its_own_and_each_request_follows_the_one_before():
    async with make() as env:
        assert env.tool_schemas == []
        obs, info = await begin(env, 0)
        assert obs == [user(package.entries("multi_turn_base")["multi_turn_base_0"]["question"][0][0]["content"])]
        names = {schema.name for schema in env.tool_schemas}
        assert {"cd", "mkdir", "post_tweet"} <= names
        assert info["tools"] == [schema.to_openai() for schema in env.tool_schemas]
        schema = next(one for one in env.tool_schemas if one.name == "post_tweet")
        assert schema.parameters["properties"]["tags"] == {
            **schema.parameters["properties"]["tags"],
            "type": "array",
            "items": {"type": "string"},
        }
        result = await env.step(call("cd", folder="document"))
        assert json.loads(result.obs[0]["content"]) == {"current_working_directory": "document"}
        result = await env.step("Done.")
        assert (result.done, result.obs[0]["role"]) == (False, "user")
        assert result.obs[0]["content"].startswith("Perform a detailed search using grep")
        await begin(env, 60)
        assert "cd" not in {schema.name for schema in env.tool_schemas}


async def test_episodes_at_the_same_time_do_not_see_each_other():
    envs = [make() for _ in range(4)]
    await asyncio.gather(*(begin(env, 0) for env in envs))
    await asyncio.gather(*(env.step(call("mkdir", dir_name=f"own_{at}")) for at, env in enumerate(envs)))
    listings = await asyncio.gather(*(env.step(call("ls")) for env in envs))
    for at, listing in enumerate(listings):
        assert [f"own_{other}" in listing.obs[0]["content"] for other in range(4)] == [at == one for one in range(4)]
    await asyncio.gather(*(env.close() for env in envs))


async def test_a_default_list_is_not_shared_by_episodes():
    async with make() as env:
        for _ in range(2):
            await begin(env, 90)
            posted = json.loads((await env.step(call("post_tweet", content="hello"))).obs[0]["content"])
            assert posted["mentions"] == []
            await env.step(call("mention", tweet_id=posted["id"], mentioned_usernames=["@one"]))


async def test_the_calls_of_a_turn_are_carried_out_in_their_order():
    calls = [call("mkdir", "a", dir_name="new"), call("cd", "b", folder="new"), call("pwd", "c")]
    message = assistant("", [one["tool_calls"][0] for one in calls])
    async with make() as env:
        for _ in range(30):  # side by side, a third of the turns was wrong
            await begin(env, 0)
            assert (await env.step(message)).obs[2]["content"].endswith('/new"}')


async def test_a_fork_has_a_copy_of_the_state():
    async with make() as env:
        await begin(env, 0)
        gold = env.gold_actions()
        await env.step(gold[0])
        async with await env.fork() as twin:
            await twin.step(call("mkdir", dir_name="only_here"))
            assert "only_here" in (await twin.step(call("ls"))).obs[0]["content"]
            assert "only_here" not in (await env.step(call("ls"))).obs[0]["content"]
            assert await play(twin, gold[1:]) == 0.0  # the folder should not be there
        assert await play(env, gold[1:]) == 1.0


async def test_a_missing_function_comes_with_its_documentation():
    async with make("multi_turn_miss_func") as env:
        task = env.tasks.task(0)
        (turn, missing), *_ = package.entries("multi_turn_miss_func")[task.id]["missed_function"].items()
        await env.reset(options={"task": task})
        before = env.tool_schemas
        assert not {schema.name for schema in before} & set(missing)
        for _ in range(int(turn)):
            result = await env.step("Done.")
        docs, _, words = result.obs[0]["content"].rpartition("\n")
        assert [one["function"]["name"] for one in json.loads(docs)] == missing
        assert words == package.added_functions_prompt().rpartition("\n")[2]
        assert env.tool_schemas == before


async def test_too_many_turns_for_one_request_cut_the_episode():
    async with make(steps_per_turn=2) as env:
        await begin(env, 0)
        gold = env.gold_actions()
        await env.step(call("pwd"))
        await env.step(call("pwd"))
        result = await env.step(call("pwd"))
        assert (result.stop_reason, result.reward) == (StopReason.MAX_TURNS, 0.0)
        await begin(env, 0)
        assert await play(env, gold) == 1.0
    async with make(max_turns=1) as env:
        await begin(env, 0)
        assert (await env.step("Done.")).stop_reason is StopReason.MAX_TURNS


async def test_what_the_model_does_wrong_it_reads():
    async with make() as env:
        await begin(env, 0)
        result = await env.step(call("cd", folder="nowhere"))
        assert "error" in json.loads(result.obs[0]["content"])
        result = await env.step(call("cd", place="nowhere"))
        assert "Error during execution: " in result.obs[0]["content"]
        assert result.info["tool_calls"][0].status == "error"
        result = await env.step(call("rm_everything"))
        assert "Unknown tool 'rm_everything'" in result.obs[0]["content"]
        result = await env.step(call("_load_scenario", scenario={}))
        assert "Unknown tool" in result.obs[0]["content"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 10, "exponent": 10**9}),
        ("logarithm", {"value": 2, "base": 10, "precision": 10**9}),
        ("square_root", {"number": 2, "precision": 10**9}),
        ("round_number", {"number": 10**9, "decimal_places": -(10**12)}),
    ],
)
async def test_endless_arithmetic_is_refused(name, arguments):
    async with make() as env:
        with_maths = next(
            one for one in package.entries("multi_turn_base").values() if "MathAPI" in one["involved_classes"]
        )
        await begin(env, int(with_maths["id"].rpartition("_")[2]))
        gold = env.gold_actions()
        result = await env.step(call(name, **arguments))
        assert result.info["tool_calls"][0].status == "refused"
        assert await play(env, gold) == 1.0


def test_arguments_reach_the_checker_as_they_are():
    text = "see sort (a) and \\(b\\) 'c' \"d\" ls(e)"
    arguments = {"content": text, "deep": [{"x": text}], "no name=(1), b": None, "": [1.5, True]}
    source = format_call("echo", arguments)
    assert source.count("(") == 1
    assert eval(source, {"echo": dict}) == arguments
    with pytest.raises(ValueError, match="identifier"):
        format_call("echo(1); ls", {})


CODE = r"setattr\x28__import__\x28'sys'), 'POLICY_WAS_HERE', 1)"
HOSTILE_NAMES = [
    f'a=[[0 for json.JSONEncoder.__class_getitem__ in [exec]], json.JSONEncoder["{CODE}"]], b',
    f"a={CODE}, b",
    "a=setattr(__import__('sys'), 'POLICY_WAS_HERE', 1), b",
    "*[1], a",
    "folder=1) or (2",
    "folder\n=1",
    "lambda",
    "a b",
    "",
    "self",
    "\ud800",
    "\u02b0folder",
    "f{folder}",
]


@pytest.mark.parametrize("solved", [True, False])
async def test_names_of_arguments_are_never_code(solved):
    """A call with such a name fails, in the episode and in the checker, and changes nothing."""
    async with make() as env:
        await begin(env, 0)
        gold = env.gold_actions()
        for name in HOSTILE_NAMES:
            result = await env.step(assistant("", [tool_call("cd", {name: 1}, id="hostile")]))
            [record] = result.info["tool_calls"]
            assert record.status == "error", name
            assert record.text.startswith("Error during execution: "), name
        assert await play(env, gold if solved else [assistant("")]) == float(solved)
    assert not hasattr(sys, "POLICY_WAS_HERE")


@pytest.mark.parametrize(
    "source",
    [
        "sys.exit()", "print(1)", "[].append(1)", "api._objects()", "api.cd(print)", "api.cd(**print())",
        "(lambda: 1)()", "api.cd(folder=f'{1}')", "api.cd", "1", "api.cd(*[1])", "api.cd(folder=[x for x in '1'])",
    ],
)  # fmt: skip
def test_the_checker_carries_out_calls_with_literals_only(source):
    class Api:
        def cd(self, folder):
            raise AssertionError("carried out")

        _objects = print = cd

    with pytest.raises((ValueError, TypeError, KeyError)):
        work._carry_out({"api": Api()}, source)


def test_functions_and_the_checker_do_not_run_in_this_process():
    """The classes are imported for their signatures; the modules that carry calls out are not even imported."""
    program = """
import asyncio, sys, toolgym
async def main():
    async with toolgym.make("BFCL/multi_turn_base-v0") as env:
        await env.reset(seed=0)
        for action in env.gold_actions():
            result = await env.step(action)
        loaded = [name for name in sys.modules if name.endswith(("multi_turn_utils", "multi_turn_checker"))]
        print(result.reward, loaded)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "1.0 []\n", done.stderr


async def test_a_state_that_grows_is_refused_and_stays_as_it_was():
    async with make() as env:
        await begin(env, 0)
        gold = env.gold_actions()
        result = await env.step(call("mkdir", dir_name="x" * work.MAX_STATE))
        assert result.info["tool_calls"][0].status == "refused"
        assert "too large" in result.obs[0]["content"]
        assert await play(env, gold) == 1.0


async def test_a_folder_copied_into_itself_scores_0():
    async with make() as env:
        await begin(env, 0)
        gold = env.gold_actions()
        await env.step(call("mkdir", dir_name="a"))
        for _ in range(3):
            await env.step(call("cp", source="a", destination="a"))
        assert await play(env, gold) == 0.0


async def test_a_call_without_end_is_an_observation_and_a_check_without_end_scores_0(monkeypatch):
    async with make() as env:
        await begin(env, 0)
        await env.step(call("touch", file_name="large.txt"))
        await env.step(call("echo", content="line\n" * 60_000, file_name="large.txt"))
        monkeypatch.setattr(bfcl_env, "CALL_SECONDS", 1e-6)
        result = await env.step(call("sort", file_name="large.txt"))
        assert result.info["tool_calls"][0].status == "refused"
        assert "too long" in result.obs[0]["content"]
        monkeypatch.setattr(bfcl_env, "CALL_SECONDS", 60.0)
        monkeypatch.setattr(bfcl_env, "CHECK_SECONDS", 1e-6)
        for action in env.gold_actions():
            result = await env.step(action)
        assert (result.reward, result.info["metrics"]["score/too_slow"]) == (0.0, 1.0)


def test_the_checker_leaves_nothing_behind():
    entry = package.entries("multi_turn_base")["multi_turn_base_0"]
    variables = vars(importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils"))
    before = {*variables, "eval"}
    assert work.check(entry, entry["ground_truth"]) == ""
    assert work.check(entry, [[], *entry["ground_truth"][1:]]) == "empty_turn_model_response"
    wrong = [["mkdir(dir_name='other')", *entry["ground_truth"][0]], *entry["ground_truth"][1:]]
    assert work.check(entry, wrong) == "instance_state_mismatch"
    assert set(variables) == before


async def test_a_row_that_was_saved_is_its_entry_and_another_is_an_error():
    async with make() as env:
        rows = [env.tasks.task(place).to_row() for place in (0, 7)]
    async with make(tasks=[Task.from_row(json.loads(json.dumps(row))) for row in rows]) as env:
        for place in (0, 1):
            await env.reset(options={"task": env.tasks.task(place)})
            assert await play(env, env.gold_actions()) == 1.0
    async with make(tasks=[Task(messages=(user("6 * 7?"),), id="7")]) as env:
        with pytest.raises(ConfigError, match="is none of this set"):
            await env.reset()
        with pytest.raises(ConfigError, match="must be a toolgym Task"):
            await env.reset(options={"task": "multi_turn_base_0"})


async def test_a_seed_draws_the_same_tasks():
    async with make() as env:
        drawn = []
        for _ in range(2):
            await env.reset(seed=3)
            first = env.task.id
            await env.reset()
            drawn.append((first, env.task.id))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


@pytest.fixture
def long_tiny_policy(tmp_path) -> str:
    """The tiny policy with room for the functions, which take some 8,000 of its tokens."""
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_policy_path(), folder)
    for name, key in [("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")]:
        config = json.loads((folder / name).read_text("utf-8"))
        (folder / name).write_text(json.dumps({**config, key: 16_384}))
    return str(folder)


async def test_it_keeps_the_contract():
    await check_env(make(tasks=make().tasks.tasks[:1]), [call("pwd"), *["Done."] * 5])


async def test_the_tiny_policy_plays_it(long_tiny_policy):
    async with open_engine(long_tiny_policy) as engine:
        limits = EpisodeLimits(max_prompt_tokens=16_000, max_response_tokens=40)
        config = RunConfig(group_size=1, seed=0, sampling=SamplingParams(max_new_tokens=12), limits=limits)
        trajectories = await rollout("BFCL/multi_turn_base-v0", engine, num_tasks=1, config=config)
    assert not [one.error for one in trajectories if one.stop_reason.failed]


@pytest.mark.parametrize("form", ["wheel", "folder"])
def test_the_wheel_is_read_as_it_is(form, tmp_path):
    """Where `bfcl-eval` is not installed: the program finds nothing but the wheel."""
    installed = Path(sys.modules["bfcl_eval"].__file__).parent
    files = [one for one in installed.rglob("*") if one.suffix in (".py", ".json") and "model_handler" not in one.parts]
    target = tmp_path / "bfcl_eval.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for one in files:
            archive.write(one, one.relative_to(installed.parent))
    if form == "folder":
        with zipfile.ZipFile(target) as archive:
            target = tmp_path / "unpacked"
            archive.extractall(target)
    program = f"""
import asyncio, toolgym
async def main():
    async with toolgym.make("BFCL/multi_turn_base-v0", wheel={str(target)!r}) as env:
        await env.reset(seed=0)
        for action in env.gold_actions():
            result = await env.step(action)
        import bfcl_eval
        print(result.reward, bfcl_eval.__file__)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == f"1.0 {target}/bfcl_eval/__init__.py\n", done.stderr
    with pytest.raises(ConfigError, match="was imported from"):
        make(wheel=target)
