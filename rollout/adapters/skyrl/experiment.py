"""SkyRL's entry point with our envs: `trainer.override_entrypoint=toolgym.rollout.adapters.skyrl`.

SkyRL 0.4.0 (`skyrl/train/entrypoints/main_base.py`) calls `main()`, which reads the command line itself.
"""

# SkyRL reads the types of a configuration's fields at run time, so their annotations must not be texts.

import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from toolgym.rollout.adapters.skyrl.generator import ToolgymGenerator
from toolgym.rollout.adapters.skyrl.text_env import register_envs
from toolgym.rollout.adapters.skyrl.trainer import CountedEpisodes
from toolgym.rollout.adapters.task_rows import tools_of
from toolgym.rollout.adapters.versions import needs
from toolgym.tools.errors import ConfigError

with needs("skyrl[skyrl-train]", "Training with SkyRL"):
    import ray
    from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
    from skyrl.train.trainer import RayPPOTrainer
    from skyrl.train.utils import initialize_ray, validate_cfg


@dataclass
class ToolgymSettings:
    """The settings `toolgym.*` of the command line; see `ToolgymGenerator`.

    The `generator` is `toolgym`, or `skyrl_gym`: SkyRL's own with envs of ours, which has of the others only
    `env_kwargs`.
    """

    generator: str = "toolgym"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    history: str = "append"
    context: list[Any] = field(default_factory=list)
    on_truncated_turn: str = "end"
    limits: dict[str, Any] = field(default_factory=dict)
    parser: str | None = None


@dataclass
class ToolgymTrainConfig(SkyRLTrainConfig):  # type: ignore[misc]  # SkyRL has no types
    """SkyRL's configuration, and ours below `toolgym`."""

    toolgym: ToolgymSettings = field(default_factory=ToolgymSettings)


class ToolgymTrainer(CountedEpisodes, RayPPOTrainer):  # type: ignore[misc]
    """SkyRL's trainer; see `CountedEpisodes`."""


class ToolgymFullyAsyncTrainer(CountedEpisodes, FullyAsyncRayPPOTrainer):  # type: ignore[misc]
    """SkyRL's fully asynchronous trainer; see `CountedEpisodes`."""


class ToolgymExp(BasePPOExp):  # type: ignore[misc]
    """SkyRL's experiment with our generator, and a trainer that leaves out of its statistics what was broken off."""

    def get_generator(self, cfg: ToolgymTrainConfig, tokenizer: Any, inference_engine_client: Any) -> Any:
        settings = asdict(cfg.toolgym)
        kind = settings.pop("generator")
        if kind == "skyrl_gym":
            env_id = cfg.environment.env_class
            register_envs(env_id, env_kwargs=cfg.toolgym.env_kwargs)
            tools = [schema.to_openai() for schema in tools_of(env_id, cfg.toolgym.env_kwargs)]
            cfg.generator.chat_template_kwargs = {"tools": tools, **cfg.generator.chat_template_kwargs}
            return super().get_generator(cfg, tokenizer, inference_engine_client)
        if kind != "toolgym":
            raise ConfigError(f"the setting generator must be 'toolgym' or 'skyrl_gym', got {kind!r}")
        name = resolve_policy_model_name(cfg)
        return ToolgymGenerator(cfg.generator, inference_engine_client, tokenizer, policy_model_name=name, **settings)

    def get_trainer(self, *, cfg: ToolgymTrainConfig, generator: Any, **further: Any) -> Any:
        if not isinstance(generator, ToolgymGenerator):
            return super().get_trainer(cfg=cfg, generator=generator, **further)
        kind = ToolgymFullyAsyncTrainer if cfg.trainer.fully_async.enabled else ToolgymTrainer
        return kind(cfg=cfg, generator=generator, **further)


@ray.remote(num_cpus=1)  # type: ignore[untyped-decorator]
def _train(cfg: ToolgymTrainConfig) -> None:
    ToolgymExp(cfg).run()


def main() -> None:
    """Train with the settings of the command line. SkyRL's own `main` calls it."""
    name = "trainer.override_entrypoint="  # no field of SkyRL's
    cfg = ToolgymTrainConfig.from_cli_overrides([setting for setting in sys.argv[1:] if not setting.startswith(name)])
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(_train.remote(cfg))
