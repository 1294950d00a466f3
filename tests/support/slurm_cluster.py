"""A Slurm of two nodes on this machine: munged, slurmctld and two slurmd, on loopback and in a folder of their own."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from runs import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "setpriv", "chrt")
NODES = ("n1", "n2")
MARK = "LEYDEN_TEST_CLUSTER"
"""Environment variable by which the cluster's processes are known."""
_BEFORE_OTHERS = ("chrt", "--other", "0", "nice", "-n", "-10")
"""Prefix of a daemon, which is scheduled before the tests' own processes, as where it has a core for itself: a node
that does not answer for some seconds is down. Its jobs have the priority of their submission (PropagatePrioProcess)."""
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

CONFIG = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PropagatePrioProcess=1
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MaxArraySize=5
ReturnToService=2
KillWait=30
MinJobAge=3600
SlurmctldTimeout=15
SlurmdTimeout=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=UNLIMITED State=UP PriorityTier=1 GraceTime=300
PartitionName=urgent Nodes=n1,n2 MaxTime=UNLIMITED State=UP PriorityTier=2
"""


def available() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))


NEEDS_SLURM = pytest.mark.skipif(not available(), reason="needs root, slurmctld, slurmd and munged")


class SlurmCluster:
    """Started when made. `stop` ends what it started, jobs included, and nothing else."""

    def __init__(self) -> None:
        # another session's cluster on this machine has jobs of the same numbers
        self.name = f"leyden{os.getpid()}"
        # munged trusts no folder below one that others may write to, as pytest's are
        self.folder = Path(tempfile.mkdtemp(prefix="leyden-slurm-"))
        self.folder.chmod(0o755)
        self.config = self.folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.config), MARK: str(self.folder)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (self.folder / "state").mkdir()
        try:
            self._start_munge()
            self._start_slurm()
        except BaseException:
            self.stop()
            raise

    def _start_munge(self) -> None:
        own = self.folder / "munge"
        own.mkdir(mode=0o755)
        key = own / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        for path in (own, key):
            shutil.chown(path, "munge", "munge")
        files = [f"--{name}-file={own / name}" for name in ("key", "log", "pid", "seed")]
        self._daemon("munged", ["munged", "--foreground", f"--socket={own / 'socket'}", *files], user="munge")
        wait_until((own / "socket").exists)

    def _start_slurm(self, attempts: int = 5) -> None:
        """Slurm takes no free ports by itself, and those that are free now may be taken a moment later."""
        for _ in range(attempts):
            self.config.write_text(self._configured(random.sample(range(20000, 32000), 3)))
            self._daemon("slurmctld", [*_BEFORE_OTHERS, "slurmctld", "-D"])
            for node in NODES:
                self.start_node(node)
            wait_until(lambda: self._up() or self._died())
            if not self._died():
                return
            self._end_slurm()
        raise RuntimeError(f"Slurm did not start:\n{(self.folder / 'slurmctld.log').read_text()[-3000:]}")

    def _configured(self, ports: Sequence[int]) -> str:
        return CONFIG.format(name=self.name, host=socket.gethostname(), folder=self.folder, ports=ports)

    def _daemon(self, name: str, command: list[str], user: str | None = None) -> None:
        with open(self.folder / f"{name}.out", "ab") as output:
            # also where the tests are killed
            command = ["setpriv", "--pdeathsig", "TERM", *command]
            self._daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment, user=user,
                group=user, extra_groups=[] if user else None, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def start_node(self, node: str) -> None:
        self._daemon(node, [*_BEFORE_OTHERS, "slurmd", "-D", "-N", node])

    def _died(self) -> bool:
        return any(daemon.poll() is not None for daemon in self._daemons.values())

    def _up(self) -> bool:
        return self.run("sinfo", "--noheader", "--format=%T %D").split() == ["idle", str(len(NODES))]

    def run(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment, timeout=60)
        return done.stdout

    def job(self, job_id: str) -> dict[str, str]:
        """slurmctld's fields of a job: JobState, Restarts, ExitCode, ..."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "--oneliner", "show", "job", job_id)))

    def ended(self, job_id: str, seconds: float = 180) -> dict[str, str]:
        """slurmctld's fields of a job, once it has ended."""
        wait_until(lambda: self.job(job_id)["JobState"] in _ENDED, seconds)
        return self.job(job_id)

    @contextmanager
    def urgent_job(self, node: str) -> Iterator[str]:
        """A job of higher priority that needs the whole node. Yields its id; it ends with the context."""
        options = ("--parsable", "--partition=urgent", f"--nodelist={node}", "--exclusive", "--output=/dev/null")
        job_id = self.run("sbatch", *options, "--wrap=sleep 600").strip()
        try:
            yield job_id
        finally:
            self.run("scancel", job_id)

    @contextmanager
    def slow_node(self, node: str) -> Iterator[None]:
        """The node's daemon answers when the context has ended. Its jobs go on."""
        self._daemons[node].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._daemons[node].send_signal(signal.SIGCONT)

    def kill_node(self, node: str) -> None:
        """As if its power failed: its daemon and every process on it."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        here = self._processes(f"SLURMD_NODENAME={node}")
        # first the daemons of its jobs' steps, which would report each death to slurmctld
        steps = {parent for process in here if (parent := process.parent()) and _is_step_daemon(parent)}
        for process in (*steps, *here):
            _kill(process)

    def stop(self) -> None:
        if "slurmctld" in self._daemons and self._daemons["slurmctld"].poll() is None:
            subprocess.run(["scancel", "--signal=KILL", "--full", "--state=RUNNING"], env=self.environment, check=False)
            subprocess.run(["scancel", "--user=root"], env=self.environment, check=False)
        self._end_slurm()
        for process in self._processes(f"SLURM_CONF={self.config}"):
            _kill(process)
        self._end("munged")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_slurm(self) -> None:
        for name in ("slurmctld", *NODES):
            self._end(name)

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.terminate()
        try:
            daemon.wait(15)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _processes(self, variable: str) -> list[psutil.Process]:
        """Processes of this cluster with an environment variable; not this one, nor those that wait for it."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                entries = {f"{name}={value}" for name, value in process.environ().items()}
                if {variable, f"SLURM_CONF={self.config}"} <= entries and process.pid != os.getpid():
                    found.append(process)
        return found


def _is_step_daemon(process: psutil.Process) -> bool:
    return "slurmstepd" in " ".join(process.cmdline())


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()
