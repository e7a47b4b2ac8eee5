"""Simulated users, who reply between the policy's turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.envs.users.base import FunctionUser as FunctionUser
    from toolgym.envs.users.base import User as User
    from toolgym.envs.users.base import UserReply as UserReply
    from toolgym.envs.users.base import UserSession as UserSession
    from toolgym.envs.users.interaction import InteractionUser as InteractionUser
    from toolgym.envs.users.llm import LLMUser as LLMUser
else:
    __getattr__, __dir__ = lazy_names(__name__)
