"""The options of `toolgym rollout`: each field is one, and those that a config class has go there by their names."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from toolgym.cli import rollout_config, rollout_resume
from toolgym.cli.files import require_absent
from toolgym.cli.user_code import env_ids, load_env, load_tools, read_env_kwargs
from toolgym.rollout.limits import HistoryMode, TruncationPolicy
from toolgym.rollout.runner.metrics.log_to import LogTo
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from toolgym.rollout.runner.config import RunConfig

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    env: Annotated[
        str,
        typer.Option(
            help="Id of the env (`toolgym envs` lists them), or 'module:Id', where the module, which may be in the "
            "current folder, registers the id. Several make a mixture, each with its weight: 'A-v0=2,B-v0=1'; the rows "
            "of a --task-file then name theirs in a column env_id.",
            autocompletion=env_ids,
        ),
    ] = "CodeInterpreter-v0"
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks to play.")] = 32
    group_size: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 4
    out: Annotated[Path, typer.Option(help="Folder for trajectories (0.jsonl), batch.safetensors and run.json.")] = (
        Path("rollout-out")
    )
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            is_eager=True,
            callback=rollout_resume.take_options,
            help="Go on with the run in this folder, the --out of an earlier call that was killed or interrupted. "
            "Nothing that has finished is played again. The run has its own options; only --engine and what belongs "
            "to it, --concurrency, --log and --metrics-port may be given anew.",
        ),
    ] = None
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", is_eager=True, callback=rollout_config.take_file, help="Settings in YAML; options win."
        ),
    ] = None
    print_config: Annotated[bool, typer.Option("--print-config", help="Print what would run, for --config.")] = False
    engine: Annotated[
        str,
        typer.Option(
            help="'tiny' (a small policy on the CPU), an SGLang server's URL (of several: with commas between; or a "
            "router's), another server's (vLLM's) with its /v1, a model folder, or a model's name on the hub, org/name."
        ),
    ] = "tiny"
    device: Annotated[
        str | None, typer.Option(help="Where to put a model that is loaded here: cpu, cuda, cuda:1 ... [default: cpu]")
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="Of a model that is loaded here: bfloat16, float32 ... [default: the checkpoint's]"),
    ] = None
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer folder or name, if the server's own path is not on this machine.")
    ] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="TOOLGYM_API_KEY", help="Key for servers that want one.", show_default=False)
    ] = None
    parser: Annotated[
        str | None,
        typer.Option(
            help="How the model writes tool calls: a parser's name, or 'sglang:NAME' for one of SGLang's; default: as "
            "the chat template shows it. 'open_thinking:NAME' runs calls in a <think> that never closes, too."
        ),
    ] = None
    task_file: Annotated[
        Path | None,
        typer.Option(
            help="File of tasks, instead of the env's own: JSON Lines, JSON, Parquet or CSV, with rows in verl's shape "
            "or with --task-columns."
        ),
    ] = None
    task_columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=COLUMN,...",
            help="Columns of the task file that hold the prompt, ground_truth, id and source, such as "
            "'prompt=question,ground_truth=answer'.",
        ),
    ] = None
    tool_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file of tools in verl's shape, instead of the env's own. Several envs get them all, or each "
            "those that are named for it: 'A-v0=a.yaml,B-v0=b.yaml'.",
        ),
    ] = None
    env_kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Arguments of the env as a JSON object, 'wrappers' among them."),
    ] = None
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turns per episode, if not the env's default.")] = None
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per turn.")] = 512
    max_response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per episode after the prompt; default: what the context holds.")
    ] = None
    history: Annotated[
        HistoryMode,
        typer.Option(
            help="What the policy sees of its earlier turns: what it generated, or what the chat template makes of it."
        ),
    ] = HistoryMode.APPEND
    on_truncated_turn: Annotated[
        TruncationPolicy,
        typer.Option(help="A turn that reached its length ends the episode, or is closed and the episode goes on."),
    ] = TruncationPolicy.END
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 1.0
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0
    refills: Annotated[
        int, typer.Option(min=0, help="How often an episode that the infrastructure broke off is played again.")
    ] = 0
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Episodes in flight; else as many as fill the engine's KV cache, or 64.")
    ] = None
    episode_timeout: Annotated[float, typer.Option(help="Seconds per episode.")] = 600.0
    seed: Annotated[int, typer.Option(help="Seed of tasks and sampling.")] = 0
    record: Annotated[
        Path | None, typer.Option(help="Record all of the run to this file, for toolgym replay and bug reports.")
    ] = None
    journal: Annotated[
        bool,
        typer.Option(
            help="Keep the engine's answers in the folder until their episode has finished, so that --resume goes on "
            "with an interrupted episode where it was; else it begins anew."
        ),
    ] = True
    log: Annotated[
        list[LogTo] | None,
        typer.Option(help="Log config, figures and a few examples there; may be given several times."),
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve the figures to Prometheus at this port of localhost.")
    ] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier run left at --out and --record.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures and the paths as JSON.")] = False

    @classmethod
    def parameters(cls) -> Iterator[inspect.Parameter]:
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )

    @property
    def folder(self) -> Path:
        return self.out if self.resume is None else self.resume

    def config(self) -> RunConfig:
        from toolgym.rollout.engines.base import SamplingParams
        from toolgym.rollout.limits import EpisodeLimits
        from toolgym.rollout.runner.adaptive import Adaptive
        from toolgym.rollout.runner.config import RunConfig

        return self._filled(
            RunConfig,
            max_concurrent=Adaptive() if self.concurrency is None else self.concurrency,
            sampling=self._filled(SamplingParams, seed=None),  # that of the run seeds each request
            limits=self._filled(EpisodeLimits),
        )

    def _filled(self, kind: type[T], **values: Any) -> T:
        """Make a config from the options that have the names of its fields, and from these values."""
        names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        return kind(**{name: value for name, value in vars(self).items() if name in names} | values)

    @property
    def every_id(self) -> list[str]:
        return ids_of(self.env)

    def env_arguments(self) -> dict[str, Any]:
        from toolgym.envs.tasks.combined.named_sources import split_by_column
        from toolgym.envs.tasks.loading import load_tasks
        from toolgym.envs.tasks.row_fields import ENV_COLUMN

        ids = ids_of(self.env)
        classes = {id: load_env(id).load() for id in ids}  # so that a typo is an error before anything else is loaded
        if self.task_columns is not None and self.task_file is None:
            raise ConfigError("--task-columns are those of a --task-file, and there is none")
        source = load_tasks(self.task_file, columns=self._columns()) if self.task_file is not None else None
        arguments = read_env_kwargs(self.env_kwargs)
        further: dict[str, dict[str, Any]] = {
            id: {} if self.max_turns is None else {"max_turns": self.max_turns} for id in ids
        }
        for id, tools in load_tools(self.tool_config, ids, self.every_id).items():
            further[id]["tools"] = tools
            if "own_tools" in inspect.signature(classes[id]).parameters:
                further[id]["own_tools"] = False
        if len(ids) == 1:
            return arguments | further[self.env] | ({} if source is None else {"tasks": source})
        if source is not None:
            parts = split_by_column(source, ENV_COLUMN, str, "the id of an env")
            if parts.keys() != set(ids):
                rows = ", ".join(map(str, parts))
                raise ConfigError(
                    f"the tasks of {str(self.task_file)!r} are for {rows}, and --env has {', '.join(ids)}"
                )
            for id in ids:
                further[id]["tasks"] = parts[id]
        for id in ids:
            if not isinstance(arguments.get(id, {}), dict):
                raise ConfigError(f"--env-kwargs: expected an object of arguments for {id!r}, got {arguments[id]!r}")
        return arguments | {id: {**arguments.get(id, {}), **further[id]} for id in ids}

    def _columns(self) -> dict[str, str] | None:
        if self.task_columns is None:
            return None
        pairs = [part.strip().partition("=") for part in self.task_columns.split(",")]
        if not all(name and column for name, _, column in pairs) or len({name for name, _, _ in pairs}) < len(pairs):
            raise ConfigError(
                f"expected --task-columns like 'prompt=question,ground_truth=answer', got {self.task_columns!r}"
            )
        return {name.strip(): column.strip() for name, _, column in pairs}

    def check_files(self) -> None:
        """Check that the run replaces no file that must stay."""
        from toolgym.rollout.recording.run_folder import BATCH, RUN, TRAJECTORIES, TURNS

        out, record = self.folder, self.record
        if record is not None and record.resolve() in [
            (out / name).resolve() for name in (RUN, TRAJECTORIES, TURNS, BATCH)
        ]:
            raise ConfigError(f"--record {str(record)!r} is where the results of --out go: name another file")
        if self.overwrite or self.resume is not None:
            return
        if (out / RUN).is_file():
            raise ConfigError(
                f"{str(out / RUN)!r} is of an earlier run: go on with that with --resume {out}, name another folder "
                "with --out, or replace it with --overwrite"
            )
        require_absent("--out", *(out / name for name in (TRAJECTORIES, BATCH)))
        require_absent("--record", *([record] if record is not None else []))


def ids_of(env: str) -> list[str]:
    from toolgym.rollout.runner.envs.env_factory import read_weights

    return list(read_weights(env)) if "," in env else [env]
