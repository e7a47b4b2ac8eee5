"""All the programs."""

from __future__ import annotations

from abuse.bombs import BOMBS
from abuse.deadlines import DEADLINES
from abuse.escapes import ESCAPES
from abuse.network import NETWORK
from abuse.odd import DESCRIPTORS, ODD, SIGNALS
from abuse.privacy import LEFTOVERS, RANDOMNESS, SECRETS, WRITES
from abuse.program import Program
from abuse.useful import USEFUL

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
    *USEFUL,
):
    _key = f"{_program.category}/{_program.name}"
    assert _key not in PROGRAMS, _key
    PROGRAMS[_key] = _program
