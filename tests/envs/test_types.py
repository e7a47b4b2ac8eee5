"""The vocabulary of ends."""

from __future__ import annotations

import pickle

from toolgym.envs import Blame, StepResult, StopReason

FAILED = {
    "env_create_failed", "reset_failed", "prompt_refused", "engine_failed", "engine_timeout", "env_failed",
    "env_timeout", "sandbox_failed", "tool_failed", "score_failed", "score_timeout", "context_failed",
    "context_timeout", "turn_timeout", "episode_timeout", "worker_died",
}  # fmt: skip


def test_a_failure_is_never_trained_on_nor_counted():
    assert {one.value for one in StopReason if one.failed} == FAILED
    assert {one for one in StopReason if not one.trainable} == {one for one in StopReason if one.failed}
    unearned = {"aborted", "straggler", "role_cut"}
    assert {one.value for one in StopReason if not one.in_group_statistics} == FAILED | unearned
    assert not any(one.blame is Blame.POLICY for one in StopReason if one.failed)


def test_every_end_has_a_blame_and_names_itself():
    assert {one.blame for one in StopReason} == set(Blame)
    assert [one.value for one in StopReason if not one.truncated] == ["answered", "too_many_bad_calls"]
    for one in StopReason:
        assert StopReason(one.value) is one is pickle.loads(pickle.dumps(one))
        assert f"{one}" == one.value


def test_how_a_step_ended_follows_from_its_reason():
    def ended(done, **info):
        result = StepResult([], 0.0, done, info)
        return result.stop_reason, result.terminated, result.truncated

    assert ended(False) == (None, False, False)
    assert ended(True) == (StopReason.ANSWERED, True, False)
    assert ended(True, stop_reason="max_turns") == (StopReason.MAX_TURNS, False, True)
    assert ended(True, stop_reason=StopReason.SANDBOX_FAILED) == (StopReason.SANDBOX_FAILED, False, True)
