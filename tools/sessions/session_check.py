"""`broken_by_programs`: whether a session is unusable because of its own programs, by comparing it to a new session."""

from __future__ import annotations

import contextlib
import logging
from typing import TypeAlias

from toolgym.tools.concurrency.deadline import DeadlineError, shielded, together, with_deadline
from toolgym.tools.errors import SandboxError, SandboxUnsupportedError, error_text
from toolgym.tools.sandbox.base import ExecutionStatus, Sandbox, Session
from toolgym.tools.sessions.tool_scope import tool_scope

CHECK_TIMEOUT = 15.0
"""Wall seconds that a usable session may take to list its folder, run a cell and run a program."""

CHECK_FILE = ".toolgym-check"

_log = logging.getLogger("toolgym.tools")


async def broken_by_programs(session: Session, sandbox: Sandbox) -> bool:
    """Return whether programs in a session made it unusable, although its sandbox works.

    The same small work is done in the session and, as a control, in a new session of the sandbox. The programs are to
    blame if the new session does it and the session does not, or not in the same way: they killed or stopped
    everything, or used up the session's memory, processes or disk. A session that the sandbox itself lost
    (`Session.lost_to_sandbox`) is never their fault.
    """
    if session.lost_to_sandbox:
        return False
    result, control = await together([_result_of_use(session), _result_in_new_session(sandbox)])
    return control is not None and result != control and not session.lost_to_sandbox


Statuses: TypeAlias = tuple[ExecutionStatus | None, ...]


async def _result_in_new_session(sandbox: Sandbox) -> Statuses | None:
    async def check() -> Statuses | None:
        with tool_scope(None):  # a session that no tool of the episode shares
            session = await sandbox.session()
        try:
            return await _result_of_use(session)
        finally:
            await shielded(session.close())

    try:
        return await with_deadline(check(), 2 * CHECK_TIMEOUT)
    except (SandboxError, DeadlineError) as error:
        _log.warning("a new session, opened to find out what broke another one, failed: %s", error_text(error))
        return None


async def _result_of_use(session: Session) -> Statuses | None:
    """Return how a little of all that scorers do in a session ends; None if the session cannot do it."""
    try:
        return await with_deadline(_use(session), CHECK_TIMEOUT)
    except (SandboxError, DeadlineError):
        return None


async def _use(session: Session) -> Statuses | None:
    with contextlib.suppress(SandboxUnsupportedError):
        await session.write_file(CHECK_FILE, b"1")
        await session.remove(CHECK_FILE)
    statuses: list[ExecutionStatus | None] = [None]
    with contextlib.suppress(SandboxUnsupportedError):
        statuses = [(await session.exec(["true"], timeout=CHECK_TIMEOUT)).status]
    statuses.append((await session.run_cell("1", timeout=CHECK_TIMEOUT)).status)
    return None if ExecutionStatus.SANDBOX_ERROR in statuses or not session.alive else tuple(statuses)
