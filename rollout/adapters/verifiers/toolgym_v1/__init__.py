"""The module that verifiers imports for the id `toolgym-v1`: the id of a taskset is the name of a module at the top."""

from toolgym.rollout.adapters.verifiers import ToolgymEnv, ToolgymHarness, ToolgymTaskset

__all__ = ["ToolgymEnv", "ToolgymHarness", "ToolgymTaskset"]
