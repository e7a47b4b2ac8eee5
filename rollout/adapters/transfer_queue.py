"""`TransferQueueWriter`: trajectories as rows in a TransferQueue, and the beginnings and ends of their groups.

A TransferQueue (0.1.11, `transfer_queue/interface.py`) keeps rows by key, with a tag that readers poll. The protocol of
groups is that of verl's V1 trainer (0.9.1, `verl/trainer/ppo/v1/replay_buffer.py`): the tag of a group's own key has
`is_prompt` and a `status`, and a reader takes the rows of a group that has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import BatchError, ConfigError, check_seconds, require_whole_number

with needs("TransferQueue", "A TransferQueue"):
    import transfer_queue
    from tensordict import NonTensorStack, TensorDict


class QueueRow(NamedTuple):
    """A row for the queue: its key (the group's, `_`, and a name), its fields, and the tag that readers see.

    Fields are tensors without a batch dimension, or any other values, with the same names in all rows of a trajectory.
    They are the trainer's, see `toolgym.rollout.adapters.verl.queue_rows` for verl's.
    """

    key: str
    fields: Mapping[str, Any]
    tag: Mapping[str, Any]


class QueueGroup:
    """A group of trajectories while it is written; `keys` are those of the rows that were put."""

    def __init__(self, writer: TransferQueueWriter, group_id: str) -> None:
        self._writer, self.id = writer, group_id
        self.keys: list[str] = []

    async def put(self, rows: Sequence[QueueRow]) -> list[str]:
        """Put the rows of one trajectory, maybe none, and return their keys.

        Raises BatchError if a row is not of this group or lacks another's field, and TimeoutError if the queue is too
        slow.
        """
        for row in rows:
            if not row.key.startswith(f"{self.id}_"):
                raise BatchError(
                    f"the row {row.key!r} is not of group {self.id!r}: its key must begin with that and '_'"
                )
            if row.fields.keys() != rows[0].fields.keys():
                differing = ", ".join(sorted(row.fields.keys() ^ rows[0].fields.keys()))
                raise BatchError(f"only one of the rows {rows[0].key!r} and {row.key!r} has {differing}")
        keys = [row.key for row in rows]
        if rows:
            async with asyncio.timeout(self._writer.timeout):
                await transfer_queue.async_kv_batch_put(
                    keys=keys,
                    partition_id=self._writer.partition,
                    fields=to_tensordict([row.fields for row in rows]),
                    tags=[dict(row.tag) for row in rows],
                )
        self.keys += keys
        return keys


class TransferQueueWriter:
    """Puts trajectories into a `partition` of the TransferQueue that this process has joined (`transfer_queue.init()`).

        writer = TransferQueueWriter(tag={"global_steps": 7})
        await writer.put_groups(runner.stream(...), rows, group_size=config.group_size)

    verl's replay buffer wants `global_steps` in the `tag` of a group that its trainer did not register. One exchange
    with the queue may take `timeout` seconds.
    """

    def __init__(
        self, partition: str = "train", *, tag: Mapping[str, Any] | None = None, timeout: float = 120.0
    ) -> None:
        check_seconds(timeout=timeout)
        self.partition, self.timeout = partition, timeout
        self._tag = dict(tag or {})

    @contextlib.asynccontextmanager
    async def group(self, group_id: str) -> AsyncIterator[QueueGroup]:
        """Write a group: `running` now; at the end `finished`, or `failure` without any row or if the block raised.

        Raises ConfigError if the id is no key: it is empty, or has a `_`.
        """
        group = await self._begin(group_id)
        whole = False
        try:
            yield group
            whole = True
        finally:
            await self._end(group, whole=whole)

    async def put_groups(
        self,
        trajectories: AsyncIterable[Trajectory],
        rows: Callable[[Trajectory], Sequence[QueueRow]],
        *,
        group_size: int,
    ) -> list[str]:
        """Write a stream of trajectories as they come, and return the keys of all rows.

        Trajectories of any groups may come in any order, and `rows` gives none for one that is to be left out. Raises
        ConfigError if more than `group_size` came of a group.
        """
        require_whole_number("group_size", group_size, at_least=1)
        seen: Counter[str] = Counter()
        keys: list[str] = []
        groups: dict[str, QueueGroup] = {}
        try:
            async for trajectory in trajectories:
                name = trajectory.group_id
                seen[name] += 1
                if seen[name] > group_size:
                    raise ConfigError(f"group {name!r} has more than group_size={group_size} trajectories")
                if name not in groups:
                    groups[name] = await self._begin(name)
                keys += await groups[name].put(rows(trajectory))
                if seen[name] == group_size:
                    await self._end(groups.pop(name), whole=True)
        finally:
            for group in groups.values():
                await self._end(group, whole=False)
        return keys

    async def _begin(self, group_id: str) -> QueueGroup:
        if not isinstance(group_id, str) or not group_id or "_" in group_id:
            raise ConfigError(f"a group's id begins its rows' keys, so it must be a text without '_'; got {group_id!r}")
        await self._status(group_id, "running")
        return QueueGroup(self, group_id)

    async def _end(self, group: QueueGroup, *, whole: bool) -> None:
        await shielded(self._status(group.id, "finished" if whole and group.keys else "failure"))

    async def _status(self, group_id: str, status: str) -> None:
        tag = {"is_prompt": True, "status": status, **self._tag}
        async with asyncio.timeout(self.timeout):
            await transfer_queue.async_kv_put(key=group_id, partition_id=self.partition, tag=tag)


def to_tensordict(rows: Sequence[Mapping[str, Any]]) -> TensorDict:
    """Return rows as the queue's batch: tensors of one shape stacked, others jagged, all else as it is."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return TensorDict({name: _column(values) for name, values in columns.items()}, batch_size=[len(rows)])


def _column(values: Sequence[Any]) -> Any:
    if not all(isinstance(value, torch.Tensor) for value in values):
        return NonTensorStack(*values)
    if all(value.shape == values[0].shape for value in values):
        return torch.stack(list(values))
    return torch.nested.as_nested_tensor(list(values), layout=torch.jagged)
