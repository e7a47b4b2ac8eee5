"""The ids that toolgym brings: a table, so that `import toolgym` need not import an env to know its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolgym.envs.families.reasoning_gym.names import COMPOSITE, GENERATORS
from toolgym.envs.families.textarena.games import GAMES, env_id


class OwnEnv(NamedTuple):
    """What an id stands for; see `toolgym.envs.registry.EnvSpec`."""

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
    "SWEDev-v0": OwnEnv(
        "toolgym.envs.served.sessions.env:swe_dev_env",
        "Repair a repository with a shell and an editor; hidden tests decide.",
    ),
    "SearchQA-v0": OwnEnv(
        "toolgym.envs.library.search_qa:SearchQAEnv",
        "Answer a question that takes several searches, with `<answer>answer</answer>`.",
    ),
    "CodeJudge-v0": OwnEnv("toolgym.envs.library.code_judge:CodeJudgeEnv", "Write a program; hidden tests decide."),
    "SQL-v0": OwnEnv(
        "toolgym.envs.families.sql.env:SQLEnv",
        "Answer a question on a database with a query, which may be tried first, in a ```sql block.",
    ),
    **{
        f"ReasoningGym/{name}-v0": OwnEnv(
            "toolgym.envs.families.reasoning_gym.env:ReasoningGymEnv",
            f"Answer a question of reasoning-gym's generator {name}, between <answer> tags.",
            {"generator": name},
        )
        for name in (*GENERATORS, COMPOSITE)
    },
    **{
        f"BFCL/{category}-v0": OwnEnv(
            "toolgym.envs.families.bfcl.env:BFCLEnv",
            f"Do what a user asks for, one thing after another, with functions that have state: {about}.",
            {"category": category},
        )
        for category, about in {
            "multi_turn_base": "all that is needed is there",
            "multi_turn_miss_func": "a function comes later",
            "multi_turn_miss_param": "an argument comes later",
            "multi_turn_long_context": "long results",
        }.items()
    },
    **{
        env_id(game): OwnEnv(
            "toolgym.envs.families.textarena.env:textarena_env", f"Play TextArena's {game}.", {"game": game}
        )
        for game in GAMES
    },
    "GSM8K-v0": OwnEnv(
        "toolgym.envs.library.gsm8k:Gsm8kEnv",
        "Solve a word problem: reason, check the answer with a tool, refine, and answer with `#### answer`.",
    ),
    "Math-v0": OwnEnv(
        "toolgym.envs.library.math_env:MathEnv",
        "Solve a problem of mathematics, and answer with `\\boxed{answer}`; compared by math-verify.",
    ),
    "SingleTurn-v0": OwnEnv(
        "toolgym.envs.library.single_turn:SingleTurnEnv",
        "One question, one answer, no tool.",
    ),
}

FAMILIES: dict[str, str] = {
    "BFCL": "Executable multi-turn tasks of the Berkeley Function-Calling Leaderboard.",
    "ReasoningGym": "A question of a generator of reasoning-gym, answered between <answer> tags.",
    "TextArena": "A game of TextArena for one player.",
}
"""What the ids of each namespace are."""
