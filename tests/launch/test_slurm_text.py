"""Text of a config that reaches a batch script: executed nowhere, changed nowhere, or refused."""

import json
import subprocess
from pathlib import Path

import pytest
from hostile_text import CANARY, CONTROL, TEXTS
from machines import topology_config
from runs import TINY, wait_until
from slurm_cluster import NEEDS_SLURM, SlurmCluster

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.text import control_character
from leyden.trainer.cli.main import main
from leyden.trainer.config.job import JobSpec
from leyden.trainer.launch.slurm.batch_script import array_script, job_script, log_path, options

SLURM = "topology.slurm"


@pytest.mark.parametrize("character", CONTROL, ids=ascii)
def test_a_control_character_is_found(character: str) -> None:
    assert control_character(f"a{character}b") == ascii(character[0])[1:-1]
    config = topology_config("topology=slurm")
    for job, name, environment in (
        (JobSpec(config, Path(f"/runs/a{character}touch x"), "resume", None), "name", {}),
        (JobSpec(config, Path("/runs/a"), "resume", Path(f"/runs/{character}")), "name", {}),
        (JobSpec(config, Path("/runs/a"), "resume", None), f"a{character}b", {}),
        (JobSpec(config, Path("/runs/a"), "resume", None), "name", {"PYTHONPATH": f"/a:{character}"}),
    ):
        with pytest.raises(ConfigError, match="a batch script cannot hold control characters"):
            job_script(job, name, "/venv/bin/python", environment)
    with pytest.raises(ConfigError, match="a batch script cannot hold control characters"):
        array_script("sweep", Path("/s/slurm"), {0: Path(f"/s/{character}.sh")}, ())


@pytest.mark.parametrize("text", ["a b", "é✓ 日本", "$(x)`'\""])
def test_other_text_is_taken(text: str) -> None:
    assert control_character(text) is None


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("override", "key"),
    [
        *((f'{SLURM}.{key}="gpu\\ntouch canary"', key) for key in ("partition", "account", "qos", "constraint")),
        *((f'{SLURM}.{key}="gpu\\rtouch canary"', key) for key in ("gres", "exclude")),
        (f'{SLURM}.setup=["module load x\\ntouch canary"]', "setup"),
        (f'{SLURM}.sbatch=["--comment=a\\u2028touch canary"]', "sbatch"),
        (f'{SLURM}.partition="gpu\\\\"', "partition"),
    ],
)
def test_a_config_with_control_characters_is_refused(
    override: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, _, text = override.partition("=")
    value = json.loads(text)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    nested = json.dumps({"topology": {"slurm": {key: value}}})
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{nested}\n")
    words = ["--config-dir", "conf", "topology=slurm", "topology.device.kind=cpu", "experiment=mine"]
    assert main([*words, *TINY]) == 2
    error = capsys.readouterr().err
    assert f"{name} = " in error
    assert "must be without" in error
    assert "there is a mistake" in error
    assert [path.name for path in tmp_path.iterdir()] == ["conf"]


@pytest.mark.parametrize("folder", ["a\nb", "a\\b"])
def test_a_folder_that_sbatch_would_misread_is_refused(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quoted = folder.replace("\\", "\\\\")
    assert main(["topology=slurm", "topology.device.kind=cpu", *TINY, f"hydra.run.dir='{quoted}'"]) == 2
    assert "hydra.run.dir = " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A stand-in for the interpreter: each call prints its arguments and PYTHONPATH as a line of JSON."""
    path = tmp_path / "recorder"
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['PYTHONPATH']]))"
    path.write_text(f'#!/bin/sh\nexec python3 -I -c {json.dumps(code)} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.slow
@NEEDS_SLURM
def test_no_text_is_executed_by_sbatch_or_the_job(slurm: SlurmCluster, recorder: Path, tmp_path: Path) -> None:
    """Each job runs: its log is where it should be, and its processes have the very arguments."""
    submitted: dict[str, tuple[JobSpec, str]] = {}
    work = tmp_path / "work"
    work.mkdir()
    config = topology_config("topology=slurm", "topology.device.kind=cpu")
    for number, text in enumerate(TEXTS):
        run_dir = tmp_path / str(number) / text
        (run_dir / "slurm").mkdir(parents=True)
        account = config.topology.slurm.model_copy(update={"account": text})
        topology = config.topology.model_copy(update={"slurm": account})
        job = JobSpec(config.model_copy(update={"topology": topology}), run_dir, "resume", None)
        script = run_dir / "slurm" / "job.sh"
        script.write_text(job_script(job, text, str(recorder), {"PYTHONPATH": text}))
        done = subprocess.run(
            ["sbatch", "--parsable", str(script)], capture_output=True, text=True, cwd=work, env=slurm.environment,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (text, done.stderr)
        submitted[text] = (job, done.stdout.strip())
    wait_until(lambda: not slurm.run("squeue", "--noheader").strip())
    jobs = {line.split()[0]: line for line in slurm.run("scontrol", "--oneliner", "show", "job").splitlines()}
    for text, (job, job_id) in submitted.items():
        assert " JobState=COMPLETED " in jobs[f"JobId={job_id}"], text
        lines = log_path(job).read_text().splitlines()
        agent, requeue = (json.loads(line) for line in lines if line.startswith("["))
        assert agent == [["-P", "-m", "leyden.trainer.entrypoints.slurm_agent", str(job.run_dir), "resume", ""], text]
        assert requeue == [
            ["-P", "-m", "leyden.trainer.entrypoints.slurm_requeue", str(job.run_dir), "resume", "0"],
            text,
        ]
        assert f" JobName={text} " in jobs[f"JobId={job_id}"]
    assert not list(work.iterdir())
    assert not list(tmp_path.rglob(CANARY))


@pytest.mark.slow
@NEEDS_SLURM
def test_no_text_of_an_option_is_executed(slurm: SlurmCluster, tmp_path: Path) -> None:
    """sbatch takes or rejects each option; the script's shell never sees one."""
    work = tmp_path / "work"
    work.mkdir()
    config = topology_config("topology=slurm", "topology.device.kind=cpu")
    for text in (
        "$(touch canary)",
        "`touch canary`",
        "all;touch canary",
        "'",
        "' ;touch canary;'",
        "--wrap=touch canary",
    ):
        for key in ("partition", "qos", "constraint", "gres", "exclude", "sbatch"):
            value = [f"--comment={text}"] if key == "sbatch" else text
            changed = config.topology.slurm.model_copy(update={key: value})
            topology = config.topology.model_copy(update={"slurm": changed})
            lines = [
                "#!/bin/bash",
                *(f"#SBATCH {one}" for one in options(config.model_copy(update={"topology": topology}))),
            ]
            (work / "job.sh").write_text("\n".join([*lines, "true"]) + "\n")
            subprocess.run(
                ["sbatch", "--output=/dev/null", "job.sh"], capture_output=True, cwd=work, env=slurm.environment,
                check=False,
            )  # fmt: skip
    wait_until(lambda: not slurm.run("squeue", "--noheader", "--states=RUNNING,COMPLETING").strip())
    slurm.run("scancel", "--user=root")
    assert [path.name for path in work.iterdir()] == ["job.sh"]
    assert not list(tmp_path.rglob(CANARY))
