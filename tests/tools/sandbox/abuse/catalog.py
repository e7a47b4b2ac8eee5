"""All the programs."""

from __future__ import annotations

from tests.tools.sandbox.abuse.bombs import BOMBS
from tests.tools.sandbox.abuse.deadlines import DEADLINES
from tests.tools.sandbox.abuse.escapes import ESCAPES
from tests.tools.sandbox.abuse.network import NETWORK
from tests.tools.sandbox.abuse.odd import DESCRIPTORS, ODD, SIGNALS
from tests.tools.sandbox.abuse.privacy import LEFTOVERS, RANDOMNESS, SECRETS, WRITES
from tests.tools.sandbox.abuse.program import Program
from tests.tools.sandbox.abuse.roots import ROOTS
from tests.tools.sandbox.abuse.useful import USEFUL

PROGRAMS: dict[str, Program] = {}
for _program in (
    *BOMBS,
    *DEADLINES,
    *SECRETS,
    *WRITES,
    *LEFTOVERS,
    *RANDOMNESS,
    *NETWORK,
    *ESCAPES,
    *SIGNALS,
    *DESCRIPTORS,
    *ODD,
    *ROOTS,
    *USEFUL,
):
    _key = f"{_program.category}/{_program.name}"
    assert _key not in PROGRAMS, _key
    PROGRAMS[_key] = _program
