"""The network and the sockets of the host. No address outside this machine is ever contacted."""

from __future__ import annotations

from tests.tools.sandbox.abuse.program import Program, abuse

_CONNECT = """
import socket
def connect(family, address, kind=socket.SOCK_STREAM):
    try:
        s = socket.socket(family, kind)
        s.settimeout(4)
        s.connect(address)
        if kind == socket.SOCK_DGRAM:
            s.send(b"x")
        else:
            s.recv(5)
            opened("connected to", address)
    except OSError as error:
        say(type(error).__name__)
"""

NETWORK: tuple[Program, ...] = (
    abuse("tcp_loopback", "network", _CONNECT + 'connect(socket.AF_INET, ("127.0.0.1", @port@))'),
    abuse("tcp_loopback_six", "network", _CONNECT + 'connect(socket.AF_INET6, ("::1", @port_six@))', bare="either"),
    abuse(
        "metadata_address",
        "network",
        _CONNECT + 'address, port = "@alias@".split(":")\nconnect(socket.AF_INET, (address, int(port)))',
    ),
    abuse(
        "udp_loopback",
        "network",
        _CONNECT + 'connect(socket.AF_INET, ("127.0.0.1", @udp@), socket.SOCK_DGRAM)\ntime.sleep(0.2)',
    ),
    abuse("abstract_socket", "network", _CONNECT + 'connect(socket.AF_UNIX, "\\0@abstract@")'),
    abuse("path_socket", "network", _CONNECT + 'connect(socket.AF_UNIX, "@unix@")'),
    abuse(
        "path_socket_by_proc",
        "network",
        _CONNECT
        + """
for pid in ("1", str(os.getppid()), "self"):
    for link in ("root", "cwd"):
        way = f"/proc/{pid}/{link}@unix@"
        if len(way) < 108:
            connect(socket.AF_UNIX, way)
""",
    ),
    abuse(
        "tcp_loopback_when_loopback_is_on",
        "network",
        _CONNECT + 'connect(socket.AF_INET, ("127.0.0.1", @port@))',
        network="loopback",
    ),
    abuse(
        "udp_when_loopback_is_on",
        "network",
        _CONNECT + 'connect(socket.AF_INET, ("127.0.0.1", @udp@), socket.SOCK_DGRAM)\ntime.sleep(0.2)',
        network="loopback",
    ),
    abuse(
        "abstract_socket_when_loopback_is_on",
        "network",
        _CONNECT + 'connect(socket.AF_UNIX, "\\0@abstract@")',
        network="loopback",
    ),
    abuse(
        "other_address_families",
        "network",
        """
import socket
# Packet, key management, crypto, virtual machine's host, Bluetooth, CAN, TIPC, XDP.
for family in (17, 15, 38, 40, 31, 29, 30, 44):
    try:
        socket.socket(family, socket.SOCK_RAW if family in (17, 15, 29, 44) else socket.SOCK_STREAM).close()
        opened("address family", family)
    except OSError:
        pass
    try:
        socket.socket(family, socket.SOCK_SEQPACKET).close()
        opened("address family", family)
    except OSError:
        pass
""",
        bare="either",
    ),
    abuse(
        "raw_sockets",
        "network",
        """
import socket
for family, kind, protocol in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (16, 3, 9)):
    try:
        socket.socket(family, kind, protocol).close()
        opened("raw socket", family, protocol)
    except OSError:
        pass
""",
        bare="either",
    ),
    abuse(
        "listening_is_not_seen_outside",
        "network",
        """
import socket
try:
    s = socket.socket()
    s.bind(("0.0.0.0", 0))
    s.listen()
    opened("listens on every address of the host")
except OSError:
    pass
""",
    ),
)
