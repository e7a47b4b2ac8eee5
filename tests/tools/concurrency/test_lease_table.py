"""Who holds a permit of a cluster's rate limit, and who waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolgym.tools.concurrency.cluster.lease_table import LeaseTable


def table(limit, *clients):
    made = LeaseTable(limit)
    for client in clients:
        made.join(client)
    return made


def test_permits_go_to_those_that_came_first_whichever_process_they_are_of():
    one = table(2, "a", "b")
    one.ask("a", [1])
    one.ask("b", [1])
    one.ask("a", [2, 3])
    one.ask("b", [2])
    assert one.grant() == [("a", 1), ("b", 1)]
    one.end("b", [1])
    assert one.grant() == [("a", 2)]
    one.end("a", [1, 3])  # the second gives up its place
    assert one.grant() == [("b", 2)]
    assert (one.in_use, one.waiting) == (2, 0)


def test_what_a_client_that_leaves_held_is_free_and_it_waits_no_more():
    one = table(1, "a", "b")
    one.ask("a", [1, 2])
    one.ask("b", [1])
    assert one.grant() == [("a", 1)]
    one.leave("a")
    assert one.grant() == [("b", 1)]
    assert one.clients == ["b"]


def test_messages_that_come_twice_change_nothing():
    one = table(1, "a")
    for _ in range(2):
        one.ask("a", [1, 2])
    assert one.grant() == [("a", 1)]
    one.ask("a", [1])
    one.end("a", [1])
    one.end("a", [1])
    assert one.grant() == [("a", 2)]
    assert (one.in_use, one.waiting) == (1, 0)


def test_a_client_that_comes_back_keeps_what_it_holds_though_the_limit_is_used_up():
    one = table(1, "a", "b")
    one.ask("a", [1])
    one.grant()
    one.leave("a")  # it was cut off for too long
    one.ask("b", [1])
    assert one.grant() == [("b", 1)]
    assert one.restore("a", waiting=[2], held=[1]) == []
    assert one.in_use == 2
    one.end("b", [1])
    assert one.grant() == []
    one.end("a", [1])
    assert one.grant() == [("a", 2)]


def test_a_permit_whose_message_was_lost_is_told_again():
    one = table(1, "a")
    one.ask("a", [1, 2])
    assert one.grant() == [("a", 1)]
    assert one.restore("a", waiting=[1, 2], held=[]) == [1]
    assert (one.in_use, one.waiting) == (1, 1)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "end", "leave", "restore"]), st.integers(0, 5)))
)
def test_no_more_permits_are_granted_than_there_are(steps):
    one, held = table(2, "a", "b", "c"), set()
    for client, what, number in steps:
        if what == "ask":
            one.ask(client, [number])
        elif what == "end":
            one.end(client, [number])
            held.discard((client, number))
        elif what == "leave":
            one.leave(client)
            one.join(client)
            held = {place for place in held if place[0] != client}
        else:
            mine = [place[1] for place in held if place[0] == client]
            one.restore(client, [at for at in range(6) if at not in mine], mine)
        for place in one.grant():
            assert place not in held
            held.add(place)
        assert len(held) <= one.in_use <= 2
