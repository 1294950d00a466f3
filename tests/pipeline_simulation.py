"""A pipeline in virtual time."""
import heapq
from collections import deque

from leyden.trainer.pipeline.board import Board, Visit
from leyden.trainer.pipeline.estimates import Estimates


class Simulation:
    def __init__(self, scheduler, times, epochs, homes, known=False, early=0.0):
        self.scheduler, self.times, self.homes = scheduler, times, homes
        self.board = Board({m: epochs for m in range(len(times))} if isinstance(epochs, int) else epochs, homes)
        self.workers = len(times[0])
        self.estimates = Estimates()
        if known:
            for m, row in enumerate(times):
                for w, s in enumerate(row):
                    self.estimates.note(m, w, s)
        self.now = 0.0
        self.early = early
        self.free_at = [0.0] * self.workers
        self.count = [0] * self.workers
        self.log = []
        self.events = []
        self.n = 0

    def ask(self, w, quick=False):
        est = []
        for x in range(self.workers):
            f = 0.0
            for v in self.board.under_way.values():
                if self.homes[v.partition] == x:
                    s, e = self.log_of[v]
                    f = max(f, 0) + (max(0.0, self.estimates.seconds(v.model, x) - (self.now - s)) if s <= self.now else self.estimates.seconds(v.model, x))
            est.append(f)
        v = self.scheduler.next(w, self.board, self.estimates, est)
        if v is None:
            return False
        self.board.begin(v)
        start = max(self.now, self.free_at[w])
        end = start + self.times[v.model][w]
        self.free_at[w] = end
        self.count[w] += 1
        self.log_of[v] = (start, end)
        self.n += 1
        heapq.heappush(self.events, (end, 1, self.n, v))
        if self.early:
            heapq.heappush(self.events, (end - self.early * self.times[v.model][w], 0, self.n, v))
        return True

    def run(self):
        self.log_of = {}
        while True:
            took = True
            while took:
                took = False
                for w in range(self.workers):
                    if self.count[w] == 0:
                        took |= self.ask(w)
            if not self.events:
                break
            self.now, kind, _, v = heapq.heappop(self.events)
            todo = [(kind, v)]
            while self.events and self.events[0][0] <= self.now:
                _, kind, _, v = heapq.heappop(self.events)
                todo.append((kind, v))
            for kind, v in sorted(todo, key=lambda t: -t[0]):
                w = self.homes[v.partition]
                if kind:
                    self.count[w] -= 1
                    self.estimates.note(v.model, w, self.times[v.model][w])
                    self.board.end(v)
                elif self.count[w] == 1:
                    self.ask(w, True)
        assert self.board.over
        return self.now


def fifo(times, epochs, homes, rotate=False):
    P = len(homes)
    W = len(times[0])
    queues = [deque() for _ in range(W)]
    idle = [True] * W
    events = []
    now = 0.0
    done = [0] * len(times)
    def part(m):
        e, k = divmod(done[m], P)
        return (k + ((m + e) if rotate else 0)) % P
    def join(m):
        if done[m] < epochs * P:
            queues[homes[part(m)]].append(m)
    for m in range(len(times)):
        join(m)
    while True:
        for w in range(W):
            if idle[w] and queues[w]:
                m = queues[w].popleft()
                idle[w] = False
                heapq.heappush(events, (now + times[m][w], w, m))
        if not events:
            return now
        now, w, m = heapq.heappop(events)
        idle[w] = True
        done[m] += 1
        join(m)


def first_runnable(times, epochs, homes):
    """Any idle worker takes the model free longest that hasn't seen it."""
    class S:
        def __init__(self):
            self.q = list(range(len(times)))
        def next(self, w, board, est, free_in):
            for m in list(board.models):
                pass
            vs = board.here(w)
            if not vs: return None
            rank = {m: i for i, m in enumerate(self.freed)}
            return min(vs, key=lambda v: rank[v.model])
    s = S()
    s.freed = list(range(len(times)))
    sim = Simulation(s, times, epochs, homes)
    orig = sim.board.end
    def end(v, o=None):
        s.freed.remove(v.model); s.freed.append(v.model)
        return orig(v, o)
    sim.board.end = end
    return sim.run()


def bound(times, epochs, homes):
    P = len(homes)
    ml = max(sum(r[h] for h in homes) * epochs for r in times)
    wl = max(sum(r[w] for r in times) * homes.count(w) * epochs for w in range(len(times[0])))
    return max(ml, wl)
