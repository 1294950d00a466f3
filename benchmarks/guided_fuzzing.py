"""Fuzzing guided by coverage (atheris, libFuzzer): bytes at each door, changed towards code that none has reached yet.

    pip install -c constraints.txt -e '.[bench,test]'
    python benchmarks/guided_fuzzing.py --seconds 3600             # of each door
    python benchmarks/guided_fuzzing.py --seconds 600 yaml zip     # a part of it; a later run goes on with it

Writes benchmarks/results/guided_fuzzing.json. A door's corpus and its counts so far stay in CORPUS, so that a later run
goes on where this one has stopped and adds to it. What is found is printed with its traceback and its bytes.
"""

import argparse
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from measurement import ROOT, write_subject

atheris: Any = importlib.import_module("atheris")  # an extra
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("support", "modules", "campaign")]
PACKAGES = ["leyden", "yaml", "zipfile", "tarfile", "hydra"]
with atheris.instrument_imports(include=PACKAGES) if "--door" in sys.argv else nullcontext():
    import test_fuzzing as doors
    import yaml

    from leyden.datasets.files import open_files
    from leyden.datasets.limits import Limits
    from leyden.trainer.base import limited_yaml
    from leyden.trainer.base.errors import ConfigError
    from leyden.trainer.compose.composer import parse_overrides
    from leyden.trainer.core.checkpoints import checkpoint_io
    from leyden.trainer.core.communication import plain_values

RESULT = ROOT / "benchmarks" / "results" / "guided_fuzzing.json"
TITLE = "Fuzzing guided by coverage"
TEXT = (
    "Bytes at each door, changed by libFuzzer towards code that none has reached yet (atheris). Right: they are read, "
    "or refused by the documented error, within 10 s and 2 GB. Edges: of the bytecode of Leyden, Hydra's parser, yaml, "
    "zipfile and tarfile that some input has taken."
)
COLUMNS = {"runs": ["inputs", ",d"], "edges": ["edges", ",d"], "minutes": ["minutes", ".0f"], "result": ["", "s"]}
_RUNS, _EDGES = re.compile(r"^#(\d+)\s", re.MULTILINE), re.compile(r" cov: (\d+)")
Door = Callable[[bytes, Path], None]


def override(data: bytes, folder: Path) -> None:
    with suppress(ConfigError):
        parse_overrides([data.decode("utf-8", "surrogateescape")])


def yaml_text(data: bytes, folder: Path) -> None:
    text = data.decode("utf-8", "replace")
    for read in (limited_yaml.load, limited_yaml.compose):
        with suppress(yaml.YAMLError):
            read(text)


def checkpoint(data: bytes, folder: Path) -> None:
    path = folder / "step=00000001.ckpt"
    path.write_bytes(data)
    with suppress(checkpoint_io.DamagedCheckpoint):
        checkpoint_io.read(path)


def message(data: bytes, folder: Path) -> None:
    for codec in doors.CODECS.values():
        doors._received(codec, data[:4096] + b"\n")


def plain_value(data: bytes, folder: Path) -> None:
    with suppress(ValueError):
        plain_values.decode(data)


def _archive(kind: str) -> Door:
    def read(data: bytes, folder: Path) -> None:
        path = folder / f"set.{kind}"
        path.write_bytes(data)
        with suppress(OSError, ValueError):
            files = open_files(path, lambda found: found.endswith("jpg"), Limits(members=10_000, file_bytes=1 << 22))
            for index in range(len(files.names)):
                with suppress(OSError, ValueError):
                    files.read(index)

    return read


DOORS: dict[str, tuple[Door, Callable[[], list[bytes]]]] = {
    "override": (override, lambda: [b"model=mlp", b"a.b={c:[1,'x',${seed}]}", b"a=choice(1,range(2,3))", b"~a"]),
    "yaml": (
        yaml_text,
        lambda: [b"a: &x [1, *x]\n", b"- {b: !!int '1', <<: {c: 0x1f}}\n", b"%YAML 1.1\n---\n? |\n x\n"],
    ),
    "checkpoint": (checkpoint, lambda: [doors._checkpoint()]),
    "message": (message, lambda: [line for line in doors.LINES.values() if len(line) < 4096]),
    "plain value": (plain_value, lambda: [plain_values.encode([1.5, None, {"a": doors.torch.zeros(2, 2)}])]),
    "zip": (_archive("zip"), lambda: [doors._archive("zip")]),
    "tar": (_archive("tar"), lambda: [doors._archive("tar")]),
}
"""Readers, and the inputs that each begins with."""


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Fuzz one door in this process, which libFuzzer ends."""
    read, seeds = DOORS[name]
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(seeds()):
        (corpus / f"seed{index}").write_bytes(seed)
    # a pair of Unix sockets has no TCP options
    sockets: Any = socket
    sockets.TCP_NODELAY, sockets.IPPROTO_TCP = socket.SO_REUSEADDR, socket.SOL_SOCKET
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        flags = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=65536"]
        atheris.Setup([sys.argv[0], *flags, str(corpus)], lambda data: read(data, Path(folder)))
        atheris.Fuzz()


def measured(name: str, seconds: int, corpora: Path) -> dict[str, Any]:
    """One door, fuzzed in a process of its own."""
    command = [sys.executable, __file__, "--seconds", str(seconds), "--corpus", str(corpora / name), "--door", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        print(text)
    runs, edges = ([int(found) for found in pattern.findall(text)] or [0] for pattern in (_RUNS, _EDGES))
    counts = corpora / f"{name}.json"
    kept = json.loads(counts.read_text()) if counts.exists() else {"runs": 0, "edges": 0, "seconds": 0, "failed": 0}
    result = {
        "runs": kept["runs"] + max(runs), "edges": max(kept["edges"], *edges), "seconds": kept["seconds"] + seconds,
        "failed": kept["failed"] + bool(done.returncode),
    }  # fmt: skip
    counts.write_text(json.dumps(result))
    print(name, result, flush=True)
    return result


def rows(corpora: Path) -> list[dict[str, Any]]:
    """The doors that have been fuzzed, with the counts of all runs on this corpus."""
    kept = {name: corpora / f"{name}.json" for name in DOORS}
    counts = {name: json.loads(path.read_text()) for name, path in kept.items() if path.exists()}
    return [
        {"what": name, "runs": one["runs"], "edges": one["edges"], "minutes": one["seconds"] / 60,
         "result": f"{one['failed']} failed" if one["failed"] else "passed"}
        for name, one in counts.items()
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600, help="of each door")
    parser.add_argument("--corpus", type=Path, default=Path(tempfile.gettempdir()) / "leyden-fuzzing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="doors at a time")
    parser.add_argument("--door", choices=DOORS, help=argparse.SUPPRESS)
    parser.add_argument("doors", nargs="*", metavar="door", help=f"of {', '.join(DOORS)}; none: all")
    arguments = parser.parse_args()
    corpora = arguments.corpus.resolve()
    if arguments.door:
        fuzz(arguments.door, arguments.seconds, corpora)
    with ThreadPoolExecutor(arguments.jobs) as processes:
        one = partial(measured, seconds=arguments.seconds, corpora=corpora)
        done = list(processes.map(one, arguments.doors or DOORS))
    write_subject(RESULT, TITLE, TEXT, COLUMNS, "python benchmarks/guided_fuzzing.py --seconds 3600", rows(corpora))
    return any(one["failed"] for one in done)


if __name__ == "__main__":
    sys.exit(main())
