"""topology.launcher=external: torchrun, mpirun and whatever sets RANK start the workers of one run."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import psutil
import pytest
import torch
from folders import MODULES
from hosts import TwoHosts, available
from markdown_pages import BLOCKS
from runs import PATIENCE_S, TINY, distance, metrics, summary, wait_until, weights
from starters import LEYDEN, Starters

import leyden
from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import load
from leyden.trainer.launch.external.announcement import Announcement
from leyden.trainer.launch.external.placement import HostPlacement, placement_of, role_of
from leyden.trainer.launch.external.rendezvous import ExternalRendezvous
from leyden.trainer.launch.external.sizes import servers_of, sizes
from leyden.trainer.launch.external.starters import World, world_of
from leyden.trainer.launch.store import AgentStore
from leyden.trainer.runs.slurm import STOP_REQUESTED

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
EXTERNAL = "topology.launcher=external"
DDP = [*TINY, "dataset=digits", "strategy=ddp", "topology=cpu", "trainer.enable_progress_bar=false"]
LONG = ["trainer.max_epochs=3"]
STEPS_AN_EPOCH = 18


@pytest.fixture
def starters(tmp_path: Path) -> Iterator[Starters]:
    started = Starters(tmp_path)
    yield started
    started.end()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training by Leyden's own agent."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    command = [*LEYDEN, *DDP, *LONG, "topology.devices_per_node=2", f"hydra.run.dir={folder}"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    return folder


def equal(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) for name in ours) and {
        name: value for name, value in metrics(one).items() if "/" in name and name.startswith(("val", "test"))
    } == {name: value for name, value in metrics(other).items() if "/" in name and name.startswith(("val", "test"))}


def workers(folder: Path) -> list[int]:
    """Process ids of Leyden's commands with this run folder, by rank."""
    found: dict[int, int] = {}
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            command = process.info["cmdline"] or []
            if f"hydra.run.dir={folder}" in command and "torch.distributed.run" not in command:
                found[int(process.environ()["RANK"])] = process.pid
    return [found[rank] for rank in sorted(found)]


HOLDS = ["+callbacks.holds._target_=slurm_examples.HoldsOnce", f"+callbacks.holds.step={STEPS_AN_EPOCH + 2}"]
"""Overrides by which the two ranks are held after their first checkpoint, until a signal arrives."""
TESTS = {"PYTHONPATH": str(MODULES)}


def held(folder: Path) -> bool:
    return (folder / "checkpoints" / "last.ckpt").exists() and len(list(folder.glob("held-*"))) == 2


@pytest.fixture(scope="module")
def free_port() -> str:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def shown(program: str) -> list[str]:
    """The command of this program in docs/external.md."""
    (command,) = [c for block in BLOCKS if block.page == "docs/external.md" for c in block.commands
                  if c.program == program]  # fmt: skip
    return list(command.arguments)


@pytest.mark.campaign
def test_processes_with_a_rank_are_one_run_equal_to_leydens_own(
    starters: Starters, reference: Path, free_port: str
) -> None:
    codes = starters.ranks([*DDP, *LONG, EXTERNAL, "hydra.run.dir=run"], MASTER_PORT=free_port)
    assert codes == [0, 0], starters.log("log0") + starters.log("log1")
    assert [path.name for path in starters.here.iterdir() if path.is_dir()] == ["run"]
    assert equal(starters.here / "run", reference)
    assert starters.log("log1") == ""
    assert "test/acc" in starters.log("log0")
    assert main(["eval", str(starters.here / "run")]) == 0


FAILS_ONCE = """
import os

class FailsOnce:
    def on_step_end(self, state):
        if os.environ["RANK"] == "1" and state.step == 40 and not os.path.exists("failed"):
            open("failed", "w").close()
            raise RuntimeError("out of luck")
"""


@pytest.mark.slow
def test_torchrun_restarts_after_a_kill_and_names_the_rank_that_has_failed(
    starters: Starters, reference: Path, free_port: str
) -> None:
    """By the command of the page, which names neither the interpreter nor a folder. What goes on is bit for bit the run
    that was never disturbed."""
    (starters.here / "fails_here.py").write_text(FAILS_ONCE)
    folder = starters.here / "run"
    words = shown("torchrun")
    own, leyden = words[: words.index("--no-python")], words[words.index("leyden") + 1 :]
    own += ["--max-restarts=1", "-m", "leyden"]
    leyden += [*DDP, *LONG, *HOLDS, "+callbacks.bad._target_=fails_here.FailsOnce", f"hydra.run.dir={folder}"]
    torchrun = starters.start([*TORCHRUN, *own, *leyden], TESTS)
    wait_until(lambda: held(folder))
    os.kill(workers(folder)[1], signal.SIGKILL)
    assert torchrun.wait(180) == 1, starters.log()
    root_cause = starters.log().partition("Root Cause")[2]
    assert "rank      : 1" in root_cause
    assert "RuntimeError: out of luck" in root_cause
    failed = summary(folder)
    assert (failed["status"], failed["failed_rank"], failed["error"]) == ("failed", 1, "RuntimeError: out of luck")
    assert len(failed["sessions"]) == 2
    codes = starters.ranks([*leyden, "topology.on_existing=resume"], 2, **TESTS, MASTER_PORT=free_port)
    assert codes == [0, 0], starters.log("log0")
    assert "over 3 sessions" in starters.log("log0")
    assert equal(folder, reference)


@pytest.mark.campaign
def test_a_signal_to_torchrun_saves_and_the_same_command_goes_on(starters: Starters, reference: Path) -> None:
    folder = starters.here / "run"
    words = [*DDP, *LONG, *HOLDS, EXTERNAL, f"hydra.run.dir={folder}", "topology.on_existing=resume"]
    torchrun = [*TORCHRUN, "--nproc_per_node=2", "-m", "leyden", *words]
    first = starters.start(torchrun, TESTS)
    wait_until(lambda: held(folder))
    first.send_signal(signal.SIGTERM)
    first.wait(PATIENCE_S)
    assert summary(folder)["status"] == "preempted", starters.log()
    assert starters.start(torchrun, TESTS).wait(180) == 0, starters.log()
    assert equal(folder, reference)
    assert starters.start(torchrun, TESTS).wait(60) == 0, starters.log()
    assert "nothing is left to train" in starters.log()


@pytest.mark.slow
def test_a_mistake_is_one_message_and_exit_code_2_on_all_ranks(starters: Starters, free_port: str) -> None:
    codes = starters.ranks([*DDP, EXTERNAL, "optimizer.lr=-1"], MASTER_PORT=free_port)
    assert codes == [2, 2]
    assert "optimizer.lr" in starters.log("log0")
    assert starters.log("log1") == ""
    codes = starters.ranks([*DDP, EXTERNAL, "topology.devices_per_node=3"], MASTER_PORT=free_port)
    assert codes == [2, 2]
    message = " ".join(starters.log("log0").split())
    assert "has started 2 processes, 2 on each of 1 hosts, and the topology has 1 x 3" in message
    assert not [path for path in starters.here.iterdir() if path.is_dir()]


@pytest.mark.campaign
@pytest.mark.skipif(not available(), reason="two hosts need root, ip and tc")
def test_torchrun_on_two_hosts(starters: Starters, reference: Path) -> None:
    folder = starters.here / "run"
    words = [*DDP, *LONG, EXTERNAL, f"hydra.run.dir={folder}"]
    with TwoHosts() as hosts:
        started = [
            starters.start(
                ["ip", "netns", "exec", name, *TORCHRUN, "--nnodes=2", f"--node-rank={rank}", "--nproc_per_node=1",
                 f"--master-addr={hosts.addresses[0]}", "--master-port=29500", "-m", "leyden", *words],
                log=f"log{rank}",
            ) for rank, name in enumerate(hosts.names)
        ]  # fmt: skip
        codes = [process.wait(180) for process in started]
    assert codes == [0, 0], starters.log("log0") + starters.log("log1")
    assert equal(folder, reference)


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="two hosts need root, ip and tc")
def test_hosts_that_share_no_folder_train_one_run_with_a_secret(starters: Starters, reference: Path) -> None:
    """A file system of its own lies over the folder of runs on the second host; without a secret both refuse."""
    runs = starters.here / "runs"
    runs.mkdir()
    words = [*LEYDEN, *DDP, *LONG, EXTERNAL, f"hydra.run.dir={runs / 'run'}"]
    hides = ["sh", "-c", f'mount -t tmpfs none {runs} && "$@"; code=$?; ls -A {runs} > hidden; exit $code', "sh"]
    with TwoHosts() as hosts:
        known = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29500"}
        for secret, expected in (("", [2, 2]), ("5e" * 32, [0, 0])):
            started = [
                starters.start(
                    ["ip", "netns", "exec", name, *(hides if rank else []), *words],
                    {**known, "RANK": str(rank), "LEYDEN_SECRET": secret}, f"log{rank}",
                ) for rank, name in enumerate(hosts.names)
            ]  # fmt: skip
            codes = [process.wait(180) for process in started]
            assert codes == expected, starters.log("log0") + starters.log("log1")
            assert "leyden" not in starters.log("log1"), "rank 0 says it; torch itself warns of the namespaces"
            hidden = (starters.here / "hidden").read_text()
            if not secret:
                assert "rank 1: rank 0 has frozen the run there, and this host does not see" in " ".join(
                    starters.log("log0").split()
                )
                assert (list(runs.iterdir()), hidden) == ([], "")
    assert hidden == "run\n"
    assert equal(runs / "run", reference)


WORK = """
import os, sys, threading, time
import leyden
import leyden.trainer.engine.train

def work(rank):
    for call in range(3):
        run = leyden.work("run")
        print("rank", rank, run.status, run.metrics.get("test/loss"), flush=True)
        while not os.path.exists("may-go-on"):
            time.sleep(0.05)

ranks = []
for rank in range(2):
    ranks.append(os.fork())
    if ranks[-1] == 0:
        os.environ["RANK"] = str(rank)
        before = dict(os.environ)
        thread = threading.Thread(target=work, args=[rank])
        thread.start()
        thread.join()
        if os.environ != before:
            sys.exit(4)
        for name in ("RANK", "WORLD_SIZE"):
            del os.environ[name]
        leyden.train(*sys.argv[1:], f"hydra.run.dir=alone-{rank}")
        sys.exit(3)
assert [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in ranks] == [3, 3]
"""
"""Forks the processes of the ranks, which have the imports from it, call three times each, and then train alone."""


@pytest.mark.slow
def test_functions_that_a_program_calls_are_the_workers_and_the_stop_command_reaches_them(
    starters: Starters, reference: Path, free_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread that is not the main one, as Ray calls them. The command sends no signal, which is the program's own,
    and waits for the run alone, whose processes go on; called again in them, the rest is trained, and then nothing is
    left. What each of them trains then, alone, is written down by it, whatever its rank has been."""
    monkeypatch.chdir(starters.here)
    folder = leyden.freeze(*DDP, *LONG, *HOLDS, "topology.devices_per_node=2", "hydra.run.dir=run")
    assert folder == starters.here / "run"
    (starters.here / "work.py").write_text(WORK)
    known = {**TESTS, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
    program = starters.start([sys.executable, "work.py", *TINY, "logger=default"], known)
    wait_until(lambda: held(folder))
    assert main(["stop", str(folder)]) == 0
    assert summary(folder)["status"] == "preempted"
    assert not (folder / STOP_REQUESTED).exists()
    (starters.here / "may-go-on").touch()
    assert program.wait(PATIENCE_S) == 0, starters.log()
    loss = metrics(folder)["test/loss"]
    for rank in range(2):
        said = [line for line in starters.log().splitlines() if line.startswith(f"rank {rank} ")]
        assert said == [f"rank {rank} preempted None", *[f"rank {rank} done {loss}"] * 2]
        assert list((starters.here / f"alone-{rank}").rglob("events.out.tfevents*"))
    assert len(summary(folder)["sessions"]) == 2
    assert equal(folder, reference)


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["topology.devices_per_node=2"], {"RANK": "0", "WORLD_SIZE": "1"}, "the 1 hosts with 1 processes each"),
        (["topology.devices_per_node=2"], {}, "no other program has started this process"),
        (["topology.launcher=local"], {"RANK": "0", "WORLD_SIZE": "1"}, "topology.launcher"),
        (["model=lenet6"], {}, "lenet5"),
    ],
)
def test_mistakes_of_the_functions(
    words: list[str], environment: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    free_port: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, value in {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        leyden.work(leyden.freeze(*DDP, *words, "hydra.run.dir=run"))


@pytest.mark.slow
def test_all_ranks_save_where_one_gets_a_signal_and_another_number_of_them_goes_on(
    starters: Starters, reference: Path, free_port: str
) -> None:
    folder = starters.here / "run"
    words = [*LEYDEN, *DDP, *LONG, *HOLDS, EXTERNAL, f"hydra.run.dir={folder}", "topology.on_existing=resume"]
    known = {**TESTS, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port}
    started = [starters.start(words, {**known, "RANK": str(rank)}, f"log{rank}") for rank in range(2)]
    wait_until(lambda: held(folder))
    started[1].send_signal(signal.SIGTERM)
    assert [process.wait(PATIENCE_S) for process in started] == [75, 75], starters.log("log0")
    assert summary(folder)["status"] == "preempted"
    assert starters.start(words, {**known, "WORLD_SIZE": "1", "RANK": "0"}, "alone").wait(120) == 0
    assert [each["world_size"] for each in summary(folder)["sessions"]] == [2, 1]
    assert distance(weights(folder), weights(reference)) < 1e-5


@pytest.mark.slow
def test_one_of_the_ranks_is_a_parameter_server(starters: Starters, free_port: str) -> None:
    words = [*TINY, "dataset=digits", "strategy=asgd", "topology=cpu", "trainer.enable_progress_bar=false"]
    codes = starters.ranks([*words, EXTERNAL, "hydra.run.dir=run"], 3, MASTER_PORT=free_port)
    assert codes == [0, 0, 0], starters.log("log0") + starters.log("log2")
    assert starters.log("log2") == ""
    trained = summary(starters.here / "run")
    assert (trained["status"], trained["world_size"]) == ("done", 2)
    assert load(starters.here / "run").servers == 1


@pytest.mark.slow
def test_a_hang_of_one_rank_ends_all(starters: Starters, free_port: str) -> None:
    stuck = ["dataset._target_=hang_examples.Stuck", "+dataset.rank=1", "+dataset.after=100", "trainer.hang_timeout=4"]
    words = [*DDP, *stuck, EXTERNAL, "hydra.run.dir=run"]
    assert 0 not in starters.ranks(words, 2, **TESTS, MASTER_PORT=free_port)
    assert "no progress for" in starters.log("log1")
    assert summary(starters.here / "run")["status"] == "failed"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI's mpirun")
def test_mpirun_as_documented_and_a_signal_to_it(starters: Starters, reference: Path) -> None:
    """It saves, and the same command goes on. mpirun waits for two seconds before it sends SIGTERM, and after that."""
    folder = starters.here / "run"
    words = shown("mpirun")
    own, leyden = words[: words.index("leyden")], words[words.index("leyden") + 1 :]
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "odls_base_sigkill_timeout", "2", *own]
    more = [*DDP, *LONG, *HOLDS, f"hydra.run.dir={folder}", "topology.on_existing=resume"]
    first = starters.start([*mpirun, *LEYDEN, *leyden, *more], TESTS)
    wait_until(lambda: held(folder))
    first.send_signal(signal.SIGTERM)
    first.wait(PATIENCE_S)
    assert summary(folder)["status"] == "preempted", starters.log()
    assert starters.start([*mpirun, *LEYDEN, *leyden, *more], TESTS).wait(120) == 0, starters.log()
    assert equal(folder, reference)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI's mpirun")
def test_mpirun_of_a_command_that_does_not_say_external_is_refused(starters: Starters) -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    assert starters.start([*mpirun, *LEYDEN, *DDP, "hydra.run.dir=run"]).wait(60) == 2, starters.log()
    assert "Open MPI's mpirun has started 2 processes" in " ".join(starters.log().split())
    assert not (starters.here / "run").exists()


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, None, None)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}, (3, 4, 1, "a")),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2, None, None)),
        ({"JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "0"}, (2, 4, 0, None)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, (5, 8, 1, None)),
    ],
)  # fmt: skip
def test_the_world_of_a_process(environment: dict[str, str], found: tuple[object, ...]) -> None:
    world = world_of(environment)
    assert (world.rank, world.size, world.local_rank, world.address) == found


STEP = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "1234567", "SLURM_STEP_ID": "3"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, ("a", 29500)),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ("a", 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, (None, 1)),
        ({**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1"}, (None, None)),
        ({**STEP, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[07-08]"}, ("n07", 19570)),
        ({**STEP, "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NODELIST": "r1-n[2,4],m1"}, ("r1-n2", 19570)),
        ({**STEP, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "a,b", "MASTER_ADDR": "c"}, ("c", 29500)),
    ],
)  # fmt: skip
def test_the_rendezvous_of_a_process(environment: dict[str, str], found: tuple[object, ...]) -> None:
    world = world_of(environment)
    assert (world.address, world.port) == found


def test_steps_of_two_clusters_are_two_jobs() -> None:
    """Their numbers may be the same, and both on this host."""
    assert len({world_of({**STEP, "SLURM_CLUSTER_NAME": name}).job for name in ("one", "two")}) == 2


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({}, "topology.launcher"),
        ({"WORLD_SIZE": "2"}, "topology.launcher"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "http"}, "MASTER_PORT"),
    ],
)
def test_no_world_is_an_error(environment: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        world_of(environment)
    assert refused.value.problems[0].key == key


def test_a_name_without_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        ExternalRendezvous(World("srun", 0, 2, None, "nowhere.invalid", 1))


def test_the_last_ranks_of_each_host_are_its_servers() -> None:
    words = ["topology=cpu", EXTERNAL, "topology.nodes=2", "topology.devices_per_node=2", "strategy=asgd"]
    config = leyden.compose(*words, "strategy.execution.servers=4")
    assert [role_of(rank, config).name for rank in range(8)] == ["0", "1", "server-0", "server-2",
                                                                 "2", "3", "server-1", "server-3"]  # fmt: skip
    strategy = config.strategy
    for given, expected in ((4, "2"), (None, "3")):
        execution = {**strategy.arguments["execution"], "servers": given}
        servers = servers_of(strategy.target, {**strategy.arguments, "execution": execution}, "one_a_node")
        assert sizes(HostPlacement(2, 4), servers) == ["topology.nodes=2", f"topology.devices_per_node={expected}"]
    with pytest.raises(ConfigError, match="the same number of processes"):
        leyden.compose(*words, "strategy.execution.servers=3")
    with pytest.raises(ConfigError, match="the same number of processes"):
        leyden.compose(*words, "topology.server_placement=first_node")


def test_ranks_of_a_host_follow_each_other() -> None:
    assert placement_of(["a", "a", "b", "b"]) == HostPlacement(2, 2)
    for hosts in (["a", "b", "a", "b"], ["a", "a", "b"]):
        with pytest.raises(ConfigError):
            placement_of(hosts)


def test_a_rank_that_comes_again_waits_for_the_next_store_of_rank_0(
    free_port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an address that all know, and by the port in rank 0's file."""
    retried, sleep = Event(), time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (retried.set(), sleep(seconds)))
    for address in (("127.0.0.1", int(free_port)), (None, None)):
        leader, follower = (World("a starter", rank, 2, rank, *address, job=str(tmp_path)) for rank in range(2))
        with ThreadPoolExecutor(1) as pool:
            with ExternalRendezvous(leader) as first:
                first.announce(Announcement(code=1))
                with ExternalRendezvous(follower) as joined:
                    assert joined.announcement().code == 1
                retried.clear()
                again = pool.submit(ExternalRendezvous, follower)
                assert retried.wait(PATIENCE_S)
            with ExternalRendezvous(leader) as second, again.result(PATIENCE_S) as rejoined:
                second.announce(Announcement(code=2))
                assert rejoined.announcement().code == 2


def test_a_store_that_the_starter_serves_keeps_each_rendezvous_apart() -> None:
    store = AgentStore()
    store.open()
    world = World("torchrun", 0, 1, 0, store.host, store.port, store_served=True)
    with ExternalRendezvous(world) as first:
        first.post_stop(signal.SIGTERM)
        assert first.posted_stop() is signal.SIGTERM
    with ExternalRendezvous(world) as second:
        assert second.posted_stop() is None
    store.close()


def test_an_announcement_is_believed_by_its_signature_alone() -> None:
    run = Announcement("/run", "train", "", "127.0.0.1", 1234).sign(b"secret")
    assert Announcement.decode(run.encode()) == run
    assert run.is_signed_by(b"secret")
    assert not run.is_signed_by(b"other")
    moved = Announcement.decode(run.encode().replace(b"/run", b"/foo"))
    assert not moved.is_signed_by(b"secret")
    for message in (b"[]", b'{"folder": 1}', run.encode().replace(b"1234", b'"1234"')):
        with pytest.raises(ValueError, match="not an announcement"):
            Announcement.decode(message)


@pytest.mark.parametrize(
    "words",
    [
        ["strategy=asgd", "topology.devices_per_node=2", "strategy.execution.elastic=true"],
        ["-m", "seed=1,2"],
        ["strategy=ddp", "topology.devices_per_node=2"],
    ],
    ids=" ".join,
)
def test_what_others_cannot_start_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, "dataset=digits", "topology=cpu", EXTERNAL, *words]) == 2
    assert "topology.launcher" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_existing_run_is_gone_on_with_only_where_its_config_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "dataset=digits", "topology=cpu", "hydra.run.dir=run", "trainer.enable_progress_bar=false"]
    assert main([*words, "topology.on_existing=resume"]) == 0
    assert main([*words, "topology.on_existing=resume"]) == 0
    assert "nothing is left to train" in capsys.readouterr().out
    assert main([*words, "topology.on_existing=resume", "seed=2"]) == 2
    assert "has another seed than" in " ".join(capsys.readouterr().err.split())
    assert main(words) == 2
    assert "holds a run already" in capsys.readouterr().err
