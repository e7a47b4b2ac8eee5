"""The embedded server and tasks of `MCP-v0`: the stock of a shop, in two stores."""

from __future__ import annotations

import random
from typing import Any

from toolgym.envs.base import Action
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import Message, assistant, system, tool_call, user

KINDS = ("chair", "table", "lamp", "shelf", "clock", "mirror", "vase")
STORES = ("north", "south")
PER_KIND = 4

PROMPT = "You look after the stock of a shop. Use the tools to find what is asked for. End with `#### <number>`."


def _article(number: int) -> dict[str, Any]:
    rng = random.Random(f"article {number}")
    return {
        "kind": KINDS[number % len(KINDS)],
        "price": rng.randint(5, 400),
        **{store: rng.randint(0, 30) for store in STORES},
    }


ARTICLES = {f"A{number}": _article(number) for number in range(len(KINDS) * PER_KIND)}


def _of_kind(kind: str) -> list[str]:
    return [number for number, article in ARTICLES.items() if article["kind"] == kind]


def make_server() -> Any:
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise missing_extra("mcp", "MCP-v0", error) from error

    server = MCPServer("stock")

    @server.tool(description="The numbers of all articles of a kind, such as chair or lamp.")
    def find_articles(kind: str) -> str:
        return (
            ", ".join(_of_kind(kind.strip().lower()))
            or f"There are no articles of the kind {kind!r}. Kinds: {', '.join(KINDS)}."
        )

    @server.tool(description="Kind, price in crowns and pieces in each store of an article, such as A7.")
    def get_article(number: str) -> str:
        article = ARTICLES.get(number.strip().upper())
        if article is None:
            return f"There is no article {number!r}. They are A0 to A{len(ARTICLES) - 1}."
        return ", ".join(f"{name}: {value}" for name, value in article.items())

    return server


class StockTasks(TaskSource):
    """Questions about the stock: how many pieces of a kind a store has, or what they cost. The ground truth is a whole
    number.
    """

    def sample(self, rng: random.Random) -> Task:
        kind, store = rng.choice(KINDS), rng.choice(STORES)
        numbers = _of_kind(kind)
        if rng.random() < 0.5:
            question = f"How many pieces of the kind {kind} does the {store} store have in all?"
            answer = sum(ARTICLES[number][store] for number in numbers)
        else:
            question = f"What does the dearest article of the kind {kind} cost, in crowns?"
            answer = max(ARTICLES[number]["price"] for number in numbers)
            store = "any"
        return Task(
            (system(PROMPT), user(question)), ground_truth=answer, source="toolgym/stock", id=f"{kind} {store} {answer}"
        )


def gold_turns(task: Task) -> list[Action]:
    kind = task.id.partition(" ")[0]
    numbers = _of_kind(kind)
    return [
        _calls([("find_articles", {"kind": kind})]),
        _calls([("get_article", {"number": number}) for number in numbers]),
        assistant(f"#### {task.ground_truth}"),
    ]


def _calls(calls: list[tuple[str, dict[str, Any]]]) -> Message:
    return assistant("", [tool_call(name, arguments, id=f"call_{at}") for at, (name, arguments) in enumerate(calls)])
