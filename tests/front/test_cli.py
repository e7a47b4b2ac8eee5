"""The `toolgym` command, as a user types it: one real process per way to end, and otherwise this one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolgym.cli.app import main
from toolgym.rollout import read_trajectories
from toolgym.rollout.batch import load_batch
from toolgym.version import __version__

COMMAND = [sys.executable, "-m", "toolgym"]


@pytest.fixture
def run_here(monkeypatch, capfd):
    """Calls the command in this process: most of a process of its own would be importing torch."""
    monkeypatch.setenv("COLUMNS", "120")

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["toolgym", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return subprocess.CompletedProcess(arguments, left.value.code, *capfd.readouterr())

    return command


def test_version_and_help(run_here):
    assert run_here("--version").stdout == f"toolgym {__version__}\n"
    shown = run_here("rollout", "--help").stdout
    for option in ("--env", "--tasks", "--group-size", "--out", "--engine", "--refills"):
        assert option in shown


def test_a_rollout_shows_figures_and_leaves_files(tmp_path, run_here):
    out = tmp_path / "out"
    watched = ("--log", "tensorboard", "--metrics-port", "0")
    done = run_here(
        "rollout", "--tasks", "4", "--group-size", "2", "--out", str(out), "--max-new-tokens", "96", *watched
    )
    assert done.returncode == 0, done.stderr
    for word in (
        "reward",
        "success",
        "turns",
        "tool calls",
        "tokens",
        "failed",
        "wall time",
        "time in engine",
        "time in tools",
    ):
        assert word in done.stdout
    assert "assistant" in done.stdout
    assert "every invariant holds" in done.stdout
    assert str(out / "0.jsonl") in done.stdout
    trajectories = list(read_trajectories(out / "0.jsonl"))
    batch = load_batch(out / "batch.safetensors")
    assert len(trajectories) == len(batch) == 8
    assert sorted(batch.ids) == sorted(one.id for one in trajectories)
    assert "\x1b[" not in done.stdout  # no colours into a pipe
    assert re.search(r"^8 of 8 episodes, reward \d\.\d\d, \d+ turns, [\d,]+ tokens/s$", done.stderr, re.M)  # nor a bar
    assert "Traceback" not in done.stderr
    assert re.search(r"^figures for Prometheus at http://127.0.0.1:\d+/metrics$", done.stderr, re.M)
    [events] = (out / "tensorboard").iterdir()
    for kept in (b"rollout/episodes/finished", b"config/text_summary", b"examples/7/text_summary", b"CodeInterpreter"):
        assert kept in events.read_bytes()


def test_a_logger_that_is_not_installed_is_told_before_the_engine_starts(tmp_path, run_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = run_here("rollout", "--engine", "no-such-engine", "--log", "wandb", "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "error: A WandbLogger needs the package 'wandb'" in done.stderr
    assert "pip install wandb" in done.stderr


def test_tasks_and_tools_from_files(tmp_path, run_here):
    tasks = tmp_path / "tasks.jsonl"
    row = {"prompt": [{"role": "user", "content": "Compute 12*34."}], "reward_model": {"ground_truth": "408"}}
    tasks.write_text(json.dumps(row) + "\n")
    tools = tmp_path / "tools.yaml"
    tools.write_text("tools: [{class_name: toolgym.tools.CodeInterpreterTool, config: {default_timeout: 3}}]\n")
    out = tmp_path / "out"
    done = run_here(
        "rollout", "--tasks", "2", "--group-size", "1", "--out", str(out), "--max-new-tokens", "64",
        "--task-file", str(tasks), "--tool-config", str(tools),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [one.ground_truth for one in read_trajectories(out / "0.jsonl")] == ["408", "408"]


def test_tasks_from_plain_rows(tmp_path, run_here):
    (tmp_path / "plain.csv").write_text("question,answer\nCompute 6*7.,42\n")
    done = run_here(
        "rollout", "--tasks", "1", "--group-size", "1", "--out", str(tmp_path / "out"), "--max-new-tokens", "16",
        "--task-file", str(tmp_path / "plain.csv"), "--task-columns", "prompt=question, ground_truth=answer",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [one] = read_trajectories(tmp_path / "out" / "0.jsonl")
    assert (one.messages[0]["content"], one.ground_truth) == ("Compute 6*7.", "42")


def test_arguments_of_the_env_with_wrappers(tmp_path, run_here):
    limit = {"name": "toolgym.wrappers:TurnLimit", "kwargs": {"max_turns": 1}}
    done = run_here(
        "rollout", "--tasks", "1", "--group-size", "2", "--out", str(tmp_path / "out"), "--max-new-tokens", "96",
        "--env-kwargs", json.dumps({"wrappers": [limit], "max_turns": 3}), "--record", str(tmp_path / "run.jsonl"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    played = list(read_trajectories(tmp_path / "out" / "0.jsonl"))
    assert [len(one.turns) for one in played] == [1, 1]
    done = run_here("replay", str(tmp_path / "run.jsonl"), "--json")
    replayed = json.loads(done.stdout)
    assert (done.returncode, replayed["compared"], replayed["differences"], replayed["misses"]) == (0, 2, [], [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--env", "CodeInterpretr-v0"], "did you mean 'CodeInterpreter-v0'"),
        (["--task-file", "{folder}/task.jsonl"], "did you mean 'tasks.jsonl'"),
        (["--tool-config", "{folder}/tool.yaml"], "did you mean 'tools.yaml'"),
        (
            ["--engine", "tyni"],
            "'tiny', an http:// URL, a model folder or a model's name on the hub as 'org/name'; 'tyni' is none of "
            "these, did you mean 'tiny'?",
        ),
        (["--engine", "{folder}/modl"], "/model'?"),
        (["--top-p", "3"], "top_p must be above 0"),
        (["--parser", "hermse"], "did you mean 'hermes'"),
        (["--out", "{folder}/tasks.jsonl/x"], "cannot write trajectories"),
        (["--env", ":x"], "not the name of a module"),
        (["--engine", ""], "none of these"),
        (["--engine", "http://"], "must look like"),
        (["--engine", "{folder}"], "cannot be loaded"),
        (["--engine", "http://127.0.0.1:9", "--device", "cpu"], "the server 'http://127.0.0.1:9' has its own"),
        (["--device", "cdua"], "got 'cdua', did you mean 'cuda'?"),
        (["--device", "cuda:99"], "the device 'cuda:99' cannot be used here, where torch"),
        (["--dtype", "flaot32"], "got 'flaot32', did you mean 'float32'?"),
        (["--dtype", "int8"], "dtype must be 'auto' (the checkpoint's) or one of torch's"),
        (["--task-columns", "prompt=q"], "--task-columns are those of a --task-file"),
        (["--task-file", "{folder}/plain.csv"], "--task-columns prompt=...,ground_truth=..."),
        (
            ["--task-file", "{folder}/plain.csv", "--task-columns", "prompt"],
            "like 'prompt=question,ground_truth=answer'",
        ),
        (["--task-file", "{folder}/plain.csv", "--task-columns", "prompt=q"], "no column 'q'"),
        (["--env", "no_such_modul:x"], "there is no module 'no_such_modul'"),
        (["--env", "Unknown"], "'module:Id' imports the module that registers an id first"),
        (["--tool-config", "{folder}/tools.yaml"], "expected a mapping"),
        (["--env-kwargs", "max_turns=3"], "--env-kwargs: not JSON"),
        (["--env-kwargs", '{{"wrappers": ["toolgym.wrappers:TurnLimit"]}}'], "give what else it takes"),
    ],
)
def test_what_is_wrong_is_one_line_that_helps(tmp_path, run_here, arguments, said):
    (tmp_path / "tasks.jsonl").write_text("")
    (tmp_path / "tools.yaml").write_text("")
    (tmp_path / "plain.csv").write_text("question,answer\n6 * 7?,42\n")
    (tmp_path / "model").mkdir()
    arguments = [one.format(folder=tmp_path) for one in arguments]
    if "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "out")]
    done = run_here("rollout", *arguments)
    stderr = done.stderr
    assert done.returncode == 2
    assert said in stderr
    assert stderr.lstrip("\n").startswith("error: ")
    assert stderr.strip().count("\n") == 0


@pytest.mark.long
def test_the_parser_is_the_chat_templates_unless_it_is_named(tmp_path, run_here):
    def calls(*arguments):
        done = run_here(
            "rollout", "--tasks", "4", "--out", str(tmp_path), "--max-new-tokens", "96", "--overwrite", *arguments
        )
        assert done.returncode == 0, done.stderr
        return sum(len(one.tool_calls) for one in read_trajectories(tmp_path / "0.jsonl"))

    assert calls() == calls("--parser", "hermes") > 0
    assert calls("--parser", "mistral") == 0


@pytest.mark.long
def test_a_typo_ends_with_exit_status_2(run_here):
    done = run_here("rollout", "--env", "CodeInterpretr-v0")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no env has the id 'CodeInterpretr-v0', did you mean 'CodeInterpreter-v0'")
    assert done.stderr.count("\n") == 1


def test_wrong_usage_is_exit_status_2(run_here):
    assert run_here("rollout", "--tasks", "none").returncode == 2
    assert run_here("rollot").returncode == 2


def test_a_url_that_does_not_answer_is_told_within_seconds(tmp_path, run_here):
    started = time.monotonic()
    done = run_here("rollout", "--engine", "http://127.0.0.1:9", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 120  # most of it is Python importing on a busy machine


@pytest.mark.long
def test_a_reader_that_goes_away_costs_no_file(tmp_path):
    """As with `| head -1`: what was played is written before anything is shown."""
    process = subprocess.Popen(
        [*COMMAND, "rollout", "--tasks", "1", "--group-size", "1", "--out", str(tmp_path), "--max-new-tokens", "32"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(timeout=300)
    assert len(load_batch(tmp_path / "batch.safetensors")) == 1


@pytest.mark.long
def test_a_full_disk_behind_standard_output_and_few_characters_are_one_line(tmp_path):
    arguments = ["rollout", "--tasks", "1", "--group-size", "1", "--out", str(tmp_path), "--max-new-tokens", "32"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 1
    assert "error: [Errno 28]" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_that_does_not_start_leaves_earlier_results_alone(tmp_path, monkeypatch):
    for name in ("0.jsonl", "batch.safetensors"):
        (tmp_path / name).write_text("of an earlier run\n")
    arguments = ["--engine", "http://127.0.0.1:9", "--out", str(tmp_path), "--overwrite"]
    monkeypatch.setattr("sys.argv", ["toolgym", "rollout", *arguments])
    with pytest.raises(SystemExit):
        main()
    for name in ("0.jsonl", "batch.safetensors"):
        assert (tmp_path / name).read_text() == "of an earlier run\n"


@pytest.mark.parametrize("there", ["0.jsonl", "batch.safetensors", "run.jsonl"])
def test_an_earlier_run_is_not_replaced_unless_asked(tmp_path, monkeypatch, capfd, there):
    short = ["--tasks", "1", "--group-size", "1", "--max-new-tokens", "32"]
    arguments = ["toolgym", "rollout", *short, "--out", str(tmp_path), "--record", str(tmp_path / "run.jsonl")]
    (tmp_path / there).write_text("of an earlier run\n")
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ")
    assert there in said
    assert ("--record" if there == "run.jsonl" else "--out") in said
    assert "--overwrite" in said
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "of an earlier run\n")]
    monkeypatch.setattr("sys.argv", [*arguments, "--overwrite"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert "of an earlier run" not in (tmp_path / there).read_text(errors="replace")


def test_an_empty_file_is_no_earlier_run(tmp_path, monkeypatch, capfd):
    for name in ("0.jsonl", "batch.safetensors"):
        (tmp_path / name).touch()
    monkeypatch.setattr("sys.argv", ["toolgym", "rollout", "--engine", "http://127.0.0.1:9", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "nothing answers at" in capfd.readouterr().err


@contextlib.contextmanager
def started(*arguments, **env):
    """A running `toolgym rollout`, as a shell in a terminal starts it, and killed in the end."""

    def attend():  # a shell may have started the tests in the background, or under nohup
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with subprocess.Popen(
        [*COMMAND, "rollout", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **env},
        preexec_fn=attend,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def below(pid):
    """All processes below one: template processes, and the programs that they run."""
    found = [pid]
    for parent in found:
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
        )
        found += [int(one) for one in listed.stdout.split()]
    return found[1:]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_cleanly_keeps_what_has_finished_and_leaves_no_program_behind(tmp_path, number):
    out = tmp_path / "out"
    (tmp_path / "slow_tool.py").write_text(SLOW_INTERPRETER)
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: slow_tool.Slow}]\n")
    arguments = ["--tasks", "2000", "--out", str(out), "--max-new-tokens", "96"]
    with started(*arguments, "--tool-config", str(tmp_path / "tools.yaml"), PYTHONPATH=str(tmp_path)) as process:
        path = out / "0.jsonl"
        programs = []
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and process.poll() is None:
            programs = below(process.pid)
            if path.exists() and path.stat().st_size > 5_000 and len(programs) > 10:  # most of them sleep by now
                break
            time.sleep(0.05)
        assert len(programs) > 10
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 128 + number, stderr
    assert "interrupted" in stdout
    assert "Traceback" not in stderr
    kept = list(read_trajectories(path))
    assert 0 < len(kept) < 8000
    assert len(load_batch(out / "batch.safetensors")) == len(kept)
    deadline = time.monotonic() + 60  # what a killed process leaves is collected by others, at their pace
    while time.monotonic() < deadline and any(map(exists, programs)):
        time.sleep(0.05)
    assert not any(map(exists, programs))


SLOW_INTERPRETER = """
from toolgym.tools import CodeInterpreterTool

class Slow(CodeInterpreterTool):
    async def execute(self, instance_id, parameters, **kwargs):
        code = "import time; time.sleep(60)" if "7" in parameters["code"] else parameters["code"]
        return await super().execute(instance_id, {"code": code}, **kwargs)
"""


@pytest.mark.long
@pytest.mark.parametrize("library", ["pydantic_core", "libtorch_cpu"])
def test_ctrl_c_while_the_engine_loads_is_one_line(tmp_path, library):
    with started("--tasks", "2000", "--out", str(tmp_path)) as process:
        while process.poll() is None and library not in Path(f"/proc/{process.pid}/maps").read_text():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=180)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr


def test_ctrl_c_that_a_library_makes_an_error_of_its_own_ends_as_any_other(tmp_path, run_here, monkeypatch):
    """As Python 3.11 does where it comes while a class is made; huggingface_hub makes many."""
    (tmp_path / "interrupted_here.py").write_text(INTERRUPTED)
    monkeypatch.syspath_prepend(tmp_path)
    done = run_here("rollout", "--env", "interrupted_here:Any-v0", "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


INTERRUPTED = """
class Field:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

class Row:
    field = Field()
"""


def test_an_engine_that_always_fails_is_told(tmp_path, run_here):
    """A context too small for any prompt: every episode fails, and the command says so."""
    import shutil

    from toolgym.rollout import tiny_policy_path

    folder = tmp_path / "model"
    shutil.copytree(tiny_policy_path(), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16}))
    done = run_here("rollout", "--engine", str(folder), "--tasks", "2", "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "no batch" in done.stdout
    assert "not cut" in done.stdout
    assert "error: all 8 episodes failed in the same way at their first turn, with prompt_refused: " in done.stderr


def test_failures_are_one_line_for_each_kind_and_told_once(tmp_path, run_here, monkeypatch):
    from toolgym.envs.library.code_interpreter import CodeInterpreterEnv

    reset, seen = CodeInterpreterEnv.reset, []

    async def failing(self, **kwargs):
        seen.append(self)
        if len(seen) in (2, 3):
            raise OSError("the dataset is not mounted")
        if len(seen) == 4:
            raise ZeroDivisionError("no rows")
        return await reset(self, **kwargs)

    monkeypatch.setattr(CodeInterpreterEnv, "reset", failing)
    done = run_here("rollout", "--tasks", "4", "--group-size", "1", "--out", str(tmp_path), "--max-new-tokens", "32")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if "episodes failed with" in line]
    assert [line.partition(" with")[0] for line in lines] == ["2 of 4 episodes failed", "1 of 4 episodes failed"]
    assert "OSError: the dataset is not mounted" in lines[0]
    assert "3 of 4 episodes" in done.stdout
    assert "failed with" not in done.stderr


def test_a_full_disk_costs_no_episode_that_has_finished(tmp_path, run_here, monkeypatch):
    from toolgym.rollout.trajectory import TrajectoryWriter
    from toolgym.tools.errors import ConfigError

    write = TrajectoryWriter.write

    def until_it_is_full(self, trajectory):
        if self.count == 2:
            raise ConfigError("cannot append: No space left on device") from OSError(28, "No space left on device")
        write(self, trajectory)

    monkeypatch.setattr(TrajectoryWriter, "write", until_it_is_full)
    done = run_here(
        "rollout", "--tasks", "50", "--group-size", "1", "--out", str(tmp_path), "--max-new-tokens", "16",
        "--concurrency", "4",
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: cannot append: No space left on device" in done.stderr
    assert len(list(read_trajectories(tmp_path / "0.jsonl"))) == 2
    assert 3 <= len(load_batch(tmp_path / "batch.safetensors")) < 50


def test_a_model_of_ones_own_takes_a_dtype(tmp_path, run_here, monkeypatch):
    import torch

    from toolgym.rollout.engines import TransformersEngine

    opened = []
    generate = TransformersEngine._generate

    async def watched(self, request):
        opened.append(next(self.model.parameters()))
        return await generate(self, request)

    monkeypatch.setattr(TransformersEngine, "_generate", watched)
    done = run_here(
        "rollout", "--tasks", "1", "--group-size", "1", "--out", str(tmp_path), "--max-new-tokens", "16",
        "--device", "cpu", "--dtype", "float64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (opened[0].dtype, opened[0].device.type) == (torch.float64, "cpu")
