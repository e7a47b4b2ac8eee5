"""Headers that agents send by themselves."""

from __future__ import annotations

import pytest

from toolgym.rollout.capture.gateway.agent_headers import SubAgents, compacts, shown_keys, shows


@pytest.mark.parametrize(
    ("headers", "keys"),
    [
        ({"authorization": "Bearer  k "}, ["k"]),
        ({"authorization": "bearer k", "x-api-key": "other"}, ["k", "other"]),
        ({"authorization": "Basic k"}, []),
        ({"authorization": "k"}, []),
        ({"x-api-key": " "}, []),
        ({}, []),
    ],
)
def test_keys_are_those_of_both_wires(headers, keys):
    assert shown_keys(headers) == keys


@pytest.mark.parametrize(
    ("keys", "expected", "fits"),
    [(["a", "b"], "b", True), (["a"], "b", False), ([], "b", False), (["a"], None, False), ([""], None, False)],
)
def test_a_key_fits_the_expected_one_alone(keys, expected, fits):
    assert shows(keys, expected) is fits


CLAUDE = {"x-claude-code-session-id": "s"}
CODEX = {"session-id": "s", "thread-id": "main"}
OPENCODE = {"x-session-id": "main", "x-session-affinity": "main"}


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (CLAUDE, ""),
        (CLAUDE | {"x-claude-code-agent-id": "a1"}, "a1"),
        (CODEX, ""),
        (CODEX | {"thread-id": "t2", "x-codex-parent-thread-id": "main"}, "t2"),
        (CODEX | {"thread-id": "t3", "x-openai-subagent": "review"}, "t3"),
        (CODEX | {"x-openai-subagent": "compact"}, ""),
        ({"x-openai-subagent": "review"}, "review"),
        (OPENCODE, ""),
        (OPENCODE | {"x-session-id": "s2", "x-parent-session-id": "main"}, "s2"),
        ({}, ""),
    ],
)
def test_sub_agents_are_named_by_their_clients(headers, name):
    assert SubAgents().name(headers) == (name, False)


def test_the_first_conversation_is_the_main_one_where_a_client_does_not_say():
    agents = SubAgents()
    names = [agents.name({"x-litellm-session-id": id}) for id in ("m", "s", "m", "s")]
    assert names == [("", False), ("s", True), ("", False), ("s", True)]


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"x-codex-turn-metadata": '{"request_kind": "compaction", "window_number": 1}'}, True),
        ({"x-codex-turn-metadata": '{"request_kind": "turn"}'}, False),
        ({"x-codex-turn-metadata": "[1]"}, False),
        ({"x-codex-turn-metadata": "{"}, False),
        ({"x-openai-subagent": "compact"}, True),
        ({}, False),
    ],
)
def test_a_compaction_is_told_by_codex(headers, says):
    assert compacts(headers) is says
