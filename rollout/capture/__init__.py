"""A gateway for agents that know nothing of us: it answers their requests, and keeps the exact tokens. See
`docs/capture.md`."""

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.capture.agents import AgentCommand as AgentCommand
    from toolgym.rollout.capture.agents import agent_env as agent_env
    from toolgym.rollout.capture.gateway.config import CaptureConfig as CaptureConfig
    from toolgym.rollout.capture.gateway.control import OpenedSession as OpenedSession
    from toolgym.rollout.capture.gateway.server import CaptureServer as CaptureServer
    from toolgym.rollout.capture.rules import CaptureRules as CaptureRules
else:
    __getattr__, __dir__ = lazy_names(__name__)
