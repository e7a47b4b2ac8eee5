"""An episode of an env against verifiers' interception server, which keeps the tokens.

The contract is that of verifiers 0.4.0 (`verifiers/v1/harness.py`): the loop may run in the env server's own process
if each request goes through the address that `launch` is given.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from toolgym.rollout.adapters.verifiers.taskset import REWARD, ToolgymData
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.endpoint import run
from toolgym.rollout.limits import EpisodeLimits
from toolgym.tools.errors import ConfigError

with needs("verifiers", "A harness for verifiers"):
    import verifiers.v1 as vf

_UNUSED = ("env", "forward_env", "mcp_header_env", "tool_timeout", "disabled_tools")
"""What verifiers says to the programs of other harnesses."""


class ToolgymHarnessConfig(vf.HarnessConfig):
    """The TOML table `[env.agent.harness]` with `id = "toolgym-v1"`."""

    id: str = "toolgym-v1"
    limits: dict[Literal["engine_timeout", "env_timeout", "turn_timeout", "episode_timeout", "score_grace"], float] = (
        Field(default_factory=dict)
    )
    """Deadlines in seconds; see `EpisodeLimits`."""


class ToolgymHarness(vf.Harness[ToolgymHarnessConfig]):
    """Plays tasks of `ToolgymTaskset`; the env runs in the env server's process, and its tools where the env says.

    What breaks off is verifiers' `HarnessError`, or the error of the model's server that caused it, and has no reward.
    A budget of verifiers (`max_turns`, `max_total_tokens`, a `@stop`) ends the episode with the reward until then.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # not in verifiers' runtime
    NEEDS_CONTAINER = False

    def __init__(self, config: ToolgymHarnessConfig) -> None:
        super().__init__(config)
        for name in _UNUSED:
            if getattr(config, name) != vf.HarnessConfig.model_fields[name].get_default(call_default_factory=True):
                raise ConfigError(
                    f"the harness 'toolgym-v1' has no use for {name}: the env's env_kwargs say such things"
                )
        deadlines: dict[str, Any] = {str(name): seconds for name, seconds in config.limits.items()}
        self._limits = EpisodeLimits(**deadlines)

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        **_: Any,
    ) -> vf.ProgramResult:
        """Play one episode; raises EpisodeFailedError if something broke it off."""
        if not isinstance(data, ToolgymData):
            raise ConfigError(
                f"the harness 'toolgym-v1' plays tasks of the taskset 'toolgym-v1', got {type(data).__name__}"
            )
        trace.info[REWARD] = await run(
            data.task(),
            base_url=endpoint,
            api_key=secret,
            env=data.env,
            env_kwargs=data.env_kwargs,
            model=ctx.model,
            limits=self._limits,
            ended=lambda: trace.stop_condition is not None,
        )
        return vf.ProgramResult(0, "", "")


class ToolgymEnvConfig(vf.EnvConfig):
    """The TOML table `[env]`."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The policy. No program runs in the runtime, so it need not be a rented one, as verifiers' default is."""


class ToolgymEnv(vf.Env[ToolgymEnvConfig]):
    """One agent plays each task once."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)
