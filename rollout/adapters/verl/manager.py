"""`ToolgymManager`: a whole agent loop manager for verl's V1 trainer, with one process of ours on each node.

verl's own starts all episodes of a step at once, in many processes with a sandbox each. Here a node has one process,
so that its sandbox knows what the node bears; episodes wait for their turn, and one that fails is played again, so that
its group stays whole. (Source: `TaskRunnerV1.init_agent_loop_manager` of verl 0.9.1, `verl/trainer/main_ppo.py`.)
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

from toolgym.rollout.adapters.transfer_queue import QueueGroup, TransferQueueWriter
from toolgym.rollout.adapters.verl.agent_loop import ToolgymAgentLoop, plain
from toolgym.rollout.adapters.verl.options import ManagerOptions
from toolgym.rollout.adapters.verl.trainer_queue import queue_rows
from toolgym.rollout.adapters.versions import needs
from toolgym.tools.concurrency.deadline import together
from toolgym.tools.errors import ConfigError

with needs("verl", "A manager of verl's agent loops"):
    import hydra
    import ray
    import transfer_queue
    from tensordict import NonTensorData, NonTensorStack, TensorDict
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, DictConfigWrap, _agent_loop_registry
    from verl.utils.ray_utils import auto_await

START_TIMEOUT = 600.0
"""Seconds until the processes must have loaded the tokenizer and joined the queue."""


class ToolgymManager:
    """Plays the prompts that verl's V1 trainer submits; name it in `rollout.agent.agent_loop_manager_class`.

    Options come from `actor_rollout_ref.rollout.custom.toolgym_manager`, see `ManagerOptions`; those of the loops from
    where `ToolgymAgentLoop` reads them.
    """

    def __init__(self, workers: Sequence[Any]) -> None:
        self._workers = itertools.cycle(workers)
        self._running: list[Any] = []

    @classmethod
    @auto_await  # type: ignore[untyped-decorator]
    async def create(
        cls, config: Any, llm_client: Any, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> Self:
        """Start the processes, one on each node that has CPUs; raises TimeoutError if they do not start in time."""
        if teacher_client is not None:
            raise ConfigError("ToolgymManager has no distillation: set distillation.enabled=False")
        options = manager_options(config)
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        worker_class = ray.remote(ManagerWorker)
        place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        workers = [
            worker_class.options(scheduling_strategy=place(node_id=node, soft=True)).remote(config, llm_client)
            for _ in range(options.workers_per_node)
            for node in nodes
        ]
        async with asyncio.timeout(START_TIMEOUT):
            await asyncio.gather(*(worker.ready.remote() for worker in workers))
        return cls(workers)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Hand prompts to the processes, in turn, and return at once. Each becomes a group in the TransferQueue.

        Raises ConfigError if it is the batch of verl's V0 trainer, or one of the prompts before had another shape than
        `task_of_row` reads, or named a loop that is none of ours.
        """
        if not isinstance(prompts, TensorDict):
            raise ConfigError(
                "ToolgymManager is for verl's V1 trainer (trainer.use_v1=True); for the other leave "
                "rollout.agent.agent_loop_manager_class out: verl's own manager plays the agent loop toolgym_agent"
            )
        if self._running:
            ended, self._running = ray.wait(self._running, num_returns=len(self._running), timeout=0)
            ray.get(ended)  # raises what went wrong before
        self._running += [next(self._workers).play.remote(row) for row in rows_of_batch(prompts)]


class ManagerWorker:
    def __init__(self, config: Any, llm_client: Any) -> None:
        transfer_queue.init()
        # verl's worker reads what the configuration names: the tokenizer with its template, the file of loops.
        self._verl = AgentLoopWorker(config, llm_client)
        self._rollout = config.actor_rollout_ref.rollout
        self._options = manager_options(config)
        self._turns = asyncio.Semaphore(self._options.max_concurrent)
        self._loops: dict[str, ToolgymAgentLoop] = {}

    async def ready(self) -> None:
        """Return once the process has started."""

    async def play(self, row: dict[str, Any]) -> None:
        validate, do_sample = bool(row.pop("validate", False)), row.pop("__do_sample__", True)
        values = self._rollout.val_kwargs if validate else self._rollout
        size = int(row.pop("__rollout_n__", values.n))
        sampling = {
            "temperature": values.temperature,
            "top_p": values.top_p,
            "top_k": values.top_k,
            "repetition_penalty": 1.0,
            "logprobs": self._rollout.calculate_log_probs,
        }
        if not (validate or do_sample):
            sampling |= {"temperature": 0, "top_p": 1.0, "top_k": -1}
        async with TransferQueueWriter("val" if validate else "train").group(row["uid"]) as group:
            loop = self._loop(row.pop("agent_name", None) or self._rollout.agent.default_agent_loop)
            rows = ({**row, "session_id": session} for session in range(size))
            await together(self._episode(loop, sampling, session_row, group, validate=validate) for session_row in rows)

    async def _episode(
        self,
        loop: ToolgymAgentLoop,
        sampling: Mapping[str, Any],
        row: dict[str, Any],
        group: QueueGroup,
        *,
        validate: bool,
    ) -> None:
        async with self._turns:
            for _ in range(self._options.attempts):
                trajectory, generate = await loop.play(sampling, row)
                if trajectory.error is None:
                    break
        if not trajectory.usable and loop.options.failed == "drop":
            return
        rows = queue_rows(
            trajectory,
            response_length=self._rollout.response_length,
            pad_token_id=loop.pad_token_id,
            global_steps=row["global_steps"],
            columns=row,
            versions=generate.steps(row["global_steps"]),
            num_preempted=generate.num_preempted,
            routed_experts=generate.routed_experts,
            logprobs=bool(self._rollout.calculate_log_probs),
            processor=loop.processor,
            temperature=None if validate else float(self._rollout.temperature),
        )
        await group.put(rows)

    def _loop(self, name: str) -> ToolgymAgentLoop:
        """Return the loop of a name; one serves all episodes, since it keeps nothing of them."""
        if name not in self._loops:
            entry = _agent_loop_registry.get(name)
            if entry is None:
                raise ConfigError(f"no agent loop has the name {name!r}. Known: {', '.join(_agent_loop_registry)}")
            kind = hydra.utils.get_class(entry["_target_"])
            if not issubclass(kind, ToolgymAgentLoop):
                raise ConfigError(
                    f"the agent loop {name!r} is {kind.__name__}, and ToolgymManager plays ToolgymAgentLoop alone: set "
                    "rollout.agent.default_agent_loop=toolgym_agent, or agent_name in the rows"
                )
            self._loops[name] = hydra.utils.instantiate(
                config=entry,
                trainer_config=DictConfigWrap(self._verl.config),
                server_manager=self._verl.llm_client,
                tokenizer=self._verl.tokenizer,
                processor=self._verl.processor,
                data_config=DictConfigWrap(self._verl.config.data),
            )
        return self._loops[name]


def manager_options(config: Any) -> ManagerOptions:
    custom = config.actor_rollout_ref.rollout.get("custom") or {}
    return ManagerOptions(**plain(custom.get("toolgym_manager") or {}))


def rows_of_batch(batch: TensorDict) -> list[dict[str, Any]]:
    """Return the rows of a batch as verl submits it; what stands once for the batch is in all of them."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(batch))]
    for name, values in batch.items():
        for number, row in enumerate(rows):
            value = values if isinstance(values, NonTensorData) else values[number]
            row[name] = value.data if isinstance(values, NonTensorData | NonTensorStack) else value
    return rows
