from __future__ import annotations

import asyncio
import json
import shutil
import subprocess

import pytest

from tests.tools.integrations.sandbox_fusion.conftest import AUTO, HUMANEVAL, MBPP, OJ
from toolgym.tools.errors import ConfigError
from toolgym.tools.integrations.sandbox_fusion.api import load_datasets

GOOD = {
    "own_humaneval": ("own/0", "    return [scale(one) for one in numbers]\n\ndef unfinished(", {}),
    "cpp": ("own_1_cpp", "    return n * 2;\n}\nint other() {", {"run_timeout": 60, "compile_timeout": 60}),
    "own_mbpp": (7, "Here:\n```python\ndef sum(a, b):\n    return a + b\n```\nDone.", {}),
    "oj": (1, "```python\nn = float(input())\nprint(int(n * 2))\n```", {"language": "python"}),
    "auto": ("a", "```python\ndef total():\n    return sum(map(int, open('numbers.txt').read().split()))\n```", {}),
}
BAD = {
    "own_humaneval": "    return numbers\n",
    "cpp": "    return n;\n}",
    "own_mbpp": "```python\ndef sum(a, b):\n    return 3\n```",
    "oj": "```python\nprint(4)\n```",
    "auto": "```python\nimport os\ndef total():\n    os._exit(0)\n```",
}


async def test_data_sets_ids_and_prompts(ask):
    assert await ask("list_datasets") == (200, ["auto", "cpp", "oj", "own_humaneval", "own_mbpp"])
    assert await ask("list_ids", dataset="own_mbpp", config={}) == (200, [7])
    status, prompts = await ask("get_prompts", dataset="own_humaneval", config={})
    assert (status, prompts[0]["id"], prompts[0]["prompt"]) == (200, "own/0", HUMANEVAL["prompt"])
    assert prompts[0]["labels"] == {"task_id": "own/0", "entry_point": "scaled"}  # neither tests nor the solution
    status, prompts = await ask("get_prompts", dataset="own_humaneval", config={}, offset=1)
    assert (status, prompts) == (200, [])
    _, prompt = await ask("get_prompt_by_id", dataset="own_mbpp", config={}, id="7")
    assert all(one in prompt["prompt"] for one in [MBPP["content"], *MBPP["test_list"]])
    _, prompt = await ask("get_prompt_by_id", dataset="oj", config={"language": "cpp"}, id=1)
    assert prompt["prompt"].startswith(OJ["content"])
    assert "cpp" in prompt["prompt"]
    assert prompt["labels"] == {"difficulty": "easy"}
    _, prompt = await ask("get_prompt_by_id", dataset="auto", config={"locale": "en"}, id="a")
    assert prompt["prompt"] == f"The file is numbers.txt.\n\nQuestion:{AUTO['content']}\n\nAnswer:\n"
    template = {"prompt_template": "${question} Go."}
    _, prompt = await ask("get_prompt_by_id", dataset="auto", config={"extra": template}, id="a")
    assert prompt["prompt"] == f"{AUTO['content']} Go."


@pytest.mark.parametrize("dataset", GOOD)
async def test_a_right_answer_is_accepted_and_a_wrong_one_is_not(ask, dataset):
    id, completion, config = GOOD[dataset]
    status, result = await ask("submit", dataset=dataset, id=id, completion=completion, config=config)
    assert (status, result["accepted"], result["id"]) == (200, True, id), result
    assert all(one["passed"] and one["exec_info"]["status"] == "Success" for one in result["tests"])
    status, result = await ask("submit", dataset=dataset, id=id, completion=BAD[dataset], config=config)
    assert (status, result["accepted"]) == (200, False)
    assert not result["tests"][-1]["passed"]


async def test_programs_that_read_and_print(ask):
    asked = {"dataset": "oj", "id": 1, "config": {"language": "python"}}
    _, result = await ask("submit", completion="```python\nprint(4)\n```", **asked)
    assert [one["passed"] for one in result["tests"]] == [True, False]  # the third is not run
    assert result["tests"][1]["test_info"] == {"input": {"stdin": "0.5\n"}, "output": {"stdout": "1.0\n"}}
    assert result["tests"][1]["exec_info"]["run_result"]["stdout"] == "4\n"
    asked["config"]["extra"] = {"run_all_cases": True}
    _, result = await ask("submit", completion="```python\nprint(4)\n```", **asked)
    assert [one["passed"] for one in result["tests"]] == [True, False, False]
    late = "```python\nwhile True: pass\n```"
    _, result = await ask("submit", completion=late, **(asked | {"config": {"language": "python", "run_timeout": 0.5}}))
    assert result["tests"][0]["exec_info"]["run_result"]["status"] == "TimeLimitExceeded"


async def test_freeform_answers_and_how_they_were_found(ask):
    asked = {"dataset": "own_humaneval", "id": "own/0", "config": {"extra": {"is_freeform": True}}}
    code = "def scaled(numbers):\n    return [scale(one) for one in numbers]"
    for completion, kind, accepted in (
        (f"```python\n{code}\n```", "fenced", True),
        (f"Well:\n```python\n{code}", "incomplete_fenced", True),
        (f"Well:\n{code}", "heuristic", True),
        ("I do not know.", "empty", False),
        (f"```python\n{code}\n```\n```python\nprint('use it')\n```", "fenced", True),
    ):
        status, result = await ask("submit", completion=completion, **asked)
        assert (status, result["extracted_type"], result["accepted"]) == (200, kind, accepted), completion


async def test_a_clients_own_extraction_runs_in_the_sandbox(ask):
    logic = (
        "import os\nassert not os.path.exists('/etc/passwd') or os.getppid() < 100\n"
        "code = completion.split('<code>')[1].split('</code>')[0]\n"
        "submit_code_blocks([CodeBlock(priority=40, code=code, language='python')])"
    )
    asked = {"dataset": "own_mbpp", "id": 7}
    completion = "```python\n1/0\n```<code>def sum(a, b): return a + b</code>"
    status, result = await ask("submit", completion=completion, config={"custom_extract_logic": logic}, **asked)
    assert (status, result["accepted"]) == (200, True), result
    status, result = await ask("submit", completion="no", config={"custom_extract_logic": logic}, **asked)
    assert (status, result["detail"][0]["loc"]) == (422, ["body", "config", "custom_extract_logic"])
    assert "IndexError" in result["detail"][0]["msg"]


async def test_rows_that_requests_bring(ask):
    config = {"dataset_type": "MBPPDataset", "provided_data": [{**MBPP, "id": n} for n in (1, 2)]}
    assert await ask("list_ids", dataset="none", config=config) == (200, [1, 2])
    status, prompts = await ask("get_prompts", dataset="none", config=config)
    assert (status, [one["id"] for one in prompts]) == (200, [1, 2])
    config["provided_data"] = MBPP
    completion = GOOD["own_mbpp"][1]
    status, result = await ask("submit", dataset="none", id=9, completion=completion, config=config)
    assert (status, result["accepted"], result["id"]) == (200, True, 9)


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("list_ids", {"dataset": "no", "config": {}}, 400, "no eval class found for dataset no"),
        ("list_ids", {"dataset": "no", "config": {"dataset_type": "X"}}, 400, "eval class X not found"),
        ("list_ids", {"dataset": "no", "config": {"dataset_type": "MBPPDataset"}}, 400, "there is no data set no"),
        ("get_prompt_by_id", {"dataset": "oj", "config": {}, "id": 99}, 404, "the data set oj has no row 99"),
        ("get_prompts", {"dataset": "oj", "config": {"provided_data": {}}}, 400, "must be a list of rows"),
        ("get_prompt_by_id", {"dataset": "oj", "config": {"provided_data": []}, "id": 1}, 400, "must be one row"),
        ("submit", {"dataset": "oj", "config": {}, "id": 1, "completion": ""}, 400, "config.language must be given"),
        (
            "submit",
            {"dataset": "oj", "config": {"provided_data": {"test": "{"}, "language": "c"}, "id": 1, "completion": ""},
            400,
            "'test' must be JSON",
        ),
        ("get_prompts", {"dataset": "own_mbpp", "config": {"is_fewshot": True}}, 400, "no few-shot"),
    ],
)  # fmt: skip
async def test_wrong_requests(ask, path, body, status, said):
    got, answer = await ask(path, **body)
    assert got == status
    assert said in answer["detail"]


async def test_a_row_whose_test_cannot_be_judged_is_refused(ask):
    row = {**MBPP, "test_list": ["assert sum(1, 2) == 3"], "labels": {"test_setup_code": "import no_such_module"}}
    config = {"dataset_type": "MBPPDataset", "provided_data": row}
    status, answer = await ask("submit", dataset="none", id=1, completion=GOOD["own_mbpp"][1], config=config)
    assert status == 400
    assert "test 1 of the row cannot be judged: ModuleNotFoundError" in answer["detail"]


async def test_case_counts_unless_the_request_says_otherwise(ask):
    row = {"id": 1, "content": "?", "test": [{"input": {"stdin": ""}, "output": {"stdout": "YES"}}]}
    for extra, accepted in (({}, False), ({"ignore_case": True}, True)):
        config = {"dataset_type": "CommonOJDataset", "provided_data": row, "language": "python", "extra": extra}
        _, result = await ask("submit", dataset="x", id=1, completion="```python\nprint('Yes')\n```", config=config)
        assert result["accepted"] is accepted


async def test_an_error_with_half_a_character_is_answered(ask):
    completion = "```python\ndef sum(a, b): raise ValueError('\\ud800')\n```"
    status, result = await ask("submit", dataset="own_mbpp", id=7, completion=completion, config={})
    assert (status, result["accepted"]) == (200, False)


async def test_more_time_than_the_server_gives_is_refused(ask):
    status, answer = await ask("submit", dataset="oj", id=1, completion="", config={"run_timeout": 1e6})
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "config", "run_timeout"])


async def test_metrics_and_their_function(ask):
    results = [{"id": n, "accepted": n < 3, "extracted_code": "", "tests": []} for n in range(4)]
    status, metrics = await ask("get_metrics", dataset="oj", config={}, results=results)
    assert (status, metrics) == (200, {"count": 4, "pass@1": 0.75})
    status, answer = await ask("get_metrics_function", dataset="oj", config={})
    namespace = {}
    exec(answer["function"], namespace)
    assert namespace["get_metrics"](results) == metrics


async def test_many_at_once(ask):
    id, completion, _ = GOOD["own_mbpp"]
    answers = await asyncio.gather(
        *(
            ask("submit", dataset="own_mbpp", id=id, completion=completion if n % 2 else BAD["own_mbpp"], config={})
            for n in range(24)
        )
    )
    assert [answer["accepted"] for _, answer in answers] == [bool(n % 2) for n in range(24)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_plain_curl(judge_url):
    body = json.dumps({"dataset": "own_mbpp", "id": 7, "completion": GOOD["own_mbpp"][1], "config": {}})
    call = ["curl", "-sf", f"{judge_url}/submit", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout)["accepted"] is True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "has no file NAME.jsonl"),
        ("{", "expected a JSON object in each line"),
        ('{"id": 1}\n', "must all be of one format"),
        ('{"id": 1, "test_list": []}\n{"id": 2, "test": 5}\n', "row 2: .* one is of none"),
        ('{"id": 1, "test_list": []}\n{oops\n', "line 2: expected a JSON object in each line: "),
        ('{"test_list": ["assert True"]}\n', "needs an 'id'"),
        ("", "at least one"),
    ],
)
def test_data_sets_that_cannot_be_served(tmp_path, text, said):
    if text is not None:
        (tmp_path / "set.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_datasets(tmp_path)


@pytest.mark.parametrize(
    ("format", "row", "column"),
    [
        ("MBPPDataset", {**MBPP, "hidden_tests": ["assert sum(1, 1) == 2"]}, "hidden_tests"),
        ("HumanEvalDataset", {**HUMANEVAL, "plus_input": [[1]]}, "plus_input"),
        ("CommonOJDataset", {"id": 1, "content": "?", "test": [], "checker": "int main() {}"}, "checker"),
        (
            "CommonOJDataset",
            {"id": 1, "content": "?", "test": [{"input": {"stdin": ""}, "output": {"stdout": ""}, "time_limit": 1}]},
            "time_limit",
        ),
        (
            "CommonOJDataset",
            {"id": 1, "content": "?", "test": [{"input": {"stdin": "", "input.txt": "5"}, "output": {"stdout": ""}}]},
            "input.txt",
        ),
    ],
)
async def test_a_row_with_a_column_that_is_not_read_is_refused(ask, format, row, column):
    config = {"dataset_type": format, "provided_data": row, "language": "python"}
    status, answer = await ask("submit", dataset="x", id=1, completion="```python\nprint()\n```", config=config)
    assert status == 400
    assert f"the column '{column}' of" in answer["detail"]


async def test_the_tests_of_mbpp_plus_are_judged(ask):
    row = {**MBPP, "test": "for a in (5, 6):\n    assert sum(a, 1) == a + 1"}
    config = {"dataset_type": "MBPPDataset", "provided_data": row}
    cheat = "def sum(a, b):\n    return {(1, 2): 3}.get((a, b), 0) or a + b if a < 5 else 0"
    for program, accepted in ((GOOD["own_mbpp"][1], True), (f"```python\n{cheat}\n```", False)):
        _, result = await ask("submit", dataset="x", id=1, completion=program, config=config)
        assert result["accepted"] is accepted
