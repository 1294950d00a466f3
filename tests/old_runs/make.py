"""Generator of run folders of an older release, each stopped in the middle of an epoch, for tests/test_old_runs.py.

The archive was made with commit f55d825, and only that commit's code can make it again:

    git worktree add ../f55d825 f55d825
    python -m venv ../old && ../old/bin/pip install -c constraints.txt -e ../f55d825
    ../old/bin/python tests/old_runs/make.py run /tmp/old_runs [NAME ...]
    ../old/bin/python tests/old_runs/make.py pack /tmp/old_runs

`run` makes the runs in FOLDER/runs, evaluates and resumes copies of them in FOLDER/ended, and writes the figures into
FOLDER/figures. `pack` writes f55d825.tar.xz and expected.json next to this file, with placeholders in place of the
machine's paths and host name.
"""

import io
import json
import lzma
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  # made at import
from tensorboard.summary.writer.record_writer import RecordWriter

HERE = Path(__file__).parent
TEXT = {".csv", ".json", ".log", ".sh", ".txt", ".yaml"}
COMMIT = "f55d825"

SMALL = [
    "dataset.image_size=8", "trainer.max_epochs=2", "trainer.log_every_n_steps=3", "trainer.enable_progress_bar=false",
    "callbacks.checkpoint.keep_last=1", "optimizer.lr=0.1",
]  # fmt: skip
"""18 steps an epoch."""
MLP = [*SMALL, "topology=cpu", "model=mlp", "model.hidden=[8]"]
TWO = [*MLP, "topology.devices_per_node=2"]
STOP = 25
"""Step after which a run gets SIGTERM; several workers agree on one to three steps later."""

RUNS: dict[str, list[str]] = {
    "single": [*MLP, "model.dropout=0.2"],
    "monitors": [
        *MLP, "trainer.max_epochs=4", "callbacks=[default,ema,early_stopping]", "callbacks.ema.decay=0.9",
        "callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min",
        "callbacks.early_stopping.monitor=val/acc", "callbacks.early_stopping.mode=max",
        "callbacks.early_stopping.patience=1", "callbacks.early_stopping.min_delta=0.5", "~schedule",
        "+schedule._target_=torch.optim.lr_scheduler.ReduceLROnPlateau", "+schedule._partial_=true",
        "schedule.interval=epoch", "schedule.monitor=val/loss",
    ],
    "reconstruction": [
        *SMALL, "topology=cpu", "task=reconstruction", "model=cots_autoencoder", "model.maps=2", "model.stages=2",
        "model.rf=3", "model.pool=2", "model.lcn=3", "callbacks.checkpoint.monitor=null", "optimizer.lr=0.001",
    ],
    "ddp": [*TWO, "strategy=ddp", "trainer.accumulate_grad_batches=2"],
    "ddp_powersgd": [*TWO, "strategy=ddp", "strategy.compression=powersgd", "strategy.powersgd_start_step=4"],
    "butterfly_eager": [*TWO, "strategy=butterfly", "strategy.lazy=false"],
    "butterfly_lazy": [*TWO, "strategy=butterfly"],
    "hybrid": [*TWO, "strategy=hybrid"],
    "spatial": [
        *SMALL, "topology=cpu", "topology.devices_per_node=2", "strategy=spatial", "model=local_net", "model.maps=[2]",
        "model.rf=3", "model.lcn=3",
    ],
    "fsdp": [*TWO, "strategy=fsdp", "strategy.min_parameters=100"],
    "asgd": [*TWO, "strategy=asgd", "strategy.record=true"],
    "asgd_simulated": [*TWO, "strategy=asgd", "strategy.simulate=true", "strategy.delay=exponential"],
    "easgd": [*TWO, "strategy=easgd", "strategy.tau=4", "strategy.validate_workers=true"],
    "easgd_server": [*TWO, "strategy=easgd", "strategy.tau=4", "strategy.form=server"],
    "easgd_simulated": [
        *TWO, "strategy=easgd", "strategy.tau=4", "strategy.form=server", "strategy.simulate=true",
        "trainer.max_epochs=4", "callbacks=[default,early_stopping]", "callbacks.checkpoint.monitor=ahead/distance",
        "callbacks.checkpoint.mode=min", "callbacks.early_stopping.monitor=ahead/simulated_seconds",
        "callbacks.early_stopping.mode=max", "callbacks.early_stopping.patience=2",
        "callbacks.early_stopping.min_delta=1000",
    ],
    "local_sgd": [
        *TWO, "strategy=local_sgd", "strategy.h=4", "strategy.h_rule=adacomm", "strategy.adapt_every=8",
        "strategy.validate_workers=true",
    ],
    "changed": [*MLP, "trainer.max_epochs=1"],
    "slurm": [*SMALL, "topology=slurm", "topology.device.kind=cpu", "model=mlp", "model.hidden=[8]"],
}  # fmt: skip
CHANGES = [
    "trainer.max_epochs=2", "topology=cpu", "topology.devices_per_node=2", "strategy=local_sgd", "strategy.h=3",
    "strategy.simulate=true",
]  # fmt: skip
"""Overrides of the first resumption of the run `changed`, under another strategy, which is then stopped."""
SWEEPS: dict[str, tuple[list[str], str]] = {
    "sweep": ([*MLP, "optimizer.lr=0.02,0.01"], "1"),
    "pipeline": (
        [*TWO, "hydra/launcher=pipeline", "hydra.launcher.scheduler=ring", "optimizer.lr=0.02,0.01,0.005"],
        "0",
    ),
}
"""Overrides, and the trial whose steps are counted."""

QUEUED = '''
"""`leyden topology=slurm ...` without sbatch: freeze the run, write its script, and train on this machine."""
import os, sys
from leyden.trainer.compose import Composer
from leyden.trainer.launch import start_here
from leyden.trainer.launch.attempt import Job
from leyden.trainer.launch.slurm.queue import note, written_script
from leyden.trainer.run_folder import freeze

os.environ.pop("PYTHONPATH", None)
overrides, composer = sys.argv[1:], Composer()
run = composer.run(overrides)
folder = composer.claim(run, overrides).folder
freeze(folder, composer.frozen_in(run, folder))
composer.write_dot_hydra(run, folder)
job = Job(run.config, folder, "train", None)
with written_script(job, folder.name):
    note(job, "4711")
sys.exit(start_here(run.config, folder, "train", None))
'''


def main(arguments: Sequence[str]) -> None:
    """run FOLDER [NAME ...] | pack FOLDER."""
    verb, folder, *names = arguments
    maker = Maker(Path(folder).absolute())
    if verb == "pack":
        maker.pack()
        return
    for name in names or [*RUNS, *SWEEPS]:
        maker.make(name)


class Maker:
    """Makes runs below a folder, and packs them.

    Args:
        folder: for everything that is made.
    """

    def __init__(self, folder: Path) -> None:
        self.runs, self.ended, self.figures = (folder / name for name in ("runs", "ended", "figures"))
        self.mark = folder / "asked"
        for path in (self.runs, self.ended, self.figures):
            path.mkdir(parents=True, exist_ok=True)

    def make(self, name: str) -> None:
        """Make one run or sweep, stopped half-way, and the figures that the old code gives for it."""
        for path in (self.runs / name, self.ended / name):
            shutil.rmtree(path, ignore_errors=True)
        self._train(name)
        trials = sorted(file.parent for file in (self.runs / name).rglob("summary.json"))
        found = {str(trial.relative_to(self.runs)): {"stopped": _summary(trial)} for trial in trials}
        shutil.copytree(self.runs / name, self.ended / name)
        for run, figures in found.items():
            if name != "slurm" and (self.ended / run / "checkpoints").is_dir():
                figures["eval"] = _printed(self._leyden(0, "eval", run, cwd=self.ended))
        if name == "slurm":
            agent = ["-m", "leyden.trainer.launch.slurm.agent", str(self.ended / name), "resume", ""]
            self._call(0, [sys.executable, *agent], self.ended)
        else:
            self._leyden(0, "resume", name, cwd=self.ended)
        for run, figures in found.items():
            figures["resumed"] = _summary(self.ended / run)
        (self.figures / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")

    def _train(self, name: str) -> None:
        stop = (name, "", STOP)
        if name in SWEEPS:
            overrides, counted = SWEEPS[name]
            self._leyden(75, "-m", *overrides, f"hydra.sweep.dir={name}", stop=(name, counted, STOP))
        elif name == "slurm":
            command = [sys.executable, "-c", QUEUED, *RUNS[name], f"hydra.run.dir={name}"]
            self._call(75, command, self.runs, stop)
        elif name == "changed":
            self._leyden(0, *RUNS[name], f"hydra.run.dir={name}")
            self._leyden(75, "resume", name, *CHANGES, stop=stop)
        else:
            self._leyden(75, *RUNS[name], f"hydra.run.dir={name}", stop=stop)

    def _leyden(self, code: int, *words: str, stop: tuple[str, str, int] | None = None, cwd: Path | None = None) -> str:
        return self._call(code, [str(Path(sys.executable).with_name("leyden")), *words], cwd or self.runs, stop)

    def _call(self, code: int, command: Sequence[str], cwd: Path, stop: tuple[str, str, int] | None = None) -> str:
        """Run a command of the old code. Returns its output.

        Args:
            stop: folder of the run or sweep to stop, name of the run whose steps are counted, step.

        Raises:
            RuntimeError: the exit code is another.
        """
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if stop is not None:
            self.mark.unlink(missing_ok=True)
            values = (self.runs / stop[0], *stop[1:], self.mark)
            named = zip(("STOP_FOLDER", "STOP_NAME", "STOP_STEP", "STOP_MARK"), map(str, values), strict=True)
            environment |= {"PYTHONPATH": str(HERE / "hook"), **dict(named)}
        done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, check=False)
        if done.returncode != code:
            raise RuntimeError(f"{command} gave {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def pack(self) -> None:
        """Write the archive of all runs and the expected figures next to this file."""
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            seen: dict[int, str] = {}
            for path in sorted(self.runs.rglob("*")):
                if path.is_file():
                    self._add(archive, path, seen)
        (HERE / f"{COMMIT}.tar.xz").write_bytes(lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME))
        figures: dict[str, Any] = {}
        for file in sorted(self.figures.glob("*.json")):
            figures |= json.loads(file.read_text())
        (HERE / "expected.json").write_text(json.dumps(figures, indent=1) + "\n")

    def _add(self, archive: tarfile.TarFile, path: Path, seen: dict[int, str]) -> None:
        """Put a file into the archive.

        Args:
            seen: names in the archive, by inode: last.ckpt is another name of a checkpoint.
        """
        entry = tarfile.TarInfo(str(path.relative_to(self.runs)).replace(f".{socket.gethostname()}.", ".host."))
        entry.mtime = int(path.stat().st_mtime)
        first = seen.setdefault(path.stat().st_ino, entry.name)
        if first != entry.name:
            entry.type, entry.linkname = tarfile.LNKTYPE, first
            archive.addfile(entry)
            return
        content = self._of_no_machine(path.read_bytes()) if path.suffix in TEXT else path.read_bytes()
        if ".tfevents." in path.name:
            content = self._events(path)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))

    def _of_no_machine(self, text: bytes) -> bytes:
        text = text.replace(str(self.runs).encode(), b"@RUNS@").replace(sys.executable.encode(), b"@PYTHON@")
        return re.sub(rf"\b{re.escape(socket.gethostname())}\b".encode(), b"host", text)

    def _events(self, path: Path) -> bytes:
        """An event file with the same replacements in its text summaries, which hold the config."""
        content = io.BytesIO()
        records = RecordWriter(content)
        for record in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(record)
            for value in event.summary.value:
                strings = value.tensor.string_val
                strings[:] = [self._of_no_machine(text) for text in strings]
            records.write(event.SerializeToString())
        return content.getvalue()


def _summary(run: Path) -> dict[str, Any]:
    """The entries of summary.json that do not depend on timing."""
    content = json.loads((run / "summary.json").read_text())
    of_learning = ("val/", "test/", "train/", "ahead/")
    found = {key: content.get(key) for key in ("status", "steps", "epochs", "stop_reason")}
    metrics = content.get("metrics", {})
    return {**found, "metrics": {name: value for name, value in metrics.items() if name.startswith(of_learning)}}


def _printed(output: str) -> dict[str, float]:
    """Metrics in the output of `leyden eval`."""
    return {name: float(value) for name, value in re.findall(r"^((?:val|test)/\S+) +(\S+)$", output, re.MULTILINE)}


if __name__ == "__main__":
    main(sys.argv[1:])
