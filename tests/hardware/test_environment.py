"""The variables of NCCL and Gloo that follow from a topology, what the user's own settings do, and what is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machines import LOOPBACK, build, dgx_like, interface, sockets, topology_config
from runs import TINY

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.config.schema import Config
from leyden.trainer.hardware import comm_env
from leyden.trainer.hardware.comm_env import apply, lines, missing_hardware, settings

TWO = ["topology.devices_per_node=2", "strategy=ddp"]
ALWAYS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
}  # fmt: skip
INFINIBAND = [
    "topology.fabric.kind=infiniband", "topology.fabric.adapters=[mlx5_0,'mlx5_1:1']", "topology.fabric.gpudirect=PXB",
    "topology.fabric.timeout=22", "topology.fabric.retry_count=7", "topology.fabric.interface=ib0",
]  # fmt: skip


def wanted(*overrides: str, kind: str = "cuda") -> dict[str, str]:
    assert kind in ("cpu", "cuda")
    topology = topology_config("topology.nodes=2", *overrides).topology
    return {setting.name: setting.value for setting in settings(topology, kind, {})}


@pytest.mark.parametrize(
    ("overrides", "variables"),
    [
        ([], {}),
        (INFINIBAND, {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "=mlx5_0,mlx5_1:1", "NCCL_NET_GDR_LEVEL": "PXB",
                      "NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "7", "NCCL_SOCKET_IFNAME": "=ib0",
                      "GLOO_SOCKET_IFNAME": "ib0"}),
        (["topology.fabric.kind=roce", "topology.fabric.gid_index=3"],
         {"NCCL_IB_DISABLE": "0", "NCCL_IB_GID_INDEX": "3"}),
        # InfiniBand has no GID to choose; Ethernet has neither adapters nor their timeouts.
        (["topology.fabric.kind=infiniband", "topology.fabric.gid_index=3"], {"NCCL_IB_DISABLE": "0"}),
        (["topology=cloud_25gbe", "topology.fabric.interface=ens5", "topology.fabric.timeout=20"],
         {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=ens5", "GLOO_SOCKET_IFNAME": "ens5"}),
        (["topology=dgx_h100_x4"], {"NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "PXB"}),
    ],
)  # fmt: skip
def test_variables_follow_from_the_topology(overrides: list[str], variables: dict[str, str]) -> None:
    assert wanted(*overrides) == ALWAYS | variables


def test_workers_on_the_cpu_need_an_interface_alone() -> None:
    assert wanted(*INFINIBAND, kind="cpu") == {"GLOO_SOCKET_IFNAME": "ib0"}


def test_what_the_user_has_set_wins_and_is_named() -> None:
    given = {"NCCL_IB_HCA": "mlx5_9", "NCCL_NET_GDR_LEVEL": "PXB", "NCCL_DEBUG": "INFO", "HOME": "/root"}
    decided = settings(topology_config(*INFINIBAND).topology, "cuda", given)
    said = lines(decided, given)
    assert "NCCL_IB_HCA=mlx5_9  (set by you; topology.fabric.adapters would give =mlx5_0,mlx5_1:1)" in said
    assert "NCCL_NET_GDR_LEVEL=PXB  (set by you)" in said
    assert "NCCL_IB_TIMEOUT=22  (topology.fabric.timeout)" in said
    assert said[-1] == "NCCL_DEBUG=INFO  (set by you)"
    assert not any("HOME" in line for line in said)


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_users_flight_recorder_keeps_its_size(
    own_environment: dict[str, str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own_environment[name] = "7"
    apply(topology_config(*TWO, "topology.device.kind=cuda").topology, None)
    sizes = {key: value for key, value in own_environment.items() if key.endswith("_BUFFER_SIZE")}
    assert sizes == {name: "7"}, "torch would take the new name's value before the old one's"
    assert f"{name}=7  (set by you" in capsys.readouterr().out


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This process's environment without variables of the two libraries, put back afterwards."""
    for name in os.environ:
        if name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")):
            monkeypatch.delenv(name)
    kept = dict(os.environ)
    monkeypatch.setattr(os, "environ", kept)
    return kept


def cpu_config(*overrides: str) -> Config:
    return topology_config(*TWO, "topology.device.kind=cpu", *overrides)


def test_apply_sets_what_is_not_set_and_writes_it_down(
    own_environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apply(cpu_config("topology.fabric.interface=lo").topology, tmp_path)
    assert own_environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert capsys.readouterr().out == "environment: GLOO_SOCKET_IFNAME=lo  (topology.fabric.interface)\n"
    assert (tmp_path / "environment.txt").read_text() == "GLOO_SOCKET_IFNAME=lo  (topology.fabric.interface)\n"

    own_environment["GLOO_SOCKET_IFNAME"] = "eth7"  # the user's own business, whether it is there or not
    apply(cpu_config("topology.fabric.interface=nowhere0").topology, None)
    assert own_environment["GLOO_SOCKET_IFNAME"] == "eth7"


def test_other_nodes_set_and_check_but_do_not_write(
    own_environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apply(cpu_config("topology.fabric.interface=lo").topology, tmp_path, node=1)
    assert own_environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""
    del own_environment["GLOO_SOCKET_IFNAME"]
    with pytest.raises(ConfigError, match=r"topology\.fabric\.interface = nowhere0"):
        apply(cpu_config("topology.fabric.interface=nowhere0").topology, tmp_path, node=1)
    assert "GLOO_SOCKET_IFNAME" not in own_environment


def test_without_anything_to_say_nothing_is_written(own_environment: dict[str, str], tmp_path: Path) -> None:
    before = dict(own_environment)
    apply(cpu_config("topology.nodes=2").topology, tmp_path)
    assert own_environment == before
    assert not (tmp_path / comm_env.FILE).exists()


def test_a_run_of_one_host_stays_on_it(
    own_environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {s.name: s.value for s in settings(cpu_config().topology, "cuda", {})}
    assert (given["GLOO_SOCKET_IFNAME"], given["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    apply(cpu_config().topology, tmp_path)
    assert own_environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert capsys.readouterr().out == ""
    assert (tmp_path / comm_env.FILE).read_text() == "GLOO_SOCKET_IFNAME=lo  (a run of one host)\n"
    own_environment["GLOO_SOCKET_IFNAME"] = "eth7"
    apply(cpu_config().topology, None)
    assert own_environment["GLOO_SOCKET_IFNAME"] == "eth7"


def test_names_that_the_machine_does_not_have(tmp_path: Path) -> None:
    dgx = dgx_like(tmp_path / "dgx").root
    files = interface("ens5") | interface("eno2", "down") | LOOPBACK
    cloud = build(tmp_path / "cloud", files).root

    def refused(root: Path, *overrides: str, **given: str) -> list[str]:
        decided = settings(topology_config(*overrides).topology, "cuda", given)
        return ["\n".join(problem.lines()) for problem in missing_hardware(decided, root)]

    rdma = "topology.fabric.kind=infiniband"
    assert refused(dgx, rdma, "topology.fabric.adapters=[mlx5_0,'mlx5_10:1']", "topology.fabric.interface=ens6f0") == []
    (absent,) = refused(dgx, rdma, "topology.fabric.adapters=[mlx5_0,mlx5_8]")
    assert "has no adapter mlx5_8; it has mlx5_0, mlx5_1, mlx5_2, " in absent
    (none,) = refused(cloud, rdma, "topology.fabric.adapters=[mlx5_0]")
    assert "it has none" in none
    assert "topology.fabric.kind=ethernet" in none
    (unknown,) = refused(cloud, "topology.fabric.interface=ens6")
    assert "no such network interface; up are lo, ens5" in unknown
    assert "try: topology.fabric.interface=ens5" in unknown
    (down,) = refused(cloud, "topology.fabric.interface=eno2")
    assert "eno2 is down" in down
    (half,) = refused(cloud, "topology.fabric.interface=eno2", GLOO_SOCKET_IFNAME="ens5")  # NCCL would still use it
    assert "(NCCL_SOCKET_IFNAME in the environment" in half
    both = {"GLOO_SOCKET_IFNAME": "ens5", "NCCL_SOCKET_IFNAME": "=ens5"}
    assert refused(cloud, "topology.fabric.interface=eno2", **both) == []


PROBE = """
import os
from pathlib import Path

class Probe:
    def on_fit_start(self, state):
        bound = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        text = os.environ["GLOO_SOCKET_IFNAME"] + " " + bound
        (Path(state.run_dir) / f"worker{state.fabric.global_rank}.txt").write_text(text)
"""


def with_two_sockets(tmp_path: Path) -> list[str]:
    """Words that start a command for which two cores of this machine are two sockets; none without the right to."""
    usable = sorted(os.sched_getaffinity(0))
    processor = "sys/devices/system/cpu"
    root = build(tmp_path / "host", sockets([[number] for number in usable[:2]], cores_each=1)).root
    script = f'mount --bind {root / processor} /{processor} && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh"]
    possible = len(usable) > 1 and shutil.which("unshare") is not None
    return words if possible and subprocess.run([*words, "true"], capture_output=True).returncode == 0 else []


@pytest.mark.slow
def test_workers_of_a_real_run_have_it_and_stay_on_their_sockets(
    own_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    prefix = with_two_sockets(tmp_path)
    command = [
        *prefix, sys.executable, "-m", "leyden", *TWO, *TINY, "trainer.max_epochs=1", "logger=none",
        "trainer.enable_progress_bar=false", "topology.device.kind=cpu", "topology.fabric.interface=lo",
        "topology.device.sockets=[1,0]", "hydra.run.dir=run", "+callbacks.probe={_target_: probe.Probe}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=own_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "environment: GLOO_SOCKET_IFNAME=lo" in done.stdout
    written = (tmp_path / "run/environment.txt").read_text().splitlines()
    assert written[0] == "GLOO_SOCKET_IFNAME=lo  (topology.fabric.interface)"
    found = [(tmp_path / f"run/worker{rank}.txt").read_text() for rank in (0, 1)]
    if prefix:
        one, other = sorted(os.sched_getaffinity(0))[:2]
        assert found == [f"lo {other}", f"lo {one}"]
        assert written[1:] == [f"worker {rank}: device {rank}, on the cores of socket {1 - rank}" for rank in (0, 1)]
    else:
        assert [text.split()[0] for text in found] == ["lo", "lo"]


def test_the_command_refuses_an_interface_before_the_start(tmp_path: Path, own_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "leyden", *TWO, "topology.fabric.interface=nowhere0"]
    done = subprocess.run(command, cwd=tmp_path, env=own_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    for part in ("topology.fabric.interface = nowhere0", "up are ", "override 'topology.fabric.interface=nowhere0'"):
        assert part in done.stderr
    assert not list(tmp_path.iterdir())
