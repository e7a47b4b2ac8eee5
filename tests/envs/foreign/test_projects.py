"""Objects of other projects are known by their classes' modules, and no project is imported for it."""

from __future__ import annotations

import sys

import pytest

from tests.envs.foreign.shapes import class_of
from toolgym.envs import wrap
from toolgym.envs.foreign.projects import project_of
from toolgym.tools.errors import ConfigError


def test_no_project_is_imported_to_recognise_its_objects():
    names = {
        "gem": class_of("gem.core", "Env"),
        "skyrl_gym": class_of("skyrl_gym.core", "Env"),
        "aviary": class_of("aviary.env", "Environment"),
        "openenv": class_of("openenv.core.env_client", "EnvClient"),
        "textarena": class_of("textarena.core", "Env"),
        "tau2": class_of("tau2.gym.gym_agent", "AgentGymEnv"),
    }
    before = set(sys.modules)
    for project, base in names.items():
        assert project_of(type("Mine", (base,), {})()) == project
    assert project_of(object()) is None
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & set(names)
    for module, name, message in (
        ("gem.multiagent.multi_agent_env", "MultiAgentEnv", "several agents"),
        ("aviary.env", "TaskDataset", "seed_tasks"),
    ):
        with pytest.raises(ConfigError, match=message):
            wrap(class_of(module, name)())
