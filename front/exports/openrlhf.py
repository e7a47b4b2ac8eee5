"""`toolgym export openrlhf`: an env as a file that OpenRLHF loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from toolgym.cli.files import require_absent
from toolgym.cli.user_code import env_ids, load_env, read_env_kwargs
from toolgym.tools.errors import ConfigError

_AGENT = '''\
"""Plays {env} for OpenRLHF, which loads this file with --train.agent_func_path."""

from toolgym.rollout.adapters.openrlhf import agent_executor

AgentExecutor = agent_executor({arguments})
'''


def openrlhf_command(
    env: Annotated[
        str,
        typer.Option(help="Id of the env (`toolgym envs` lists them), or 'module:Id'.", autocompletion=env_ids),
    ],
    env_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments of the env as a JSON object.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per turn; default: what OpenRLHF's own bounds leave.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the file; default: standard output.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Write the agent file for OpenRLHF's --train.agent_func_path."""
    load_env(env)  # here, where a mistake stops the command
    options: dict[str, Any] = {"env_kwargs": read_env_kwargs(env_kwargs), "max_new_tokens": max_new_tokens}
    arguments = [repr(env), *(f"{name}={value!r}" for name, value in options.items() if value)]
    text = _AGENT.format(env=env, arguments=", ".join(arguments))
    if out is None:
        typer.echo(text, nl=False)
        return
    if out.suffix != ".py":
        raise ConfigError(f"--out: OpenRLHF loads files whose names end in .py, got {str(out)!r}")
    if not overwrite:
        require_absent("--out", out)
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{out}: give it to OpenRLHF with --train.agent_func_path {out}")
