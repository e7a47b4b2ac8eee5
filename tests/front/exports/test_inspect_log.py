"""Logs of Inspect, read back with Inspect: messages, events, tokens and scores of each trajectory."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("inspect_ai", reason="needs the extra inspect: see scripts/trainers/inspect.txt")

from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries

from tests.front.exports.conftest import DEMO
from toolgym.exports.writing import UNPARSED
from toolgym.rollout.trajectory.summary import succeeded


@pytest.fixture(scope="module")
def log_file(tmp_path_factory):
    """Made once: each test only reads it."""
    import sys

    from toolgym.cli.app import main

    path = tmp_path_factory.mktemp("inspect") / "demo.eval"
    before, sys.argv = sys.argv, ["toolgym", "export", str(DEMO), "--to", "inspect", "--out", str(path)]
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = before
    assert left.value.code == 0
    return path


@pytest.fixture(scope="module")
def samples(log_file):
    log = read_eval_log(str(log_file))
    assert log.status == "success"
    return {sample.uuid: sample for sample in log.samples}


def events(sample, kind):
    return [event for event in sample.events if event.event == kind]


def test_each_trajectory_is_a_sample_with_an_id_and_an_epoch_of_its_own(log_file, samples, demo):
    assert sorted(samples) == sorted(trajectory.id for trajectory in demo)
    assert len({(sample.id, sample.epoch) for sample in samples.values()}) == len(demo)
    for trajectory in demo:
        assert samples[trajectory.id].id == f"{trajectory.task_id}@{trajectory.training_step}"
    first = [samples[t.id].epoch for t in demo if t.group_id == demo[0].group_id]
    assert first == [1, 2, 3, 4]
    assert len(read_eval_log_sample_summaries(str(log_file))) == len(demo)


def test_the_columns_of_the_list_are_full(log_file, demo):
    log = read_eval_log(str(log_file), header_only=True)
    assert (log.eval.task, log.eval.model) == ("CodeInterpreter-v0", "tiny")
    counted = [trajectory for trajectory in demo if trajectory.in_group_statistics]
    means = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert means["reward"] == pytest.approx(sum(t.reward for t in counted) / len(counted))
    assert means["success"] == pytest.approx(sum(map(succeeded, counted)) / len(counted))
    assert (log.results.total_samples, log.results.completed_samples) == (len(demo), len(counted))


def test_a_turn_is_a_model_call_with_what_it_was_sent_and_the_exact_tokens(samples, demo):
    for trajectory in demo:
        sample = samples[trajectory.id]
        calls, spoken = events(sample, "model"), [m for m in sample.messages if m.role == "assistant"]
        assert len(calls) == len(trajectory.turns)
        sampled = []
        for call, turn, message in zip(calls, trajectory.turns, spoken, strict=True):
            place = sample.messages.index(message)
            assert [m.id for m in call.input] == [m.id for m in sample.messages[:place]]
            assert call.output.message.id == message.id
            assert (call.output.usage.input_tokens, call.output.usage.output_tokens) == (
                turn.prompt_tokens, turn.generated_tokens
            )  # fmt: skip
            assert call.output.metadata["text"] == turn.text
            assert [item.token for item in call.output.choices[0].logprobs.content][-1] == "<|im_end|>"
            sampled += zip(call.output.metadata["token_ids"],
                           (item.logprob for item in call.output.choices[0].logprobs.content), strict=True)  # fmt: skip
        mask = trajectory.sequence.response_mask == 1
        wanted = zip(trajectory.response_ids[mask].tolist(), trajectory.logprobs[mask].tolist(), strict=True)
        assert sampled == list(wanted)
        assert [m.text for m in sample.messages] == [m["content"] for m in trajectory.messages]


def test_calls_of_tools_are_events_with_their_results_and_errors(samples, demo):
    for trajectory in demo:
        shown = [(e.function, str(e.result), e.failed, e.error is None) for e in events(samples[trajectory.id], "tool")]
        assert shown == [
            (r.name or UNPARSED, r.text, r.status != "ok", r.status == "ok") for r in trajectory.tool_calls
        ]
    refused = next(t for t in demo if any(not call.name for call in t.tool_calls))
    [event, *_] = [e for e in events(samples[refused.id], "tool") if e.function == UNPARSED]
    assert (event.error.type, event.metadata["status"]) == ("parsing", "malformed_json")


def test_scores_failures_and_branches(samples, demo):
    for trajectory in demo:
        sample = samples[trajectory.id]
        assert sample.scores["reward"].value == trajectory.reward
        assert sample.scores["success"].value == int(succeeded(trajectory))
        assert (sample.error is not None) == trajectory.failed
        assert (sample.metadata["parent"], sample.metadata["branch_turn"]) == (
            trajectory.parent,
            trajectory.branch_turn,
        )
        [score] = events(sample, "score")
        assert (score.score.value, score.score.explanation) == (trajectory.reward, trajectory.stop_reason)
        assert sample.target == trajectory.ground_truth
    failed = next(trajectory for trajectory in demo if trajectory.failed)
    assert "closed the connection" in samples[failed.id].error.message


def test_events_follow_each_other_in_one_span_that_is_not_folded(samples, demo):
    for trajectory in demo:
        sample = samples[trajectory.id]
        [begin], [end] = events(sample, "span_begin"), events(sample, "span_end")
        assert (begin.type, begin.id) == ("solver", end.id)
        assert {event.span_id for event in events(sample, "model") + events(sample, "tool")} <= {begin.id}
        times = [event.timestamp for event in sample.events if event.event != "score"]
        assert all(event.working_start >= 0 for event in sample.events)
        assert times[:-1] == sorted(times[:-1])
        assert len({event.uuid for event in sample.events}) == len(sample.events)


def test_every_kind_of_trajectory_can_be_read_back(kinds, kinds_file, export, tmp_path):
    code, out, _ = export(kinds_file, "--to", "inspect", "--out", tmp_path / "kinds.eval", "--json")
    assert (code, json.loads(out)["written"]) == (0, len(kinds))
    log = read_eval_log(str(tmp_path / "kinds.eval"))
    assert sorted(sample.uuid for sample in log.samples) == sorted(trajectory.id for trajectory in kinds)
    by_id = {sample.uuid: sample for sample in log.samples}
    assert [call.output.metadata["begins_context"] for call in events(by_id["anew"], "model")] == ["", "env"]
    assert by_id["thought"].messages[1].content[0].reasoning == "hm"
    assert by_id["thought"].messages[1].text == "a"
    [call] = events(by_id["../../infinite"], "model")
    assert call.output.choices[0].logprobs.content[0].logprob in (-math.inf, None)


def test_a_tokenizer_that_is_not_there_is_said(export, tmp_path):
    code, _, err = export(DEMO, "--to", "inspect", "--out", tmp_path / "x.eval", "--tokenizer", tmp_path / "none")
    assert code in (1, 2)
    assert "none" in err
    assert list(tmp_path.iterdir()) == []
