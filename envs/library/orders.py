"""The embedded tasks of `UserSim-v0`: orders at a shop, whose details the user gives when asked for them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from toolgym.envs.base import Action
from toolgym.envs.rewards.base import Outcome, Score
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.users.base import UserReply
from toolgym.tools.function import tool
from toolgym.tools.message import Message, assistant, system, text_of, tool_call

ITEMS = ("raincoat", "pullover", "bicycle bag", "wool scarf", "tent", "sleeping bag", "pair of gloves", "backpack")
SIZES = ("small", "medium", "large")
COLOURS = ("red", "green", "blue", "yellow", "black", "white")
STREETS = ("Mill Lane", "Harbour Road", "Oak Street", "Station Square", "Church Hill", "River Walk")

PROMPT = (
    "You take orders in a shop. Find out from the customer the item, its size, its colour and the address to deliver "
    "to. Ask for one detail at a time. Then place the order once with the tool, and tell the customer so."
)

QUESTIONS = {
    "size": "Which size would you like?",
    "colour": "Which colour would you like?",
    "address": "To which address shall we deliver it?",
}

_ASKED = {
    "size": re.compile(r"\bsize\b|\bhow (?:big|large)\b", re.IGNORECASE),
    "colour": re.compile(r"\bcolou?r\b", re.IGNORECASE),
    "address": re.compile(r"\baddress\b|\bwhere\b|\bstreet\b|\bdeliver", re.IGNORECASE),
}


@tool
def place_order(item: str, size: str, colour: str, address: str) -> str:
    """Place an order for a customer.

    Args:
        item: what is ordered, as the customer calls it.
        size: small, medium or large.
        colour: one colour.
        address: street and number.
    """
    return f"Order placed: {item}, {size}, {colour}, to {address}."


class OrderTasks(TaskSource):
    """Orders drawn at random. The ground truth is an object with `item`, `size`, `colour` and `address`."""

    def sample(self, rng: random.Random) -> Task:
        wanted = {
            "item": rng.choice(ITEMS),
            "size": rng.choice(SIZES),
            "colour": rng.choice(COLOURS),
            "address": f"{rng.randint(1, 99)} {rng.choice(STREETS)}",
        }
        name = ", ".join(wanted.values())
        return Task((system(PROMPT),), ground_truth=wanted, source="toolgym/orders", id=name)


def order_user(messages: Sequence[Message], task: Task) -> UserReply:
    """The customer: gives each detail when asked for it, and leaves when the order is placed."""
    wanted, last = task.ground_truth, messages[-1]
    if last["role"] != "assistant":
        return UserReply(f"Hello, I would like to order a {wanted['item']}.")
    if any(m["role"] == "tool" and text_of(m["content"]).startswith("Order placed: ") for m in messages):
        return UserReply("Thank you, goodbye.", done=True)
    if not text_of(last["content"]).strip():
        return UserReply(None, done=True)
    asked = [name for name, pattern in _ASKED.items() if pattern.search(text_of(last["content"]))]
    if not asked:
        return UserReply(f"I said that I would like a {wanted['item']}. What else do you need to know?")
    return UserReply(" ".join(_answer(name, wanted[name]) for name in asked))


def score_order(outcome: Outcome) -> Score:
    """1 for one order placed, the one that the customer wanted, with the share of right details and the number of
    orders.
    """
    orders = [call.arguments or {} for call in outcome.tool_calls if (call.name, call.status) == ("place_order", "ok")]
    wanted = outcome.task.ground_truth
    right = sum(_plain(orders[-1].get(name)) == _plain(value) for name, value in wanted.items()) if orders else 0
    share = right / len(wanted)
    return Score(float(len(orders) == 1 and share == 1.0), {"details": share, "orders": float(len(orders))})


def gold_turns(task: Task) -> list[Action]:
    order = assistant("", [tool_call("place_order", dict(task.ground_truth))])
    return [*map(assistant, QUESTIONS.values()), order, assistant("Your order is placed.")]


def _answer(name: str, value: str) -> str:
    return {"size": f"Size {value}, please.", "colour": f"In {value}.", "address": f"To {value}."}[name]


def _plain(value: Any) -> str:
    return " ".join(str(value).lower().split())
