"""The programs and files of docs/verl.md."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from tests.rollout.adapters.golden import golden
from toolgym.rollout.adapters.task_rows import task_of_row
from toolgym.rollout.adapters.verl.options import LoopOptions, ManagerOptions
from toolgym.rollout.adapters.verl.rows import extra_fields
from toolgym.rollout.limits import EpisodeLimits

PAGE = (Path(__file__).parents[4] / "docs" / "verl.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_options_of_its_file_exist_and_its_table_names_them_all():
    [text] = blocks("yaml")
    for entry in yaml.safe_load(text):
        assert entry.pop("_target_") == "toolgym.rollout.adapters.verl.ToolgymAgentLoop"
        entry.pop("name")
        LoopOptions(**entry)
    for option in (*dataclasses.fields(LoopOptions), *dataclasses.fields(ManagerOptions)):
        assert f"\n| `{option.name}` |" in PAGE, option.name
    for name in ("engine_timeout", "env_timeout", "episode_timeout", "score_grace", "max_resumes"):
        assert f"`{name}` {getattr(EpisodeLimits(), name):g}" in PAGE


def test_its_table_of_fields_names_them_all():
    fields = extra_fields(golden()[0])
    for name in (*fields, *fields["reward_extra_info"]):
        assert f"`{name}`" in PAGE, name


def test_its_row_is_a_task():
    _, _, text = blocks("python")
    names = {}
    exec(text, names)
    row = names["row"]
    task = task_of_row({**row, "raw_prompt": row["prompt"], "tools_kwargs": row["extra_info"]["tools_kwargs"]})
    assert (task.ground_truth, task.id) == ("42", "0")
    assert task.tools_kwargs == {"code_interpreter": {"create_kwargs": {}}}


def test_its_program_runs(capsys):
    pytest.importorskip("verl")
    text, _, _ = blocks("python")
    exec(text, {})
    assert capsys.readouterr().out.splitlines()[-1] == "torch.Size([8, 512])"


def test_its_program_for_a_queue_puts_rows(monkeypatch):
    pytest.importorskip("transfer_queue")
    from toolgym.rollout.adapters import transfer_queue

    _, text, _ = blocks("python")
    names, put = {}, []
    exec(text, names)

    async def put_groups(self, trajectories, rows, *, group_size):
        put.extend(row.key for one in trajectories for row in rows(one))

    monkeypatch.setattr(transfer_queue.TransferQueueWriter, "put_groups", put_groups)
    asyncio.run(names["write"](golden(), 7, 0))
    assert put[:3] == ["group0_0_0", "group0_1_0", "group1_0_0"]


def test_its_commands_are_accepted_by_verl_s_schema(verl_config):
    pytest.importorskip("verl")
    loop, manager = (
        verl_config(*[word for word in command.replace("\\", " ").split() if "=" in word])
        for command in blocks("bash")
        if "main_ppo" in command
    )
    custom = loop.actor_rollout_ref.rollout.custom.toolgym
    assert LoopOptions(**custom).env_kwargs["max_turns"] == 6
    rollout = manager.actor_rollout_ref.rollout
    assert rollout.agent.agent_loop_manager_class == "toolgym.rollout.adapters.verl.ToolgymManager"
    assert ManagerOptions(**rollout.custom.toolgym_manager).max_concurrent == 256
