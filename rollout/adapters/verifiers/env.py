"""`ToolgymEnv`: verifiers' single agent, without the sandbox that verifiers would rent for it."""

from __future__ import annotations

from toolgym.rollout.adapters.versions import needs

with needs("verifiers", "An env for verifiers"):
    import verifiers.v1 as vf


class ToolgymEnvConfig(vf.EnvConfig):
    """The TOML table `[env]`."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The policy. No program runs in the runtime, so it need not be a rented one, as verifiers' default is."""


class ToolgymEnv(vf.Env[ToolgymEnvConfig]):
    """One agent plays each task once."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)
