"""Who holds a permit of a cluster's rate limit, and who waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolgym.tools.concurrency.cluster.lease_table import LeaseTable


class Clients:
    """Processes with requests that wait and permits that they hold, as they tell them to the table."""

    def __init__(self, limit, *names):
        self.table = LeaseTable(limit)
        self.waiting = {name: [] for name in names}
        self.held = {name: [] for name in names}
        for name in names:
            self.sync(name)

    def sync(self, name):
        self.table.sync(name, self.waiting[name], self.held[name])

    def ask(self, name, *numbers):
        self.waiting[name] += [number for number in numbers if number not in self.waiting[name] + self.held[name]]
        self.sync(name)

    def end(self, name, *numbers):
        for state in (self.waiting[name], self.held[name]):
            state[:] = [number for number in state if number not in numbers]
        self.sync(name)

    def grant(self):
        """Returns what was granted; the clients hear of it."""
        granted = []
        for name in sorted(self.table.grant()):
            numbers = [number for number in self.waiting[name] if number in self.table.held_by(name)]
            granted += [(name, number) for number in numbers]
            self.held[name] += numbers
            self.waiting[name] = [number for number in self.waiting[name] if number not in numbers]
        return granted


def test_permits_go_to_those_that_came_first_whichever_process_they_are_of():
    clients = Clients(2, "a", "b")
    clients.ask("a", 1)
    clients.ask("b", 1)
    clients.ask("a", 2, 3)
    clients.ask("b", 2)
    assert clients.grant() == [("a", 1), ("b", 1)]
    clients.end("b", 1)
    assert clients.grant() == [("a", 2)]
    clients.end("a", 1, 3)  # the second gives up its place
    assert clients.grant() == [("b", 2)]
    assert (clients.table.in_use, clients.table.waiting) == (2, 0)


def test_what_a_client_that_leaves_held_is_free_and_it_waits_no_more():
    clients = Clients(1, "a", "b")
    clients.ask("a", 1, 2)
    clients.ask("b", 1)
    assert clients.grant() == [("a", 1)]
    clients.table.leave("a")
    assert clients.grant() == [("b", 1)]
    assert clients.table.clients == ["b"]


def test_messages_that_come_twice_change_nothing():
    clients = Clients(1, "a")
    for _ in range(2):
        clients.ask("a", 1, 2)
    assert clients.grant() == [("a", 1)]
    clients.ask("a", 1)
    clients.end("a", 1)
    clients.end("a", 1)
    assert clients.grant() == [("a", 2)]
    assert (clients.table.in_use, clients.table.waiting) == (1, 0)


def test_a_client_that_comes_back_keeps_what_it_holds_though_the_limit_is_used_up():
    clients = Clients(1, "a", "b")
    clients.ask("a", 1)
    clients.grant()
    clients.table.leave("a")  # it was cut off for too long
    clients.ask("b", 1)
    assert clients.grant() == [("b", 1)]
    clients.ask("a", 2)
    assert clients.table.in_use == 2
    clients.end("b", 1)
    assert clients.grant() == []
    clients.end("a", 1)
    assert clients.grant() == [("a", 2)]


def test_a_permit_whose_message_was_lost_is_kept_for_its_request():
    table = LeaseTable(1)
    table.sync("a", [1, 2], [])
    assert table.grant() == {"a"}
    table.sync("a", [1, 2], [])  # it did not hear of it
    assert table.held_by("a") == {1}
    assert (table.in_use, table.waiting) == (1, 1)
    table.sync("a", [2], [])  # it gave up
    assert (table.in_use, table.waiting) == (0, 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "end", "leave", "sync"]), st.integers(0, 5))))
def test_no_more_permits_are_granted_than_there_are(steps):
    clients, held = Clients(2, "a", "b", "c"), set()
    for client, what, number in steps:
        if what == "ask":
            clients.ask(client, number)
        elif what == "end":
            clients.end(client, number)
            held.discard((client, number))
        elif what == "leave":
            clients.table.leave(client)
            clients.waiting[client], clients.held[client] = [], []
            clients.sync(client)
            held = {request for request in held if request[0] != client}
        else:
            clients.ask(client, *range(6))
        for request in clients.grant():
            assert request not in held
            held.add(request)
        assert len(held) <= clients.table.in_use <= 2
