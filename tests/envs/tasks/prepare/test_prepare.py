"""Public data sets in the shapes that users download, whose records are written here, as tasks."""

from __future__ import annotations

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from tests.tools.judge.code_rows import CODE_CONTESTS, CODEFORCES, LEETCODE, PRIME, SYNTHETIC, TACO
from toolgym.envs.library.code_judge import code_tasks
from toolgym.envs.tasks.loading import load_tasks
from toolgym.envs.tasks.prepare.readers import last_boxed
from toolgym.envs.tasks.prepare.recipes import RECIPES, Preparation
from toolgym.envs.tasks.stored import from_parquet
from toolgym.envs.tasks.writing import write_tasks
from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.judge import problem_of, read_tests

GSM8K = {
    "question": "Mia packs 12 boxes of 100 pens. How many pens is that?",
    "answer": "Each box has 100 pens, so there are 12*100=<<12*100=1200>>1200 pens.\n#### 1,200",
}
MATH = {
    "problem": "What is half of $\\frac{1}{3}$?",
    "level": "Level 2",
    "type": "Algebra",
    "solution": "Half of a third is $\\boxed{\\frac{1}{6}}$.",
}
MATH_500 = {"problem": "1+1?", "solution": "$\\boxed{2}$", "answer": "2", "subject": "Algebra", "level": 1,
            "unique_id": "test/algebra/1.json"}  # fmt: skip
DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "Do it. Write Answer: $A.\n\nFind x.\n\nIt is odd.\n\nAgain: use Answer:."}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "34", "style": "rule"},
    "extra_info": {"index": "9a9b6eb4"},
}
HOTPOTQA = {
    "_id": "5a7a", "question": "In which land is the tower of Ost?", "answer": "Westmark", "type": "bridge",
    "level": "hard", "supporting_facts": [["Ost", 0], ["Tower", 1]], "context": [["Ost", ["A town.", "It is old."]]],
}  # fmt: skip
FLASHRAG = {"id": "test_0", "question": "who built it", "golden_answers": ["Ada", "Ada B."], "metadata": {"hops": 2}}
MUSIQUE = {"id": "2hop__1_2", "paragraphs": [], "question": "Who?", "answer": "Ivo",
           "answer_aliases": ["Ivo K.", "Ivo"], "answerable": True}  # fmt: skip
MBPP = {
    "text": "Write a function to double a number.", "code": "def double(n):\n    return 2 * n", "task_id": 602,
    "test_setup_code": "", "test_list": ["assert double(2) == 4", "assert double(0) == 0"], "challenge_test_list": [],
}  # fmt: skip
MBPP_SANITIZED = {
    "source_file": "x.ipynb", "task_id": 11, "prompt": "Write a function to halve.", "code": "...", "test_imports": [],
    "test_list": ["assert halve(4) == 2"],
}  # fmt: skip
HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": '\ndef same(a, b):\n    """Whether they are equal."""\n',
    "entry_point": "same", "canonical_solution": "    return a == b\n",
    "test": "def check(candidate):\n    assert candidate(1, 1)\n",
}  # fmt: skip
APPS = {
    "id": 7, "question": "Print the sum.", "solutions": "[]", "difficulty": "interview", "url": "u", "starter_code": "",
    "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}),
}  # fmt: skip


LIVECODEBENCH = {
    "question_title": "Double", "question_content": "Print twice the number.", "platform": "own", "question_id": "a",
    "contest_id": "c", "contest_date": "2026-01-01", "starter_code": "", "difficulty": "easy", "metadata": "{}",
    "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "4", "output": "8", "testtype": "stdin"}]),
}  # fmt: skip


def lines(*records):
    return "".join(json.dumps(one) + "\n" for one in records).encode()


def prepared(name, path, **options):
    return [task.to_row() for task in Preparation(name, path, **options)]


@pytest.fixture
def file(tmp_path):
    def write(data, name="data.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write


def test_gsm8k(file):
    [row] = prepared("gsm8k", file(lines(GSM8K)), split="test", agent_name="toolgym_agent")
    assert row["data_source"] == "openai/gsm8k"
    assert row["agent_name"] == "toolgym_agent"
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == GSM8K["question"]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "1200"}
    assert row["extra_info"] == {
        "split": "test", "index": 0, **GSM8K, "need_tools_kwargs": True,
        "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1200"}}},
        "interaction_kwargs": {"name": "gsm8k", "query": GSM8K["question"], "ground_truth": "1200"},
    }  # fmt: skip
    assert "calc_gsm8k_reward" in row["prompt"][0]["content"]


def test_gsm8k_for_an_env_that_has_other_tools(file):
    [row] = prepared("gsm8k", file(lines(GSM8K)), with_tools_kwargs=False)
    assert (row["extra_info"]["need_tools_kwargs"], "tools_kwargs" in row["extra_info"]) == (False, False)
    assert "calc_gsm8k_reward" not in row["prompt"][0]["content"]
    [row] = prepared("gsm8k", file(lines(GSM8K)), system="")
    assert [message["role"] for message in row["prompt"]] == ["user"]
    [row] = prepared("gsm8k", file(lines(GSM8K)), system="Be brief.")
    assert row["prompt"][0] == {"role": "system", "content": "Be brief."}


async def test_gsm8k_is_played_in_an_env(file):
    from toolgym.envs import CodeInterpreterEnv

    [task] = Preparation("gsm8k", file(lines(GSM8K)), with_tools_kwargs=False)
    async with CodeInterpreterEnv([task]) as env:
        await env.reset()
        assert (await env.step("#### 1200")).reward == 1.0


def test_math_as_a_folder_of_files_and_as_lines(file, tmp_path):
    file(json.dumps(MATH, indent=1).encode(), "MATH/train/algebra/2.json")
    file(json.dumps(MATH_500).encode(), "MATH/train/algebra/10.json")
    rows = prepared("math", tmp_path / "MATH")
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2", "\\frac{1}{6}"]
    assert rows[0]["extra_info"]["id"] == "test/algebra/1.json"
    assert (rows[1]["extra_info"]["level"], rows[1]["extra_info"]["type"]) == ("Level 2", "Algebra")
    assert rows[1]["prompt"][1]["content"] == MATH["problem"]
    assert "\\boxed{}" in rows[1]["prompt"][0]["content"]
    assert prepared("math", file(lines(MATH_500, MATH))) == rows


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $\boxed{4}$ or rather $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"$\fbox{3}$", "3"),
        (r"$\boxed 7$ apples", "7"),
        (r"\boxed {x}", "x"),
        (r"$\boxed{\{1, 2\}}$", r"\{1, 2\}"),
        (r"$\boxed{\text{}}$", r"\text{}"),
    ],
)
def test_the_last_boxed_answer(solution, answer):
    assert last_boxed(solution) == answer


@pytest.mark.parametrize("solution", ["4", r"\boxed{4", r"\boxed", ""])
def test_a_solution_without_an_answer(solution):
    with pytest.raises(ConfigError, match="field 'solution' must hold"):
        last_boxed(solution)


def test_dapo_math_has_each_problem_once(tmp_path):
    path = tmp_path / "dapo.parquet"
    other = {**DAPO, "extra_info": {"index": "b"}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([DAPO, other, DAPO, DAPO]), path)
    tasks = Preparation("dapo-math", path)
    rows = [task.to_row() for task in tasks]
    assert [(row["extra_info"]["id"], row["extra_info"]["index"]) for row in rows] == [("9a9b6eb4", 0), ("b", 1)]
    assert rows[0]["prompt"][1]["content"] == "Find x.\n\nIt is odd."
    assert rows[0]["reward_model"]["ground_truth"] == "34"
    assert dict(tasks.left_out) == {"is there already, with the same id": 2}


@pytest.mark.parametrize(
    ("name", "data", "target", "id"),
    [
        ("hotpotqa", json.dumps([HOTPOTQA]).encode(), ["Westmark"], "5a7a"),
        ("hotpotqa", json.dumps([HOTPOTQA], indent=2).encode(), ["Westmark"], "5a7a"),
        ("2wiki", json.dumps([HOTPOTQA]).encode(), ["Westmark"], "5a7a"),
        ("nq", lines(FLASHRAG), ["Ada", "Ada B."], "test_0"),
        ("nq", lines({"question": "who?", "answer": ["a", "b"]}), ["a", "b"], None),
        ("2wiki", lines(FLASHRAG), ["Ada", "Ada B."], "test_0"),
        ("musique", lines(MUSIQUE), ["Ivo", "Ivo K."], "2hop__1_2"),
    ],
)
def test_questions(file, name, data, target, id):
    [row] = prepared(name, file(data))
    assert row["reward_model"]["ground_truth"] == {"target": target}
    assert row["extra_info"].get("id") == id
    assert row["data_source"].startswith("searchR1_")
    assert "context" not in row["extra_info"]
    assert row["extra_info"].get("supporting_titles") == (["Ost", "Tower"] if id == "5a7a" else None)


def test_questions_that_have_no_answer_are_counted(file):
    tasks = Preparation("musique", file(lines(MUSIQUE, {**MUSIQUE, "answerable": False})))
    assert len(list(tasks)) == len(list(tasks)) == 1
    assert list(tasks.left_out.values()) == [1]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("test.jsonl", "test"),
        ("validation-00000-of-00001.jsonl", "validation"),
        ("hotpot_dev_v1.jsonl", "dev"),
        ("train.jsonl", "train"),
        ("gsm8k.jsonl", "train"),
        ("contest.jsonl", "train"),
        ("train_test.jsonl", "train"),
    ],
)
def test_the_split_is_that_of_the_files_name(name, split, tmp_path):
    path = tmp_path / "test" / name
    path.parent.mkdir()
    path.write_bytes(lines(GSM8K))
    assert [row["extra_info"]["split"] for row in prepared("gsm8k", path)] == [split]
    assert [row["extra_info"]["split"] for row in prepared("gsm8k", path, split="mine")] == ["mine"]


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "train.parquet", "train.json"])
def test_a_pointer_of_git_lfs_is_named(name, tmp_path):
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(ConfigError, match="is a Git LFS pointer"):
        list(Preparation("gsm8k", path))
    with pytest.raises(ConfigError, match="is a Git LFS pointer"):
        load_tasks(path)


def test_mbpp_by_its_splits(file):
    path = file(lines(MBPP, {**MBPP, "task_id": 3}, {**MBPP, "task_id": 600}))
    assert [row["extra_info"]["split"] for row in prepared("mbpp", path)] == ["train", "prompt", "validation"]
    tasks = Preparation("mbpp", path, split="train")
    [row] = [task.to_row() for task in tasks]
    assert dict(tasks.left_out) == {"belongs to another split": 2}
    assert read_tests(row["reward_model"]["ground_truth"]) == problem_of(MBPP).hidden
    assert row["extra_info"]["id"] == "MBPP/602"
    assert MBPP["test_list"][0] in row["prompt"][1]["content"]
    assert MBPP["test_list"][1] not in row["prompt"][1]["content"]
    assert "return 2 * n" not in row["prompt"][1]["content"]


def test_mbpp_sanitized_is_a_list(file):
    [row] = prepared("mbpp", file(json.dumps([MBPP_SANITIZED]).encode(), "sanitized-mbpp.json"))
    assert row["prompt"][1]["content"].startswith(MBPP_SANITIZED["prompt"])
    assert row["extra_info"]["split"] == "test"


@pytest.mark.parametrize(
    ("name", "data"), [("a.jsonl", lines(HUMANEVAL)), ("a.jsonl.gz", gzip.compress(lines(HUMANEVAL), mtime=0))]
)
def test_humaneval(file, name, data):
    [row] = prepared("humaneval", file(data, name))
    assert read_tests(row["reward_model"]["ground_truth"]) == problem_of(HUMANEVAL).hidden
    assert HUMANEVAL["prompt"].strip() in row["prompt"][1]["content"]
    assert "a == b" not in row["prompt"][1]["content"]
    assert row["extra_info"]["id"] == "HumanEval/0"


@pytest.mark.parametrize("name", ["apps", "taco"])
def test_apps_and_taco(file, name):
    def tests(**value):
        return {**APPS, "input_output": json.dumps(value)}

    function = {**tests(fn_name="add", inputs=[[1, 2]], outputs=[3]), "starter_code": "def add(a, b):\n"}
    without_tests = [{**APPS, "input_output": ""}, tests(inputs=[], outputs=[])]
    tasks = Preparation(name, file(lines(APPS, function, *without_tests)))
    plain, named = [task.to_row() for task in tasks]
    assert json.loads(plain["reward_model"]["ground_truth"]) == json.loads(APPS["input_output"])
    assert "standard input" in plain["prompt"][1]["content"]
    assert "Write a Python function `add`" in named["prompt"][1]["content"]
    assert "def add(a, b):" in named["prompt"][1]["content"]
    assert sum(tasks.left_out.values()) == 2


ORIGINALS = {
    "gsm8k": GSM8K, "math": MATH, "dapo-math": DAPO, "hotpotqa": HOTPOTQA, "2wiki": FLASHRAG, "musique": MUSIQUE,
    "nq": FLASHRAG, "triviaqa": FLASHRAG, "popqa": FLASHRAG, "bamboogle": FLASHRAG, "mbpp": MBPP,
    "humaneval": HUMANEVAL, "apps": APPS, "taco": TACO, "codecontests": CODE_CONTESTS, "codeforces": CODEFORCES,
    "livecodebench": LIVECODEBENCH, "leetcode": LEETCODE, "synthetic-1": SYNTHETIC, "deepcoder": PRIME,
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_every_data_set_is_written_as_a_plain_table_and_read_again(file, tmp_path, name):
    source = file(lines(ORIGINALS[name], ORIGINALS[name]))
    rows = prepared(name, source)
    out = tmp_path / "out.parquet"
    write_tasks(out, Preparation(name, source))
    assert pyarrow.parquet.read_table(out).to_pylist() == rows
    assert [task.to_row() for task in from_parquet(out)] == rows


PROGRAMS = {name: ORIGINALS[name] for name, recipe in RECIPES.items() if recipe.env_id == "CodeJudge-v0"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_prepare_and_the_env_read_a_row_of_programs_alike(file, name):
    path = file(lines(PROGRAMS[name]))
    [prepared_task] = Preparation(name, path)
    [task] = code_tasks(path).tasks
    assert read_tests(prepared_task.ground_truth) == read_tests(task.ground_truth) == problem_of(PROGRAMS[name]).hidden
    assert task.messages[-1]["content"].startswith(prepared_task.messages[-1]["content"])
    visible = [
        read_tests(each_task.tools_kwargs["run_tests"]["create_kwargs"]["tests"]) for each_task in (prepared_task, task)
    ] if problem_of(PROGRAMS[name]).visible else []  # fmt: skip
    assert visible == [problem_of(PROGRAMS[name]).visible] * len(visible)
    assert prepared_task.extra_info["solution"] == task.extra_info["solution"]


def test_generated_tests_of_codeforces_are_joined_from_their_folder(file, tmp_path):
    incomplete = {**CODEFORCES, "official_tests_complete": False, "generated_tests": 1}
    path = file(lines(incomplete), "data/train.jsonl")
    with pytest.raises(ConfigError, match=r"train\.jsonl, line 1: .*'generated_tests' says that 1 more"):
        list(Preparation("codeforces", path))
    table = pyarrow.Table.from_pylist(
        [{"problem_id": "1/A", "input": "6\n", "output": "12\n"}, {"problem_id": "1/B", "input": "", "output": ""}]
    )
    (tmp_path / "generated_tests").mkdir()
    pyarrow.parquet.write_table(table, tmp_path / "generated_tests" / "test_cases_0001.parquet")
    for tasks in (Preparation("codeforces", path), Preparation("codeforces", tmp_path), code_tasks(path).tasks):
        [task] = tasks
        assert [test.stdin for test in read_tests(task.ground_truth)] == ["1\n", "4\n", "5\n", "6\n"]
    other = {**incomplete, "id": "1/C"}
    with pytest.raises(ConfigError, match=r"has no tests of the problem '1/C'"):
        list(Preparation("codeforces", file(lines(other), "data/train.jsonl")))


def test_limits_are_in_the_ground_truth_that_verl_reads(file):
    [task] = Preparation("taco", file(lines(TACO)))
    assert json.loads(task.ground_truth)["inputs"] == ["1\n", "4\n"]
    assert {(test.cpu_seconds, test.memory_mb) for test in read_tests(task.ground_truth)} == {(2.0, 256)}


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


@pytest.mark.parametrize(
    ("name", "record", "said"),
    [
        ("gsm8k", without(GSM8K, "answer"), r"there is no field 'answer'. Fields: question"),
        ("gsm8k", {**without(GSM8K, "answer"), "anwser": "x"}, "there is no field 'answer', did you mean 'anwser'"),
        ("gsm8k", {**GSM8K, "answer": "1200"}, "field 'answer' must end with '#### <number>', got '1200'"),
        ("gsm8k", {**GSM8K, "question": None}, "field 'question' must be a text, got None"),
        ("math", {**MATH, "solution": "6"}, "field 'solution' must hold"),
        ("dapo-math", {"prompt": "x"}, r"expected the fields prompt\[-1\]\.content"),
        ("dapo-math", {**DAPO, "prompt": [{"role": "user", "content": "x"}]}, "between two paragraphs"),
        ("hotpotqa", GSM8K | {"answer": 3}, "field 'answer' must be a list of texts, got 3"),
        ("nq", {"question": "q", "golden_answers": []}, "field 'golden_answers' must be a list of texts"),
        ("nq", {"question": "q"}, "there is no field 'golden_answers'"),
        ("musique", {**MUSIQUE, "answer_aliases": [3]}, "field 'answer_aliases' must be a list of texts"),
        ("mbpp", {**MBPP, "task_id": "602"}, "field 'task_id' must be a whole number"),
        ("mbpp", {**MBPP, "test_list": "assert"}, "'test_list' must be a list of assertions"),
        ("humaneval", without(HUMANEVAL, "entry_point"), "a row of HumanEval needs 'entry_point'"),
        ("apps", {**APPS, "input_output": "{"}, "input_output must be JSON"),
        ("apps", {**APPS, "input_output": '{"inputs": 3}'}, "'inputs' and 'outputs' must be lists"),
        ("gsm8k", [1], r"expected a JSON object, got \[1\]"),
    ],
)
def test_a_record_of_another_shape_names_file_line_and_field(file, name, record, said):
    path = file(lines(ORIGINALS[name], record))
    with pytest.raises(ConfigError, match=said) as error:
        list(Preparation(name, path))
    assert str(error.value).startswith(f"{path}, line 2: ")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", lines(GSM8K) + b"{", "line 2: expected a JSON object, got '{'"),
        ("a.jsonl", b"question,answer", "or a JSON object in each line"),
        ("a.jsonl", b"", "or a JSON object in each line"),
        ("a.jsonl.gz", lines(GSM8K), "cannot unpack"),
        ("a.jsonl.gz", gzip.compress(lines(GSM8K) * 99, mtime=0)[:-30], "cannot unpack|line"),
        ("a.parquet", b"PAR1", "cannot read the Parquet file"),
        ("a.json", b"3", r"a\.json, line 1: expected a JSON object, got 3"),
    ],
)
def test_a_file_of_another_format_is_said(file, name, data, said):
    with pytest.raises(ConfigError, match=said):
        list(Preparation("gsm8k", file(data, name)))


def test_names_that_are_not_there(tmp_path):
    with pytest.raises(UnknownNameError, match="no data set 'gsm8', did you mean 'gsm8k'"):
        Preparation("gsm8", tmp_path)
    with pytest.raises(UnknownNameError, match="task file"):
        list(Preparation("gsm8k", tmp_path / "train.jsonl"))
    with pytest.raises(ConfigError, match="has no file whose name ends with"):
        list(Preparation("gsm8k", tmp_path))


@pytest.mark.parametrize(
    ("name", "record", "column", "value"),
    [
        ("gsm8k", GSM8K, "choices", ["A", "B"]),
        ("gsm8k", GSM8K, "tolerance", 0.1),
        ("math", MATH, "image", "x.png"),
        ("math", MATH, "final_answer", "7"),
        ("dapo-math", DAPO, "system_prompt", "Answer in French."),
        ("nq", FLASHRAG, "options", ["a", "b"]),
        ("nq", FLASHRAG, "passage", "Ada built it."),
        ("musique", MUSIQUE, "wrong_answers", ["x"]),
        ("apps", APPS, "checker", "int main() {}"),
    ],
)
def test_a_field_that_changes_what_is_right_is_refused_by_name(file, name, record, column, value):
    path = file(lines(record, {**record, column: value}))
    with pytest.raises(ConfigError, match=rf"data\.jsonl, line 2: the column '{column}' of .* is not read"):
        list(Preparation(name, path))
    assert list(Preparation(name, path, ignore_columns=[column]))
    assert list(Preparation(name, file(lines({**record, column: None}))))


def test_dapo_rows_with_more_messages_or_another_reward_are_refused(file):
    more = [{"role": "system", "content": "Be brief."}, *DAPO["prompt"]]
    for row in ({**DAPO, "prompt": more}, {**DAPO, "reward_model": {"style": "model", "ground_truth": "34"}}):
        with pytest.raises(ConfigError, match="prompt must be one message and reward_model.style must be 'rule'"):
            list(Preparation("dapo-math", file(lines(row))))


def test_all_right_answers_of_a_question_are_used(file):
    popqa = {"id": 1, "question": "Who?", "possible_answers": '["Ivo", "Ivo K."]', "s_aliases": "[]", "prop": "author"}
    [row] = prepared("popqa", file(lines(popqa)))
    assert row["reward_model"]["ground_truth"] == {"target": ["Ivo", "Ivo K."]}
    [row] = prepared("nq", file(lines({**FLASHRAG, "answer_aliases": ["A. B."]})))
    assert row["reward_model"]["ground_truth"] == {"target": ["Ada", "Ada B.", "A. B."]}
