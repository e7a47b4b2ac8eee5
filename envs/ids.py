"""The ids that toolgym brings: a table, so that `import toolgym` need not import an env to know its id."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple


class OwnEnv(NamedTuple):
    """The env of an id; see `toolgym.envs.registry.EnvSpec`."""

    entry_point: str
    description: str
    kwargs: Mapping[str, Any] = {}


OWN_ENVS: dict[str, OwnEnv] = {
    "CodeInterpreter-v0": OwnEnv(
        "toolgym.envs.library.code_interpreter:CodeInterpreterEnv",
        "Solve a problem with the help of a Python interpreter, and answer with `#### answer`.",
    ),
    "UserSim-v0": OwnEnv(
        "toolgym.envs.library.user_sim:UserSimEnv",
        "Talk with a simulated user, a function or a model; embedded: take an order in a shop.",
    ),
    "MCP-v0": OwnEnv(
        "toolgym.envs.library.mcp_env:McpEnv",
        "Use the tools of an MCP server, with a session for each episode; embedded: a shop's stock.",
    ),
    "SearchQA-v0": OwnEnv(
        "toolgym.envs.library.search_qa:SearchQAEnv",
        "Answer a question that takes several searches, with `<answer>answer</answer>`.",
    ),
    "CodeJudge-v0": OwnEnv("toolgym.envs.library.code_judge:CodeJudgeEnv", "Write a program; hidden tests decide."),
    "GSM8K-v0": OwnEnv(
        "toolgym.envs.library.gsm8k:Gsm8kEnv",
        "Solve a word problem: reason, check the answer with a tool, refine, and answer with `#### answer`.",
    ),
    "Math-v0": OwnEnv(
        "toolgym.envs.library.math_env:MathEnv",
        "Solve a problem of mathematics, and answer with `\\boxed{answer}`; compared by math-verify.",
    ),
    "PlotReader-v0": OwnEnv(
        "toolgym.envs.library.plot_reader:PlotReaderEnv",
        "Read a number off a plot, which a tool draws and shows as an image.",
    ),
    "SingleTurn-v0": OwnEnv(
        "toolgym.envs.library.single_turn:SingleTurnEnv",
        "One question, one answer, no tool.",
    ),
}

FAMILIES: dict[str, str] = {}
"""A description of the ids of each namespace."""

ROOMS = (
    "toolgym.envs.families.bfcl.ids",
    "toolgym.envs.families.reasoning_gym.ids",
    "toolgym.envs.families.sql.ids",
    "toolgym.envs.families.swe.ids",
    "toolgym.envs.families.textarena.ids",
)
"""A line for each family: its module of ids, which imports nothing."""

for _room in ROOMS:
    _ids = importlib.import_module(_room)
    OWN_ENVS |= {_id: OwnEnv(*_env) for _id, _env in _ids.IDS.items()}
    FAMILIES |= _ids.NAMESPACES
