"""`python corpus_forks.py FOLDER EVERY`: entries of the corpus in forks of one process. Prints a line for each fault.

Forks, because an import of torch takes longer than most entries; in a process of its own, because a process whose torch
has computed something has threads that a fork would wait for.
"""

import sys
from pathlib import Path

import torch
from corpus_outcomes import Corpus, Outcome, one_of_each_door
from measured_command import as_fork
from session_fork_server import import_ahead

import leyden.trainer.entrypoints.worker  # noqa: F401  # what the commands import
from leyden.trainer.base.process import frozen_imports
from leyden.trainer.compose import trial_build  # noqa: F401


def main(folder: Path, every: int) -> int:
    torch.set_num_threads(1)
    with frozen_imports():
        import_ahead()
    some = one_of_each_door(every)
    corpus = Corpus(folder, as_fork, cpu_s=5.0, times=1)
    failed = [outcome for outcome in map(shown, corpus.outcomes(some)) if outcome.faults]
    print(f"{len(some)} entries, {len(failed)} with faults")
    return 1 if failed else 0


def shown(outcome: Outcome) -> Outcome:
    """Print an entry with its faults."""
    if outcome.faults:
        last = outcome.measured.output[-600:]
        print(f"{outcome.entry.door}: {outcome.entry.name}: {'; '.join(outcome.faults)}\n{last}", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
