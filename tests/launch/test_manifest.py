"""`leyden manifest`: what it prints against the engines' schemas, and what the pods would execute, executed."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import torch
import yaml
from hosts import TwoHosts, available
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from runs import TINY, weights
from starters import LEYDEN, Starters

from leyden.trainer.cli.main import main
from leyden.trainer.launch.kubernetes.pod import name_of

PODS = ["topology=kubernetes", "topology.kubernetes.image=registry/leyden:1", "hydra.run.dir=/shared/run",
        "topology.kubernetes.volumes=[{name:shared,persistentVolumeClaim:{claimName:runs}}]",
        "topology.kubernetes.volumeMounts=[{name:shared,mountPath:/shared}]"]  # fmt: skip
OLDEST, NEWEST = "1.31", "1.37"
"""Versions of Kubernetes: the first in which failure policies of pods are stable, and the newest with a schema here."""


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["manifest", *words]) == 0, capsys.readouterr().err
    return list(yaml.safe_load_all(capsys.readouterr().out))


@pytest.mark.parametrize("devices", [1, 8])
def test_an_indexed_job_is_one_by_the_schema(devices: int, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["topology.kubernetes.namespace=team", "topology.kubernetes.nodeSelector={accelerator:h100}",
            "topology.kubernetes.tolerations=[{key:nvidia.com/gpu,operator:Exists}]",
            "topology.kubernetes.imagePullSecrets=[{name:registry}]", "topology.kubernetes.serviceAccountName=trainer",
            "topology.kubernetes.env=[{name:KEY,valueFrom:{secretKeyRef:{name:wandb,key:api-key}}}]"]  # fmt: skip
    workers = ["strategy=ddp", f"batch_size={4 * devices}", f"topology.devices_per_node={devices}", "topology.nodes=4"]
    service, job = printed(capsys, "kubernetes", *PODS, *more, *workers)
    for version in (OLDEST, NEWEST):
        for manifest in (service, job):
            kubernetes_validate.validate(manifest, version, strict=True)
    assert job["metadata"] == service["metadata"] == {"name": "run", "namespace": "team"}
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    codes = {each["action"]: each["onExitCodes"]["values"] for each in spec["podFailurePolicy"]["rules"][1:]}
    assert codes == ({"FailJob": [2, 3], "Ignore": [75]} if devices == 1 else {})
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": devices}}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert "KEY" in {variable["name"] for variable in container["env"]}
    words = [*container["command"], *container["args"]]
    assert words[words.index("leyden") + 1 :] == [
        "topology.launcher=external", "topology=kubernetes", "hydra.run.dir=/shared/run", *workers,
        "topology.on_existing=resume", "topology.kubernetes.image=null",
    ]  # fmt: skip


def test_a_train_job_is_one_by_kubeflows_models(capsys: pytest.CaptureFixture[str]) -> None:
    workers = ["strategy=ddp", "batch_size=64", "topology.nodes=2", "topology.kubernetes.runtimeRef=mine"]
    (job,) = printed(capsys, "kubeflow", *PODS, *workers, "topology.kubernetes.env=[{name:A,value:b}]")
    model = TrainerV1alpha1TrainJob.from_dict(job)
    assert model is not None
    assert model.to_dict() == job, "no field that the models do not know"
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 8}}
    assert job["spec"]["runtimeRef"] == {"name": "mine"}


def test_pods_with_a_secret_need_no_volume(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*PODS[:3], "strategy=ddp", "batch_size=64"]
    assert main(["manifest", "kubernetes", *words]) == 2
    assert "is on none of the volumes" in capsys.readouterr().err
    given = "topology.kubernetes.env=[{name:LEYDEN_SECRET,valueFrom:{secretKeyRef:{name:run,key:secret}}}]"
    assert len(printed(capsys, "kubernetes", *words, given)) == 2


def test_kubernetes_expands_nothing_in_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    _, job = printed(capsys, "kubernetes", *PODS, "strategy=ddp", "batch_size=64", "tags=['$(HOME)']")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "tags=['$$(HOME)']" in container["args"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [("/shared/2026-11-24/R50 a_b", "r50-a-b"), ("/shared/12-30-05", "leyden-12-30-05"), ("/a/" + "x" * 80, "x" * 52),
     ("/a/---", "leyden")],
)  # fmt: skip
def test_the_name_of_a_job_is_one_of_a_host(folder: str, name: str) -> None:
    assert name_of(PurePosixPath(folder)) == name


MISTAKES = {
    "": ["must be one of kubernetes, kubeflow", "needs: leyden manifest kubernetes"],
    "slurm topology=kubernetes": ["manifest = slurm", "must be one of kubernetes, kubeflow"],
    "kubernetes topology=kubernetes": ["topology.kubernetes.image", "must be named"],
    "kubernetes strategy=ddp": ["topology.kubernetes.image", "must be named"],
    "kubernetes PODS topology.launcher=slurm": ["topology.launcher = slurm", "leave it out"],
    "kubernetes PODS topology.device.kind=auto": ["topology.device.kind = auto", "must be one of cpu, cuda"],
    "kubernetes PODS hydra.run.dir=run": ["hydra.run.dir = run", "absolute path", "try: hydra.run.dir=/shared/run"],
    "kubernetes PODS hydra.run.dir=/shared/${now:%H}": ["the same for each of them and after a restart"],
    "kubernetes PODS hydra.run.dir=/sharedX/run": ["hydra.run.dir = /sharedX/run", "none of the volumes", "/shared"],
    "kubernetes PODS strategy=asgd strategy.execution.simulate=true": [
        "topology.launcher = external",
        "simulated workers",
    ],
    "kubernetes PODS topology.kubernetes.name=A_B": ["topology.kubernetes.name = A_B"],
    "kubernetes PODS topology.kubernetes.backoffLimit=-1": ["topology.kubernetes.backoffLimit = -1"],
    "kubernetes PODS topology.kubernetes.imagePullSecret=[]": ["did you mean topology.kubernetes.imagePullSecrets"],
    "kubernetes PODS model=lenet6": ["lenet5"],
    "kubernetes PODS seed=1,2": ["seed"],
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_said_and_nothing_is_printed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = command.split()
    if "PODS" in words:
        own = {word.partition("=")[0] for word in words}
        place = words.index("PODS")
        words[place : place + 1] = [word for word in PODS if word.partition("=")[0] not in own]
        words.append("topology.devices_per_node=1")
    assert main(["manifest", *words]) == 2
    output = capsys.readouterr()
    for part in MISTAKES[command]:
        assert part in " ".join(output.err.split())
    assert not output.out
    assert not list(tmp_path.iterdir())


# --- what the pods execute


@pytest.fixture
def starters(tmp_path: Path) -> Iterator[Starters]:
    started = Starters(tmp_path)
    yield started
    started.end()


TRAINED = [*TINY, "dataset=digits", "strategy=ddp", "trainer.enable_progress_bar=false"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training by Leyden's own agent."""
    here = tmp_path_factory.mktemp("alone")
    starters, folder = Starters(here), here / "run"
    local = [*LEYDEN, *TRAINED, "topology=cpu", "topology.devices_per_node=2", f"hydra.run.dir={folder}"]
    assert starters.start(local).wait(180) == 0, starters.log()
    return folder


def by_this_interpreter(words: Sequence[str]) -> list[str]:
    if words[0] == "leyden":
        return [*LEYDEN, *words[1:]]
    assert words[:3] == ["torchrun", "--no-python", "leyden"]
    return [sys.executable, "-m", "torch.distributed.run", "-m", "leyden", *words[3:]]


def variables(kind: str, manifest: dict[str, Any], node: int, first: str) -> dict[str, str]:
    """What the engine sets in the container of a node."""
    if kind == "kubeflow":
        trainer = manifest["spec"]["trainer"]
        return {"PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                "PET_NODE_RANK": str(node), "PET_MASTER_ADDR": first, "PET_MASTER_PORT": "29400"}  # fmt: skip
    name = manifest["metadata"]["name"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    known = {each["name"]: each.get("value", str(node)) for each in container["env"]}
    assert known["MASTER_ADDR"] == f"{name}-0.{name}"
    return {**known, "MASTER_ADDR": first}


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="needs root, ip and tc")
@pytest.mark.parametrize(
    ("kind", "attempts"),
    [
        ("kubernetes", 1),
        pytest.param("kubernetes", 2, marks=pytest.mark.campaign),
        pytest.param("kubeflow", 1, marks=pytest.mark.campaign),
    ],
)
def test_pods_on_two_hosts_are_one_run(
    kind: str, attempts: int, alone: Path, starters: Starters, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started again, as a job is whose pod has failed, Kubernetes' find that nothing is left to train."""
    folder = starters.here / "run"
    mounted = f"topology.kubernetes.volumeMounts=[{{name:shared,mountPath:{starters.here}}}]"
    two = ["topology.nodes=2", "topology.devices_per_node=1", "topology.device.kind=cpu"]
    manifest = printed(capsys, kind, *PODS[:2], PODS[3], mounted, *TRAINED, *two, f"hydra.run.dir={folder}")[-1]
    spec = manifest["spec"]
    container = spec["trainer"] if kind == "kubeflow" else spec["template"]["spec"]["containers"][0]
    command = by_this_interpreter([*container["command"], *container["args"]])
    with TwoHosts() as hosts:
        for attempt in range(attempts):
            started = [
                starters.start(
                    ["ip", "netns", "exec", name, *command],
                    variables(kind, manifest, node, hosts.addresses[0]),
                    f"{attempt}-{node}",
                )
                for node, name in enumerate(hosts.names)
            ]
            codes = [process.wait(180) for process in started]
            assert codes == [0, 0], starters.log(f"{attempt}-0") + starters.log(f"{attempt}-1")
    assert attempts == 1 or "nothing is left to train" in starters.log("1-0")
    ours, theirs = weights(folder), weights(alone)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
