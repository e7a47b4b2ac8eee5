"""What is written to a template process arrives whole and in order, from whichever threads, and never waits."""

from __future__ import annotations

import asyncio
import socket
import threading

from toolgym.tools.sandbox.local.host.template_process import Outbox


async def received(end, size):
    data = bytearray()
    while len(data) < size:
        data += await asyncio.get_running_loop().sock_recv(end, 1 << 16)
    return bytes(data)


async def test_more_than_the_socket_holds_arrives_in_order_from_many_threads():
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    outbox = Outbox(ours, asyncio.get_running_loop())

    def write(number):
        for count in range(200):
            outbox.write(bytes([number]) * 4 + count.to_bytes(4, "little") + bytes(8192))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)  # none of them waits for the reader
    data = await received(theirs, 4 * 200 * 8200)
    frames = [data[at : at + 8] for at in range(0, len(data), 8200)]
    for number in range(4):
        own = [int.from_bytes(frame[4:], "little") for frame in frames if frame[0] == number]
        assert own == list(range(200))
    outbox.close()
    assert await received(theirs, 0) == b""
    assert theirs.recv(1) == b""
    theirs.close()


async def test_one_that_is_closed_or_has_no_reader_drops_what_is_written():
    ours, theirs = socket.socketpair()
    outbox = Outbox(ours, asyncio.get_running_loop())
    theirs.close()
    outbox.write(b"lost")
    outbox.write(b"lost too")
    outbox.close()
    outbox.close()
    outbox.write(b"late")


async def test_closing_forgets_what_waits_for_room():
    ours, theirs = socket.socketpair()
    outbox = Outbox(ours, asyncio.get_running_loop())
    outbox.write(bytes(8 << 20))
    await asyncio.sleep(0)
    outbox.close()
    theirs.setblocking(False)
    with theirs:
        while theirs.recv(1 << 20):
            pass


async def test_what_a_loop_writes_in_one_turn_goes_out_together_and_in_order():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # it keeps apart what is sent apart
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    outbox = Outbox(ours, loop)
    for part in (b"a", b"b"):
        outbox.write_soon(part)
    outbox.write(b"c")  # it does not overtake them
    await asyncio.to_thread(outbox.write, b"other thread")  # which writes at once
    outbox.write(b"d")
    outbox.write_soon(b"e")
    await asyncio.sleep(0)
    packets = {await loop.sock_recv(theirs, 100) for _ in range(4)}
    assert packets == {b"abc", b"other thread", b"d", b"e"}
    outbox.write_soon(b"late")
    outbox.close()
    await asyncio.sleep(0)
    assert await loop.sock_recv(theirs, 100) == b""
    theirs.close()
