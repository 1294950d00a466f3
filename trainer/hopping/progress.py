"""Progress of the models of a hopping run over epochs and partitions: the state that schedulers read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

MAX_REPEATS = 3
"""Maximum consecutive epochs of a model that end with one partition, by schedulers that choose the order."""


@dataclass(frozen=True)
class SubEpoch:
    """Training of one model on one partition, after which the model hops (Cerebro's unit of work)."""

    model: int
    """Number of the trial."""
    epoch: int
    partition: int


@dataclass
class ModelProgress:
    """Progress of one model."""

    epochs: int
    epoch: int = 0
    order: list[int] = field(default_factory=list)
    """Partitions of this epoch, trained on or in training."""
    busy: bool = False
    """Whether it is assigned to a worker."""
    withdrawn: bool = False
    """Failed, or stopped early."""
    held: bool = False
    """Waiting for a decision of successive halving: no partition is open until then."""
    bound_to: int | None = None
    """Partition that a resumed model was interrupted in: no other is open until it is trained on."""
    last_partitions: list[int] = field(default_factory=list)
    """Partition that each completed epoch ended with."""

    @property
    def continues(self) -> bool:
        """Whether it is in training, and not held."""
        return not (self.withdrawn or self.held or self.epoch >= self.epochs)

    @property
    def repeated_last_partition(self) -> int | None:
        """The partition that the last epochs all ended with: the present one must end with another."""
        last = self.last_partitions[-MAX_REPEATS:]
        return last[0] if len(last) == MAX_REPEATS and len(set(last)) == 1 else None


class HoppingProgress:
    """Progress of all models over the partitions.

    Args:
        epochs: by the model's number.
        homes: worker that holds each partition.
    """

    def __init__(self, epochs: Mapping[int, int], homes: Sequence[int]):
        self.models = {number: ModelProgress(count) for number, count in epochs.items()}
        self.homes = list(homes)
        self.running: dict[int, SubEpoch] = {}
        """Sub-epoch of each busy model, in order of assignment."""
        self._resumed: set[int] = set()
        """Busy models whose sub-epoch began in the middle of its partition."""

    def open_partitions(self, model: int) -> list[int]:
        """Partitions that remain in a model's epoch; none while it is busy or held, or after its last epoch."""
        progress = self.models[model]
        if progress.busy or not progress.continues:
            return []
        if progress.bound_to is not None:
            return [progress.bound_to]
        return [partition for partition in range(len(self.homes)) if partition not in progress.order]

    def phases(self, model: int) -> list[list[int]]:
        """Workers of the partitions that remain in a model's epoch, in any order; of a bound one in a last list."""
        progress = self.models[model]
        if not progress.continues:
            return []
        done = {*progress.order, progress.bound_to}
        rest = [home for partition, home in enumerate(self.homes) if partition not in done]
        bound = [] if progress.bound_to is None else [self.homes[progress.bound_to]]
        return [phase for phase in (rest, bound) if phase]

    def candidates(self, worker: int) -> list[SubEpoch]:
        """Sub-epochs that a worker could begin now, by model, then by partition."""
        return [
            SubEpoch(model, progress.epoch, partition)
            for model, progress in self.models.items()
            for partition in self.open_partitions(model)
            if self.homes[partition] == worker
        ]

    def varies_the_last(self, candidate: SubEpoch) -> bool:
        """Whether after a sub-epoch its model's epoch can still end with another partition than the repeated one."""
        remaining, avoid = self.open_partitions(candidate.model), self.models[candidate.model].repeated_last_partition
        return len(remaining) != 2 or avoid not in remaining or self.homes[avoid] == self.homes[candidate.partition]

    def begin(self, sub_epoch: SubEpoch) -> None:
        """Assign a model to the partition's worker, which may still be training another."""
        progress = self.models[sub_epoch.model]
        assert sub_epoch.epoch == progress.epoch
        assert sub_epoch.partition in self.open_partitions(sub_epoch.model)
        if progress.bound_to is not None:
            self._resumed.add(sub_epoch.model)
        progress.bound_to = None
        progress.busy = True
        progress.order.append(sub_epoch.partition)
        self.running[sub_epoch.model] = sub_epoch

    def end(self, sub_epoch: SubEpoch, epoch_complete: bool | None = None) -> bool:
        """Free the model. Returns whether its epoch is complete.

        Args:
            epoch_complete: True: the trial ended its epoch early; None: it is complete after its last partition.
        """
        progress = self.models[sub_epoch.model]
        self._free(sub_epoch)
        if not epoch_complete and len(progress.order) < len(self.homes):
            return False
        progress.epoch += 1
        progress.order = []
        progress.last_partitions.append(sub_epoch.partition)
        return True

    def cancel(self, sub_epoch: SubEpoch) -> None:
        """Undo `begin`."""
        progress = self.models[sub_epoch.model]
        progress.order.remove(sub_epoch.partition)
        progress.bound_to = sub_epoch.partition if sub_epoch.model in self._resumed else None
        self._free(sub_epoch)

    def _free(self, sub_epoch: SubEpoch) -> None:
        assert self.running.pop(sub_epoch.model) == sub_epoch
        self.models[sub_epoch.model].busy = False
        self._resumed.discard(sub_epoch.model)

    def withdraw(self, model: int) -> None:
        """End the training of a model."""
        self.models[model].withdrawn = True

    @property
    def finished(self) -> bool:
        """Whether nothing remains to begin or to wait for; a withdrawn model's running sub-epoch is not waited for."""
        return all(each.withdrawn or (each.epoch >= each.epochs and not each.busy) for each in self.models.values())

    def copy(self) -> "HoppingProgress":
        """Independent copy."""
        other = HoppingProgress({}, self.homes)
        other.models = {
            number: replace(each, order=list(each.order), last_partitions=list(each.last_partitions))
            for number, each in self.models.items()
        }
        other.running = dict(self.running)
        other._resumed = set(self._resumed)
        return other
