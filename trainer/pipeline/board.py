"""Where every model of a pipeline stands: what a scheduler looks at, and what it decides about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Visit:
    """A model's training on one partition: one hop further."""

    model: int
    """Number of the trial."""
    epoch: int
    partition: int


@dataclass
class Progress:
    """One model's way through the partitions."""

    epochs: int
    epoch: int = 0
    order: list[int] = field(default_factory=list)
    """Partitions that it was trained on, or is, in this epoch."""
    busy: bool = False
    """Whether a worker has it."""
    withdrawn: bool = False
    """Failed, or stopped early."""
    held: bool = False
    """Waits for a decision (of successive halving): nothing is open to it until then."""
    bound_to: int | None = None
    """Partition in whose middle a resumed model stands: until it is visited, no other is open."""
    endings: list[int] = field(default_factory=list)
    """Partition that each epoch so far ended with."""


class Board:
    """The models and the partitions of a pipeline.

    Args:
        epochs: of each model, by its number.
        homes: the worker that each partition lies at.
    """

    def __init__(self, epochs: Mapping[int, int], homes: Sequence[int]):
        self.models = {number: Progress(count) for number, count in epochs.items()}
        self.homes = list(homes)
        self.under_way: dict[int, Visit] = {}
        """The visit of each busy model, in the order in which they were begun."""
        self._resumed: set[int] = set()
        """Busy models that began their visit in its middle."""

    def open(self, model: int) -> list[int]:
        """Partitions that a model has yet to visit in its epoch; none while it is busy or held, or at its end."""
        at = self.models[model]
        if at.busy or at.withdrawn or at.held or at.epoch >= at.epochs:
            return []
        if at.bound_to is not None:
            return [at.bound_to]
        return [partition for partition in range(len(self.homes)) if partition not in at.order]

    def here(self, worker: int) -> list[Visit]:
        """Every visit that a worker could begin now, by model, then by partition."""
        return [
            Visit(model, at.epoch, partition)
            for model, at in self.models.items()
            for partition in self.open(model)
            if self.homes[partition] == worker
        ]

    def begin(self, visit: Visit) -> None:
        """A worker has the model from now on, perhaps behind another that it still trains."""
        at = self.models[visit.model]
        assert visit.epoch == at.epoch
        assert visit.partition in self.open(visit.model)
        if at.bound_to is not None:
            self._resumed.add(visit.model)
        at.bound_to = None
        at.busy = True
        at.order.append(visit.partition)
        self.under_way[visit.model] = visit

    def end(self, visit: Visit, epoch_over: bool | None = None) -> bool:
        """The model is free again. Returns whether its epoch is complete.

        Args:
            epoch_over: True where the trial ended its epoch early; None: it is over when every partition was visited.
        """
        at = self.models[visit.model]
        self._leave(visit)
        if not epoch_over and len(at.order) < len(self.homes):
            return False
        at.epoch += 1
        at.order = []
        at.endings.append(visit.partition)
        return True

    def give_up(self, visit: Visit) -> None:
        """The visit came to nothing: as if it had not begun."""
        at = self.models[visit.model]
        at.order.remove(visit.partition)
        at.bound_to = visit.partition if visit.model in self._resumed else None
        self._leave(visit)

    def _leave(self, visit: Visit) -> None:
        assert self.under_way.pop(visit.model) == visit
        self.models[visit.model].busy = False
        self._resumed.discard(visit.model)

    def withdraw(self, model: int) -> None:
        """The model is not trained any further."""
        self.models[model].withdrawn = True

    @property
    def over(self) -> bool:
        """Whether nothing is left to begin or to wait for; a withdrawn model's visit under way is not waited for."""
        return all(at.withdrawn or (at.epoch >= at.epochs and not at.busy) for at in self.models.values())

    def copy(self) -> "Board":
        """Another board that stands alike."""
        other = Board({}, self.homes)
        other.models = {
            number: replace(at, order=list(at.order), endings=list(at.endings)) for number, at in self.models.items()
        }
        other.under_way = dict(self.under_way)
        other._resumed = set(self._resumed)
        return other
