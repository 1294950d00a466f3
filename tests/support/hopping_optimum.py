"""Optimal makespan of a small hopping run, by branch and bound."""

from dataclasses import dataclass, field

from hopping_simulation import Times, least


def optimum(times: Times, epochs: int, known: float, most_nodes: int = 30_000) -> tuple[float, bool]:
    """The least seconds of any schedule, waiting allowed, and whether that is proven; worker p holds partition p.

    Every active schedule is tried (Giffler and Thompson 1960: of the sub-epochs that could be next let the one that
    would end first be v; one that shares v's worker or model begins before that end), except where a lower bound or an
    earlier state shows that it cannot be shorter.

    Args:
        known: seconds of a schedule that is known.
    """
    bound = _Bound(times, epochs, known, most_nodes)
    bound.branch([(0, 0)] * len(times), [0.0] * len(times), [0.0] * len(times[0]))
    return bound.best, bound.nodes < most_nodes


@dataclass
class _Bound:
    times: Times
    epochs: int
    best: float
    most_nodes: int
    nodes: int = 0
    seen: dict[tuple, list[list[float]]] = field(default_factory=dict)

    def left(self, model: int, worker: int, state: tuple[int, int]) -> int:
        """Sub-epochs that a model has left on a worker; its state: epoch, and mask of the workers done in it."""
        epoch, mask = state
        return self.epochs - epoch - (mask >> worker & 1)

    def branch(self, states: list[tuple[int, int]], model_at: list[float], worker_at: list[float]) -> None:
        self.nodes += 1
        enough = least(self.times, self.epochs) * (1 + 1e-9)
        if self.nodes >= self.most_nodes or self.best <= enough or self.hopeless(states, model_at, worker_at):
            return
        workers = range(len(worker_at))
        candidates = [
            (max(model_at[m], worker_at[w]), m, w)
            for m, (epoch, mask) in enumerate(states)
            for w in workers
            if epoch < self.epochs and not mask >> w & 1
        ]
        if not candidates:
            self.best = min(self.best, max(model_at + worker_at))
            return
        end, its_model, its_worker = min((start + self.times[m][w], m, w) for start, m, w in candidates)
        next_ones = [v for v in candidates if v[0] < end and (v[1] == its_model or v[2] == its_worker)]
        rest = [sum(self.times[m][w] * self.left(m, w, state) for w in workers) for m, state in enumerate(states)]
        for start, m, w in sorted(next_ones, key=lambda v: v[0] - rest[v[1]]):
            epoch, mask = states[m][0], states[m][1] | 1 << w
            after = (epoch + 1, 0) if mask == (1 << len(worker_at)) - 1 else (epoch, mask)
            until = start + self.times[m][w]
            self.branch(
                [*states[:m], after, *states[m + 1 :]],
                [*model_at[:m], until, *model_at[m + 1 :]],
                [*worker_at[:w], until, *worker_at[w + 1 :]],
            )

    def hopeless(self, states: list[tuple[int, int]], model_at: list[float], worker_at: list[float]) -> bool:
        """Whether this cannot become shorter than the best, or than what was tried after the same sub-epochs."""
        models, workers = range(len(model_at)), range(len(worker_at))
        todo = [[self.times[m][w] * self.left(m, w, states[m]) for w in workers] for m in models]
        by_model = [at + sum(row) for at, row in zip(model_at, todo, strict=True)]
        by_worker = [at + sum(column) for at, column in zip(worker_at, zip(*todo, strict=True), strict=True)]
        if max(by_model + by_worker) >= self.best * (1 - 1e-9):
            return True
        now, tried = model_at + worker_at, self.seen.setdefault(tuple(states), [])
        if any(all(a <= b for a, b in zip(then, now, strict=True)) for then in tried):
            return True
        tried.append(now)
        return False
