"""Envs that look right and are not: a verdict that programs in the background forge, and forks that share a state."""

from __future__ import annotations

import copy

from toolgym.envs import Task, ToolEnv
from toolgym.tools import BashTool, ToolGroup, tool, tool_method
from toolgym.tools.message import assistant, tool_call, user

TEST = (
    "if [ \"$(cat answer.txt 2>/dev/null)\" = 'apple pear' ]; then echo 1 > tests/reward.txt; "
    "else echo 0 > tests/reward.txt; fi"
)


class TerminalEnv(ToolEnv):
    """A task of the shell, whose tests are written into the session, run there, and read from it."""

    def __init__(self):
        task = Task(
            (user("Write the sorted words of words.txt to answer.txt."),),
            ground_truth="apple pear",
            tools_kwargs={"bash": {"create_kwargs": {"files": {"words.txt": "pear apple\n"}}}},
        )
        super().__init__([BashTool()], [task], scorer=self.score, owns_tools=True)

    async def score(self, outcome):
        return await self.verdict(await outcome.session("bash").sandbox_session())

    async def verdict(self, session):
        await session.write_file("tests/test.sh", TEST.encode())
        await session.exec(["bash", "tests/test.sh"])
        return float((await session.read_file("tests/reward.txt")).decode().strip() or 0)

    def gold_actions(self):
        call = tool_call("bash", {"command": "tr ' ' '\\n' < words.txt | sort | paste -sd ' ' > answer.txt"})
        return [assistant("", [call]), "Done."]


class ExitCodeEnv(TerminalEnv):
    """The same, but the exit code of the tests is the verdict."""

    async def verdict(self, session):
        test = TEST.replace("echo 0 > tests/reward.txt", "exit 1")
        await session.write_file("tests/test.sh", test.encode())
        return float((await session.exec(["bash", "tests/test.sh"])).return_code == 0)


class CleanTerminalEnv(TerminalEnv):
    """The same, with a verdict in a session in which no program of the policy runs."""

    async def score(self, outcome):
        async with await outcome.session("bash").clean_copy() as session:
            return await self.verdict(session)


class LinkedTestEnv(ToolEnv):
    """Its scorer looks at a clean copy: files with their bits, links, a variable, and no process of the policy."""

    def __init__(self):
        setup = {"files": {"a/run.sh": "echo ran $NAME"}, "setup": "chmod 700 a/run.sh", "env": {"NAME": "Ada"}}
        task = Task((user("Work."),), tools_kwargs={"bash": {"create_kwargs": setup}})
        super().__init__([BashTool({"folder": "work"})], [task], scorer=self.score, owns_tools=True)

    async def score(self, outcome):
        tool_session = outcome.session("bash")
        async with await tool_session.clean_copy() as session:
            run = await session.exec("cd work && ./link; readlink link; pgrep -c sleep", timeout=10)
            sleepers = await (await tool_session.sandbox_session()).exec("pgrep -c sleep", timeout=10)
        return float((run.stdout, sleepers.stdout) == ("ran Ada\na/run.sh\n0\n", "1\n"))

    def gold_actions(self):
        return [assistant("", [tool_call("bash", {"command": "ln -s a/run.sh link; sleep 60 &"})]), "Done."]


class DeskEnv(ToolEnv):
    """Tools that close over a database on the env. `copied` is what its fork copies."""

    copied = ()

    def __init__(self):
        self.orders = {}

        @tool
        def find(customer: str) -> str:
            """Find the orders of a customer."""
            return ", ".join(self.orders.get(customer, ())) or "none"

        @tool
        def cancel(customer: str, order: str) -> str:
            """Cancel an order."""
            if order not in self.orders.get(customer, ()):
                return "no such order"
            self.orders[customer].remove(order)
            return "cancelled"

        tasks = [Task((user("Ada wants to cancel W1."),), ground_truth={"Ada": ["W2"]})]
        super().__init__([find, cancel], tasks, scorer=lambda outcome: float(self.orders == outcome.task.ground_truth))

    def prepare(self, task):
        self.orders = {"Ada": ["W1", "W2"]}
        return task

    def gold_actions(self):
        calls = [("find", {"customer": "Ada"}), ("cancel", {"customer": "Ada", "order": "W1"})]
        return [*(assistant("", [tool_call(name, arguments)]) for name, arguments in calls), "Done."]


class CopyingDeskEnv(DeskEnv):
    """Its fork copies the database, but the tools stay the first env's."""

    async def fork(self):
        twin = await super().fork()
        twin.orders = copy.deepcopy(self.orders)
        return twin


class UnsolvedDeskEnv(DeskEnv):
    """It knows no solution."""

    def gold_actions(self):
        return None


class Desk(ToolGroup):
    """The orders of one episode, and the tools that change them."""

    def __init__(self, orders):
        self.orders = {customer: [*names] for customer, names in orders.items()}

    @tool_method
    def find(self, customer: str) -> str:
        """Find the orders of a customer."""
        return ", ".join(self.orders.get(customer, ())) or "none"

    @tool_method
    async def cancel(self, customer: str, order: str) -> str:
        """Cancel an order.

        Args:
            customer: the name
            order: the order's number
        """
        if order not in self.orders.get(customer, ()):
            return "no such order"
        self.orders[customer].remove(order)
        return "cancelled"


class GroupDeskEnv(ToolEnv):
    """The same desk with a state that its tools share and its fork copies."""

    def __init__(self):
        orders = {"Ada": ["W1", "W2"]}
        task = Task(
            (user("Ada wants to cancel W1."),),
            ground_truth={"Ada": ["W2"]},
            tools_kwargs={"find": {"create_kwargs": {"orders": orders}}},
        )
        super().__init__(Desk.tools(), [task], scorer=self.score)

    def score(self, outcome):
        return float(outcome.session("find").state.orders == outcome.task.ground_truth)

    gold_actions = DeskEnv.gold_actions
