"""`toolgym play`: a person is the policy."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from toolgym.cli.rollout_options import RolloutOptions
from toolgym.cli.tables import message_text
from toolgym.cli.user_code import env_ids, tools_in
from toolgym.commands.tools import schema_text
from toolgym.rollout.engines.open import open_engine
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, ToolgymError, nearest
from toolgym.tools.views.html import without_controls

if TYPE_CHECKING:
    from toolgym.commands.played_episode import PlayedEpisode
    from toolgym.rollout.engines.base import Generation

HELP = """\
/call NAME {json}  call a tool; without the JSON it asks for each argument
/text              write a turn of several lines; a line with a dot alone ends it
/suggest, /yes     have the engine (--engine) write a turn, and play it
/tools, /help      show the tools, or this
/undo              take the last turn back
/save [FILE]       write the trajectory; an episode that goes on ends with it
/quit              leave
Anything else is a turn as the model would write it; the model's parser reads its calls."""

LENT = ("device", "dtype", "tokenizer", "api_key", "parser", "task_file", "task_columns", "tool_config", "env_kwargs",
        "max_turns", "max_new_tokens", "temperature", "seed")  # fmt: skip
"""Options that are those of `toolgym rollout`."""


def command(
    *,
    env: Annotated[str, typer.Argument(metavar="ENV", help="Its id, or module:Id.", autocompletion=env_ids)],
    engine: Annotated[str | None, typer.Option(help="What suggests turns, as rollout's --engine.")] = None,
    task: Annotated[int, typer.Option(min=0, help="Place of the task among the env's, from 0.")] = 0,
    **lent: Any,
) -> None:
    """Play a task as the policy. Turns are typed, or come from standard input; /help says what to type."""
    asyncio.run(_main(RolloutOptions(env=env, **lent), engine, task))


_OWN = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "lent"]
command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*_OWN, *(each for each in RolloutOptions.parameters() if each.name in LENT)]
)


async def _main(options: RolloutOptions, name: str | None, index: int) -> None:
    from toolgym.commands.played_episode import PlayedEpisode
    from toolgym.rollout import load_tokenizer, tiny_policy_path
    from toolgym.rollout.runner.envs.env_factory import EnvFactory

    arguments = options.env_arguments()
    factory = EnvFactory.of(options.env, arguments)
    source = await factory.tasks()
    if source.size is not None and index >= source.size:
        raise ConfigError(f"--task {index}: the env has the tasks 0 to {source.size - 1}")
    async with contextlib.AsyncExitStack() as stack:
        for tool in tools_in(arguments):
            stack.push_async_callback(tool.close)
        settings = {option: getattr(options, option) for option in ("tokenizer", "api_key", "device", "dtype")}
        engine = None if name is None else await stack.enter_async_context(open_engine(name, **settings))
        tokenizer = load_tokenizer(options.tokenizer or tiny_policy_path()) if engine is None else engine.tokenizer
        game = PlayedEpisode(factory, source.task(index), index, tokenizer, options.config(), engine)
        stack.push_async_callback(game.close)
        await game.begin()
        await _Player(game).play()


class _Player:
    """The person: what it is shown, and the lines that it types."""

    def __init__(self, game: PlayedEpisode) -> None:
        self._game, self._console, self._shown = game, Console(highlight=False, soft_wrap=True), 0
        self._suggested: Generation | None = None

    async def play(self) -> None:
        await self._do("/tools")
        await self._do("/help")
        self._show()
        with contextlib.suppress(EOFError):
            while (line := await self._line("> ")).strip() != "/quit":
                try:
                    await self._do(line)
                except ToolgymError as error:
                    self._print(f"error: {error}", "red")

    async def _do(self, line: str) -> None:
        game, (word, _, rest) = self._game, line.strip().partition(" ")
        if word == "/help":
            self._print(HELP, "dim")
        elif word == "/tools":
            self._console.print(*map(schema_text, game.tools.values()), sep="\n")
        elif word == "/undo":
            await game.undo()
            self._shown = len(game.messages) - 1
            self._print("taken back; the last message was:", "yellow")
            self._show()
        elif word == "/save":
            path = Path(rest or "played.jsonl")
            if path.exists():
                raise ConfigError(f"{str(path)!r} is there already: name another file")
            saved = await game.save(path)
            self._print(f"trajectory  {path}  ({saved.stop_reason.value})")
        elif game.trajectory is not None:
            raise ConfigError("the episode is over: /save FILE, /undo or /quit")
        elif word == "/suggest":
            self._suggested = await game.suggest()
            self._print(f"{game.renderer.text(self._suggested.token_ids)}\n/yes plays it", "magenta")
        elif word:
            await game.send(await self._turn(word, rest.strip(), line))
            self._suggested = None
            self._show()

    async def _turn(self, word: str, rest: str, line: str) -> Generation:
        if word == "/yes" and self._suggested is not None:
            return self._suggested
        if word == "/text":
            return self._game.text(await self._lines())
        if word == "/call":
            name, _, text = rest.partition(" ")
            if name not in (tools := self._game.tools):
                raise ConfigError(f"no tool {name!r}{nearest(name, tools)}; there are: {', '.join(tools) or 'none'}")
            try:
                arguments = json.loads(text) if text.strip() else await self._ask(tools[name].parameters)
            except ValueError as error:
                raise ConfigError(f"the arguments are not JSON: {error}") from None
            if not isinstance(arguments, dict):
                raise ConfigError(f"the arguments must be a JSON object, got {text}")
            return self._game.call(name, arguments)
        if word.startswith("/"):
            raise ConfigError(f"nothing is suggested, or no such command: {word!r}; /text writes any turn")
        return self._game.text(line)

    async def _ask(self, parameters: Any) -> dict[str, Any]:
        arguments = {}
        for name, schema in parameters.get("properties", {}).items():
            kind, needed = schema.get("type", "JSON"), name in parameters.get("required", ())
            answer = await self._line(f"  {name} ({kind}{'' if needed else ', may be empty'}; << for several lines): ")
            answer = await self._lines() if answer.strip() == "<<" else answer
            if answer or needed:
                arguments[name] = answer if kind == "string" else json.loads(answer)
        return arguments

    async def _line(self, prompt: str) -> str:
        self._console.print(prompt, end="", markup=False, style="bold")
        line: str = await in_thread(sys.stdin.readline)  # without a deadline: a person may think
        if not sys.stdin.isatty():
            self._print(line.rstrip("\n"))
        if not line:
            raise EOFError
        return line.rstrip("\n")

    async def _lines(self) -> str:
        lines = []
        while (line := await self._line("| ")) != ".":
            lines.append(line)
        return "\n".join(lines)

    def _show(self) -> None:
        for message in self._game.messages[self._shown :]:
            self._console.print(message_text(message))
        self._shown = len(self._game.messages)
        if (end := self._game.trajectory) is not None:
            why = f": {end.error.message}" if end.error is not None else ""
            self._print(f"over: reward {end.reward:g}, {end.stop_reason.value}{why}", "bold")
            self._print(f"ground truth: {end.ground_truth}")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(without_controls(text), markup=False, style=style)
