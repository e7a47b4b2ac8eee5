"""The figures of a run: those that others have too are equal, and what cannot be counted is said."""

from __future__ import annotations

import json
import math
from statistics import fmean

import pytest

from tests.front.report.run_files import DEMO, LINE, episodes, line, report, write
from toolgym.report.estimators import estimate_mean, pass_at_k, pass_hat_k
from toolgym.report.report import compare
from toolgym.report.tables import notes_of, tables_of
from toolgym.rollout import RunMetrics, summarize
from toolgym.rollout.trajectory.file import read_trajectories

ELSEWHERE = ("metrics/", "prompt_length/", "tool_calls/")
"""Figures of `summarize` that a part of a report does not have."""


@pytest.fixture(scope="module")
def demo():
    return report(DEMO)


@pytest.fixture(scope="module")
def trajectories():
    return [*read_trajectories(DEMO / "0.jsonl"), *read_trajectories(DEMO / "1.jsonl")]


def test_figures_that_summarize_has_too_are_equal(demo, trajectories):
    parts = [(demo.whole, trajectories)]
    parts += [(part, [t for t in trajectories if t.training_step == int(part.name)]) for part in demo.parts]
    assert [part.name for part, _ in parts] == ["all", "0", "1"]
    for part, chosen in parts:
        expected = summarize(chosen)
        common = set(expected) & set(part.figures)
        assert len(common) > 20
        assert {name: part.figures[name] for name in common} == pytest.approx({name: expected[name] for name in common})
        assert {name for name in set(expected) - common if expected[name] and not name.startswith(ELSEWHERE)} == set()


def test_figures_that_run_metrics_has_too_are_equal(demo, trajectories):
    metrics = RunMetrics()
    for trajectory in trajectories:
        metrics.write(trajectory)
    expected = metrics.metrics("")
    for name in ("process/worker_hours_per_million_actions", "groups/count", "groups/equal_rewards", "reward/std"):
        assert demo.whole.figures[name] == pytest.approx(expected[name])
    tools = {f"tools/{tool}/{name}": value for tool, figures in demo.tools.items() for name, value in figures.items()}
    common = {name: value for name, value in expected.items() if name.startswith("tools/")}
    assert common
    assert {name: tools[name] for name in common} == common
    not_run = {f"tool_calls/not_run/{status}": count for status, count in demo.bad_calls.items()}
    assert not_run == {name: value for name, value in expected.items() if name.startswith("tool_calls/not_run/")}


def test_tokens_of_truncated_episodes_are_apart_from_those_that_no_trainer_gets(tmp_path):
    reasons = ["answered", "length", "aborted", "straggler", "engine_failed"]
    error = {"message": "EngineError: gone", "turn": 0}
    lines = [
        line(stop_reason=reason, error=error if reason == "engine_failed" else None, sequences=LINE["sequences"])
        for reason in reasons
    ]
    result = report(tmp_path / "1.jsonl", lines)
    every = list(read_trajectories(tmp_path / "1.jsonl"))
    lost = sum(t.policy_tokens for t in every if not t.usable)
    assert lost == 3 * every[0].policy_tokens
    assert result.whole.figures["tokens/lost"] == lost
    assert result.whole.figures["tokens/truncated"] == 3 * every[0].policy_tokens  # length, aborted, straggler
    assert result.notes == ("3 of 5 episodes count in no reward: they failed, or the engine or the run cut them",)
    assert {stop.reason: (stop.blame, stop.usable) for stop in result.whole.stops} == {
        "answered": ("policy", True), "length": ("budget", True), "aborted": ("engine", False),
        "straggler": ("budget", False), "engine_failed": ("engine", False),
    }  # fmt: skip
    assert result.whole.figures["truncated/rate"] == pytest.approx(0.6)
    assert result.whole.figures["failed/engine"] == pytest.approx(0.2)


def test_pass_rates_are_over_tasks_within_steps_without_branches_and_failures(demo, trajectories):
    counts = {}
    for t in trajectories:
        if t.parent is None and t.in_group_statistics:
            counts.setdefault((t.task_id, t.training_step), []).append(t.reward >= 1)
    for k in (1, 2, 4):
        for name, rate in ((f"pass@{k}", pass_at_k), (f"pass^{k}", pass_hat_k)):
            values = [(task, rate(len(right), sum(right), k)) for (task, _), right in counts.items()]
            assert demo.whole.estimates[name] == estimate_mean(values, proportion=True)
    assert demo.whole.estimates["pass@4"].left_out == 2


def test_the_reward_is_the_mean_of_episodes_with_an_interval_over_tasks(demo, trajectories):
    counted = [(t.task_id, t.reward) for t in trajectories if t.in_group_statistics]
    estimate = demo.whole.estimates["reward"]
    assert estimate.value == pytest.approx(fmean(reward for _, reward in counted))
    assert (estimate.tasks, estimate.samples) == (8, len(counted))
    assert estimate.low < estimate.value < estimate.high


def test_groups_of_a_task_in_several_steps_are_pooled_only_in_the_interval(tmp_path):
    lines = [part for step in range(3) for part in episodes({"a": [0, 1], "b": [1, 1]}, step=step)]
    result = report(tmp_path / "1.jsonl", lines)
    estimate = result.whole.estimates["pass@2"]
    assert (estimate.value, estimate.samples, estimate.tasks) == (1.0, 6, 2)
    assert "pass@4" not in result.whole.estimates  # two episodes a step, not six
    assert [part.name for part in result.parts] == ["0", "1", "2"]


def test_parts_are_steps_or_envs_or_sources(tmp_path):
    lines = [*episodes({"a": [0, 1]}, env_id="A-v0", source="x"), *episodes({"a": [1, 1]}, env_id="B-v0", source="y")]
    result = report(tmp_path / "1.jsonl", lines)
    assert (result.by, [part.name for part in result.parts]) == ("env", ["A-v0", "B-v0"])
    assert [part.estimates["success"].value for part in result.parts] == [0.5, 1.0]
    assert [part.name for part in report(tmp_path / "1.jsonl", by="source").parts] == ["x", "y"]
    assert report(tmp_path / "1.jsonl", by="step").parts == ()
    assert result.whole.figures["tasks"] == 2  # the same id in two sources


def test_parts_are_levels_of_difficulty_in_the_order_of_their_numbers(tmp_path):
    levels = {"a": "10", "b": "9", "c": ""}
    lines = [part for task, level in levels.items() for part in episodes({task: [1, 0]}, level=level)]
    assert [part.name for part in report(tmp_path / "1.jsonl", lines, by="level").parts] == ["none", "9", "10"]


def test_a_validation_is_left_out_beside_training_and_reported_without_it(tmp_path):
    lines = [*episodes({"a": [0, 0]}), *episodes({"a": [1, 1]}, validate=True)]
    result = report(tmp_path / "1.jsonl", lines)
    assert result.whole.estimates["success"].value == 0.0
    assert any("2 of 4 episodes of a validation are left out" in note for note in result.notes)
    alone = report(tmp_path / "2.jsonl", lines[2:])
    assert (alone.whole.estimates["success"].value, alone.notes) == (1.0, ())


def test_verls_dumps_have_rewards_and_pass_rates_and_nothing_that_they_do_not_say(tmp_path):
    rows = [{"input": f"p{n // 4}", "output": "", "score": float(n % 4 == 0), "step": 3} for n in range(8)]
    result = report(write(tmp_path / "3.jsonl", rows))
    assert result.whole.estimates["pass@4"].value == 1.0
    assert result.whole.stops == ()
    assert not {name for name in result.whole.figures if name.startswith(("turns", "tokens", "seconds", "stop"))}
    assert result.notes == ("8 of 8 episodes are verl's, without tokens, turns, times and stop reasons",)
    assert [table.title for table in tables_of([result])] == ["Figures"]
    other = report(write(tmp_path / "4.jsonl", [row | {"score": 1.0} for row in rows]))
    assert compare(result, other)["success"].value == 0.75  # tasks are known by their prompts


def test_verls_columns_may_hold_anything(tmp_path):
    """Also under names of ours."""
    rows = [{"input": f"p{n}", "score": score, "turns": 3, "source": {}} for n, score in enumerate([0.0, 1.0, None])]
    result = report(write(tmp_path / "1.jsonl", rows))
    assert result.whole.estimates["reward"].value == 0.5
    assert result.whole.figures["episodes"] == 3
    assert result.notes[0] == "1 of 3 rewards are no numbers, or beyond 1e100, and left out"


def test_what_is_no_number_counts_nowhere_and_is_said(tmp_path):
    lines = [*episodes({"a": [0, 1], "b": [1, 1]}), line(score=math.nan), line(score=1e200)]
    result = report(tmp_path / "1.jsonl", lines)
    assert (result.whole.figures["episodes"], result.whole.figures["episodes/counted"]) == (5, 4)
    assert result.whole.estimates["reward"].value == 0.75
    assert list(result.notes) == [
        "1 of 6 lines cannot be read and are left out (the first says: expected a finite number as `score`, got NaN)",
        "1 of 6 rewards are no numbers, or beyond 1e100, and left out"
    ]  # fmt: skip


def failed(**changes):
    return line(stop_reason="engine_failed", error={"message": "x", "turn": 0}, **changes)


@pytest.mark.parametrize(
    ("lines", "value", "why"),
    [
        ([], None, "too few episodes that count"),
        ([failed(), failed()], None, "too few episodes that count"),
        ([line()], 1.0, "a single task, so it has no interval"),
        (episodes({"a": [1], "b": [1]}), 1.0, "the 2 tasks do not differ in it, so it has no interval"),
    ],
)
def test_no_figure_is_invented(tmp_path, lines, value, why):
    result = report(tmp_path / "1.jsonl", lines)
    reward = result.whole.estimates["reward"]
    assert (reward.value, reward.low, reward.why) == (value, None, why)
    assert all(math.isfinite(figure) for figure in result.whole.figures.values())
    json.dumps(result.to_json(), allow_nan=False)
    assert any(why in note for note in notes_of([result]))
    assert tables_of([result])[0].rows[0] == ("episodes", str(len(lines)))


def test_a_thousand_steps_are_listed_in_part(tmp_path):
    lines = [part for step in range(1000) for part in episodes({"a": [step % 2], "b": [0]}, step=step)]
    result = report(tmp_path / "1.jsonl", lines)
    table = next(table for table in tables_of([result]) if table.title == "By step")
    assert len(result.parts) == 1000
    assert (len(table.rows), table.rows[0][0], table.rows[-1][0]) == (24, "0", "999")
    assert any("24 of 1,000 parts are listed" in note for note in notes_of([result]))


def test_two_runs_are_compared_on_the_tasks_that_both_have(tmp_path):
    first = report(tmp_path / "a.jsonl", episodes({"a": [0, 0], "b": [0, 1], "c": [1, 1]}))
    second = report(tmp_path / "b.jsonl", episodes({"a": [1, 1], "b": [1, 1], "d": [0, 0]}))
    paired = compare(first, second)
    assert (paired["success"].value, paired["success"].tasks, paired["success"].dropped) == (0.75, 2, (1, 1))
    assert paired["pass@2"].value == 0.5
    [table, *_] = tables_of([first, second])
    assert table.head == ("", "a.jsonl", "b.jsonl", "b.jsonl - a.jsonl")
    row = next(row for row in table.rows if row[0] == "success")
    assert row[1].startswith("50.0% [")
    assert row[3].startswith("+75.0% ± ")
    assert any("2 tasks in both, 1 only in the first, 1 in the other" in note for note in notes_of([first, second]))


def test_tasks_without_ids_are_not_taken_for_the_same_in_other_steps_or_runs(tmp_path):
    lines = [line(task_id="", task_index=0, step=step, score=float(step)) for step in range(3)]
    first = report(tmp_path / "a.jsonl", lines)
    assert first.whole.figures["tasks"] == 3
    assert compare(first, report(tmp_path / "b.jsonl", lines))["reward"].why == "the runs share no task"


def test_a_tool_that_a_policy_names_anew_each_time_is_counted_as_other(tmp_path):
    turn = LINE["turns"][0]
    call = turn["tool_calls"][0]
    lines = [
        line(turns=[{**turn, "tool_calls": [{**call, "name": f"tool{n}", "seconds": n / 100, "status": "error"}]}])
        for n in range(150)
    ]
    result = report(tmp_path / "1.jsonl", lines)
    assert (len(result.tools), result.tools["other"]["calls"]) == (101, 50)
    assert result.tools["tool7"] | {"calls": 1, "errors": 1} == result.tools["tool7"]
    assert result.tools["tool7"]["seconds/p99"] == pytest.approx(0.07, rel=0.02)


def policies(*versions, **sampling):
    """Lines of episodes, each sampled by some versions of the weights, one after another."""
    for number, names in enumerate(versions):
        segments = [{"version_runs": [{"version": name, "tokens": 1}]} for name in names]
        yield line(
            id=f"{number}-{versions}-{sampling}", task_id=str(number), sequences=[{"segments": segments}],
            sampling={"temperature": 1.0, **sampling},
        )  # fmt: skip


def test_a_report_of_one_policy_has_no_note_on_it(tmp_path):
    summary = report(tmp_path / "one.jsonl", [*policies(["7"], ["7", "7"])])
    assert summary.weight_versions == {"7": 2}
    assert summary.distributions == {"temperature 1": 2}
    assert not summary.notes


def test_a_report_over_versions_of_the_weights_says_so(tmp_path):
    both = report(tmp_path / "both.jsonl", [*policies(["100"], ["100", "200"], ["200"])])
    assert both.weight_versions == {"100": 2, "200": 2}
    [note] = both.notes
    assert "2 versions of the weights (100: 2, 200: 2)" in note
    assert "changed during 1 of the episodes" in note
    assert both.to_json()["weight_versions"] == {"100": 2, "200": 2}


def test_a_report_of_many_versions_lists_the_ends(tmp_path):
    [note] = report(tmp_path / "many.jsonl", [*policies(*([str(n)] for n in range(12)))]).notes
    assert "12 versions of the weights (0: 1, 1: 1, 2: 1, ..., 9: 1, 10: 1, 11: 1)" in note


def test_a_report_over_ways_to_sample_says_so(tmp_path):
    lines = [*policies(["1"], temperature=0.6), *policies(["1"], ["1"], top_p=0.9)]
    lines[0]["turns"] = [*lines[0]["turns"]]
    lines[0]["turns"][0] = {**lines[0]["turns"][0], "sampling": {"temperature": 0.2}}
    both = report(tmp_path / "both.jsonl", lines)
    assert both.distributions == {"temperature 0.2": 1, "temperature 0.6": 1, "temperature 1, top_p 0.9": 2}
    assert any("sampled in 3 ways" in note for note in both.notes)


def test_runs_that_were_sampled_differently_are_compared_with_a_note(tmp_path):
    cold = report(tmp_path / "cold.jsonl", [*policies(["1"], temperature=0.6)])
    warm = report(tmp_path / "warm.jsonl", [*policies(["2"])])
    assert "warm.jsonl was sampled at temperature 1, and cold.jsonl at temperature 0.6" in [*notes_of([cold, warm])]
    assert not any("was sampled" in note for note in notes_of([cold, cold]))
