"""`toolgym tools`: the tools that there are, their schemas, and one call of one."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from toolgym.cli.user_code import import_module, read_env_kwargs
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.views.html import without_controls

if TYPE_CHECKING:
    from toolgym.envs.types import ToolCallRecord
    from toolgym.tools import BaseTool, ToolSchema


def command(
    name: Annotated[str | None, typer.Argument(help="Only this tool.")] = None,
    source: Annotated[
        str, typer.Option("--from", metavar="FILE|MODULE", help="YAML file of tools in verl's shape, or a module.")
    ] = "toolgym.tools",
    config: Annotated[str | None, typer.Option(metavar="JSON", help="Options of the tool.")] = None,
    call: Annotated[str | None, typer.Option(metavar="JSON", help="Run the tool once with these arguments.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List tools with their schemas, or run one once, as an env does. Exit status 1 for a call that is not ok."""
    console, tools = Console(highlight=False, soft_wrap=True), _tools(source)
    if name is not None and name not in tools:
        raise UnknownNameError(f"no tool is called {name!r}{nearest(name, tools)}; tools: {', '.join(tools)}")
    if call is None:
        schemas = [schema for schema, _ in tools.values() if name in (None, schema.name)]
        if as_json:
            console.print_json(json.dumps([schema.to_openai() for schema in schemas]))
        else:
            console.print(*map(schema_text, schemas), sep="\n")
        return
    if name is None:
        raise ConfigError("--call runs one tool: name it, as in toolgym tools bash --call '{...}'")
    record = asyncio.run(_call(tools[name][1], read_env_kwargs(config, "--config"), read_env_kwargs(call, "--call")))
    if as_json:
        console.print_json(json.dumps(dataclasses.asdict(record), default=str))
    else:
        console.print(without_controls(record.text), markup=False)
        console.print(f"{record.status}, {record.seconds:.3f} s, {dict(record.metrics)}", style="dim", markup=False)
    raise typer.Exit(0 if record.status == "ok" else 1)


def schema_text(schema: ToolSchema) -> Text:
    """Return a tool's name and description, and a line for each argument; those with a star are required."""
    text = Text.assemble((schema.name, "bold"), f": {schema.description}")
    for name, about in schema.parameters.get("properties", {}).items():
        star = "*" if name in schema.parameters.get("required", ()) else ""
        text.append(f"\n  {name}{star} ", style="cyan").append(json.dumps(about, ensure_ascii=False))
    return text


def _tools(source: str) -> dict[str, tuple[ToolSchema, type[BaseTool] | BaseTool]]:
    """Return schemas and tools by name; a class is a tool that is yet to be made with its options."""
    from toolgym.tools import BaseTool, from_config

    if Path(source).suffix in (".yaml", ".yml"):
        return {tool.name: (tool.tool_schema, tool) for tool in from_config(Path(source))}
    import_module(source)
    module = sys.modules[source]
    tools: dict[str, tuple[ToolSchema, type[BaseTool] | BaseTool]] = {}
    for value in [getattr(module, name) for name in getattr(module, "__all__", vars(module))]:
        tool = getattr(value, "tool", None) if inspect.isfunction(value) else value  # of `@tool`
        if isinstance(tool, type) and issubclass(tool, BaseTool) and tool.default_schema is not None:
            tools[tool.default_schema.name] = (tool.default_schema, tool)
        elif isinstance(tool, BaseTool):
            tools[tool.name] = (tool.tool_schema, tool)
    if not tools:
        raise ConfigError(f"{source!r} has no tools: functions with @tool, or classes of tools with a default_schema")
    return tools


async def _call(tool: type[BaseTool] | BaseTool, config: dict[str, Any], arguments: dict[str, Any]) -> ToolCallRecord:
    from toolgym.envs import Task, ToolEnv
    from toolgym.tools.message import assistant, tool_call, user

    if config and not isinstance(tool, type):
        raise ConfigError(f"--config is for a class of tools; {tool.name!r} is made already, with options of its own")
    tool = tool(config) if isinstance(tool, type) else tool
    env = ToolEnv([tool], [Task(messages=(user("Call the tool."),))], owns_tools=True)
    try:
        await env.reset()
        result = await env.step(assistant("", [tool_call(tool.name, arguments)]))
        return result.info["tool_calls"][0]
    finally:
        await env.close()
