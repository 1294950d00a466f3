"""New runs: the part of `leyden train` that the command and `leyden.train` share, and the latter."""

import gc
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import ConfigError, refuse
from ..base.paths import shorten_path
from ..base.signals import StopRequest
from ..runs.exit_codes import EXIT_CODES
from ..runs.folder import refuse_frozen
from ..runs.lease import hold_lease
from ..runs.summary import read_summary, write_summary
from .run import Run

if TYPE_CHECKING:
    from ..compose.composer import ComposedRun, Composer
    from ..config.job import JobSpec
    from ..config.schema import Config


class TrainingFailed(RuntimeError):
    """A run that has failed or was refused by the preflight; `run` is its folder as it was left."""

    def __init__(self, message: str, run: Run):
        super().__init__(message)
        self.run = run


def compose(*overrides: str, config_dir: str | Path | None = None) -> "Config":
    """The validated config of one run; nothing is started or written.

    Args:
        overrides: as on the command line: "dataset=cifar10", "optimizer.lr=0.1".
        config_dir: a folder of your own YAML files.

    Raises:
        ConfigError: with every mistake found.
    """
    return composed_run(composer_of(config_dir), overrides).config


def train(*overrides: str, config_dir: str | Path | None = None) -> Run:
    """Train one run on this machine, and wait for its end.

    One worker trains in this process, several are processes of their own. No signal handler is installed; a
    KeyboardInterrupt ends the training at once, with the checkpoints written so far.

    Args:
        overrides: as on the command line.
        config_dir: a folder of your own YAML files.

    Raises:
        ConfigError: a mistake in the config; nothing is left behind.
        TrainingFailed: the run has failed.
    """
    composer = composer_of(config_dir)
    run = composed_run(composer, overrides)
    if run.config.launcher != "local":
        text = "leyden.train starts workers of this machine alone"
        raise refuse("topology.launcher", text, run.config.launcher, "the command leyden, or topology=local")
    with new_run(composer, run, overrides, listens=False) as (job, lease):
        code = _train_here(job, lease)
    return ended_run(job.run_dir, code)


def ended_run(folder: Path, code: int) -> Run:
    """The run of a training that has ended with an exit code.

    Raises:
        TrainingFailed: it has failed.
    """
    run = Run(folder)
    if code not in (0, EXIT_CODES["preempted"]):
        error = str(run.summary.get("error") or f"exit code {code}")
        raise TrainingFailed(f"{shorten_path(folder)}: {error}", run)
    return run


def stop() -> bool:
    """Request the training of this process to save and end; `train` or `work` then returns its run, which is preempted.

    For another thread, a signal handler or a callback. Of several workers one process is enough: all of them stop at
    the same step. Returns whether a training runs here.
    """
    request = StopRequest.current
    if request is not None:
        request.request()
    return request is not None


@contextmanager
def new_run(
    composer: "Composer", run: "ComposedRun", overrides: Sequence[str], listens: bool = True
) -> Generator[tuple["JobSpec", ExitStack], None, None]:
    """The job of a new run, whose config is frozen, and what holds the run's lease. A run that is refused inside by a
    ConfigError leaves no folder.

    Args:
        listens: whether a stop signal ends the process while it waits for the lease.
    """
    from ..config.job import JobSpec, freeze

    claim = composer.claim(run, overrides)
    folder = claim.folder
    with ExitStack() as lease:
        # a folder named by the user may be another start's, too: only its leader writes into it
        lease.enter_context(hold_lease(folder, listens))
        refuse_frozen(folder, "hydra.run.dir")
        try:
            config = freeze(folder, composer.freeze_in(run, folder))
            composer.write_dot_hydra(run, folder)
            yield JobSpec(config, folder), lease
        except ConfigError as error:
            claim.release()
            raise composer.with_remedies(error.with_places(composer.origin(overrides).where), overrides) from None


def composer_of(config_dir: str | Path | None) -> "Composer":
    # not at the top: Hydra takes a while
    from ..compose.composer import Composer

    return Composer(None if config_dir is None else str(config_dir))


def composed_run(composer: "Composer", overrides: Sequence[str]) -> "ComposedRun":
    run = composer.run(list(overrides))
    if run.is_sweep:
        raise refuse("hydra.mode", "is a sweep, and this is one run", "MULTIRUN", "the command leyden -m")
    return run


def _train_here(job: "JobSpec", lease: ExitStack) -> int:
    from ..launch.roles import is_alone

    if not is_alone(job.config) or job.config.topology.max_restarts:
        lease.close()  # the agent leads
        return _by_agent(job)
    from ..base.errors import CannotStart
    from ..entrypoints.start import start_here

    try:
        return start_here(job, listens=False)
    except CannotStart as error:
        raise error.as_config_error() or refuse("leyden.train", str(error), executed=True) from error
    except KeyboardInterrupt:
        write_summary(job.run_dir, {**read_summary(job.run_dir), "status": "interrupted"})
        raise
    finally:
        # network and optimizer are in reference cycles, and the device's memory is the next run's
        gc.collect()


def _by_agent(job: "JobSpec") -> int:
    """Run the agent as a process of its own, which takes the signals; its output is printed here."""
    command = [sys.executable, "-P", "-m", "leyden.trainer.entrypoints.start", *job.to_argv()]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace") as agent:
        assert agent.stdout is not None
        last = ""
        try:
            for line in agent.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
        except KeyboardInterrupt:
            agent.terminate()  # saves first
            agent.wait()
            raise
    if agent.returncode == 2:
        raise refuse("leyden.train", last.removeprefix("error: "), executed=True)
    return agent.returncode
