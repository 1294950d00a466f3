"""Every command that the README and docs/ show works as it stands there, cut short."""

import json
import re
import runpy
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from urllib.request import urlopen

import figures
import pytest
from folders import ROOT, SHARED_DATA
from markdown_pages import BLOCKS, PAGES, Block, Command
from PIL import Image
from pool import Pool
from runs import PATIENCE_S, Freeze

from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer

CIFAR = SHARED_DATA / "cifar10.zip"
SHORT = [
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
]
"""Appended to what trains, as is what smaller() gives."""

RECIPES = "docs/contributing.md"
"""Its sections run from top to bottom, each in a folder of its own."""
STRATEGIES = "docs/strategies.md"
"""What needs nothing but workers trains in warm ones: starting them is tested elsewhere."""
STARTED_BY_OTHERS = "docs/external.md"
ONCE = {str(command): command for block in BLOCKS if block.page != RECIPES for command in block.commands}
"""A command that several pages show is run once."""
LEYDEN = [command for command in ONCE.values() if command.program == "leyden"]
USING = "docs/using-runs.md"
"""Its sections, but the first two, run from top to bottom with the files that they show."""
OTHERS = {str(c): c for block in BLOCKS for c in block.commands if c.program != "leyden" and c.page != USING}.values()


def verb(command: Command) -> str:
    verbs = {
        "eval",
        "resume",
        "schema",
        "status",
        "stop",
        "node",
        "topology",
        "doctor",
        "bench",
        "manifest",
        "inspect",
        "predict",
        "compare",
        "export",
        "find",
        "plan",
        "completion",
        "prepare",
        "help",
        "view",
    }
    return next((word for word in command.arguments if word in verbs), "train")


def config_dir(arguments: list[str]) -> str | None:
    return arguments[arguments.index("--config-dir") + 1] if "--config-dir" in arguments else None


def overrides(command: Command) -> list[str]:
    return [word for word in command.arguments if "=" in word]


def for_other_machines(command: Command) -> bool:
    return bool({"topology=slurm", "topology=mine"} & set(command.arguments))


def of_a_system(command: Command) -> bool:
    return command.page.startswith("docs/systems/")


def by_optuna(command: Command) -> bool:
    return "hydra/sweeper=optuna" in command.arguments


def needs_workers_alone(command: Command) -> bool:
    text = str(command)
    return (
        command.page == STRATEGIES and "strategy=" in text and not re.search("form=server|strategy=asgd|simulate", text)
    )


def of_several_hosts(block: Block) -> bool:
    return any(verb(command) == "node" for command in block.commands if command.program == "leyden")


HOSTS = [block for block in BLOCKS if of_several_hosts(block)]
IN_HOSTS = {str(command) for block in HOSTS for command in block.commands}
VALIDATED = [c for c in LEYDEN if for_other_machines(c) or by_optuna(c) or of_a_system(c) or verb(c) == "doctor"]
"""Slurm's jobs, described machines, the doctor, Optuna's sweeps and the systems' recipes run in tests of their own."""
IN_POOLS = [c for c in LEYDEN if needs_workers_alone(c)]
SCRIPTS = sorted({block.section for block in BLOCKS if block.page == USING and block.file})
SERVING = [c for c in LEYDEN if verb(c) == "view"]
"""They do not end by themselves."""
STARTED = [
    c for c in LEYDEN
    if c not in (*VALIDATED, *IN_POOLS, *SERVING) and str(c) not in IN_HOSTS
    and not (c.page == USING and c.section in SCRIPTS)
]  # fmt: skip


def started(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "leyden", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


def smaller(arguments: list[str]) -> list[str]:
    """Of what trains: small batches of networks with convolutions, and photographs of another size than ImageNet's."""
    chosen = "model=mlp" in arguments or any(word.startswith("batch_size=") for word in arguments)
    photographs = {"dataset.root=PHOTOS", "dataset.root=SHARDS"} & set(arguments)
    return [*([] if chosen else ["batch_size=8"]), *(["dataset.image_size=64"] if photographs else [])]


def write_files(folder: Path, blocks: list[Block]) -> None:
    """The files that pages show, at the paths that they name."""
    for block in blocks:
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages show, and MYCONF/topology/mine.yaml."""
    folder = tmp_path_factory.mktemp("readme")
    write_files(folder, [block for block in BLOCKS if block.page != RECIPES])
    (folder / "MYCONF" / "topology").mkdir(exist_ok=True)
    (folder / "MYCONF" / "topology" / "mine.yaml").write_text(started(["topology"], folder).stdout)
    return folder


@pytest.fixture(scope="module")
def place(shown: Path) -> Path:
    """What else the commands speak of: RUN, SWEEP, PHOTOS, PHOTOS_RUN, TAGGED, IMAGENET_PHOTOS, SHARDS, cifar10.zip."""
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        for shade, name in enumerate(("cat", "dog")):
            (shown / "PHOTOS" / split / name).mkdir(parents=True)
            for number in range(count):
                color = (100 * shade, 20 * number, 50)
                Image.new("RGB", (40, 30), color).save(shown / "PHOTOS" / split / name / f"{number}.jpg")
    shutil.copytree(shown / "PHOTOS", shown / "TAGGED")
    for name, number in (("cat", "n02123045"), ("dog", "n02099601")):
        shutil.copytree(shown / "PHOTOS" / "val" / name, shown / "IMAGENET_PHOTOS" / number)
    tagged = [path.relative_to(shown / "TAGGED") for path in (shown / "TAGGED").rglob("*.jpg")]
    (shown / "TAGGED.csv").write_text("image,labels\n" + "".join(f"{path},{path.parts[1]};pet\n" for path in tagged))
    if CIFAR.exists():
        few_pictures(CIFAR, shown / CIFAR.name)
    photos = ["dataset=image_folder", "dataset.root=PHOTOS"]
    with chdir(shown):
        assert main(["hydra.run.dir=RUN", "model=mlp", *SHORT]) == 0
        assert main(["-m", "optimizer.lr=0.1,0.01", "hydra.sweep.dir=SWEEP", "model=mlp", *SHORT]) == 0
        assert main([*photos, "model=mlp", "model.hidden=[4]", "hydra.run.dir=PHOTOS_RUN", *SHORT]) == 0
        assert main(["prepare", *photos, "out=SHARDS", "size=256"]) == 0
    return shown


def few_pictures(whole: Path, made: Path) -> None:
    """The first 12 of each class: test_datasets.py reads all 10,000 of its test split."""
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(made, "w") as few:
        for name in archive.namelist():
            if name.endswith(".jpg") and int(Path(name).stem) < 12:
                few.writestr(name, archive.read(name))


def interrupt(run_dir: Path) -> None:
    """Have a run look as if it could go on."""
    summary = json.loads((run_dir / "summary.json").read_text())
    (run_dir / "summary.json").write_text(json.dumps({**summary, "status": "preempted"}))


def test_the_pages_have_commands() -> None:
    assert len(LEYDEN) >= 40
    assert len(IN_POOLS) >= 8
    assert len(STARTED) >= 25


@pytest.mark.slow
@pytest.mark.parametrize("command", STARTED, ids=str)
def test_command(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process. Of their own have those of several hosts, what serves pages and the mistakes that are shown."""
    monkeypatch.chdir(place)
    arguments = command.arguments
    if "dataset.root=PATH" in arguments and not CIFAR.exists():
        pytest.skip("no CIFAR-10 here")
    arguments = [argument.replace("PATH", CIFAR.name) for argument in arguments]
    if verb(command) == "resume":
        interrupt(place / "RUN")
        interrupt(place / "SWEEP" / "1")
    trains = verb(command) == "train" and not {"--cfg", "--info"} & set(arguments)
    code = main([*arguments, *([*SHORT, *smaller(arguments)] if trains else [])])
    output, errors = capfd.readouterr()
    if verb(command) == "stop":
        assert code == 2
        assert "this does not run" in errors
        return
    assert code == 0, output + errors
    assert "Warning" not in errors
    if command.output is not None:
        assert output
    if "-m" in arguments and trains:
        sweep = max(place.glob("outputs/*/*-sweep"), key=lambda folder: folder.stat().st_mtime)
        trials = 9 if "hydra/launcher=pipeline" in arguments else 4
        assert len(list(sweep.glob("[0-9]/config.yaml"))) == trials
    if "model=mine" in arguments:
        assert "model=mine" in output


@pytest.mark.slow
@pytest.mark.parametrize("command", SERVING, ids=str)
def test_command_that_serves_pages(command: Command, place: Path) -> None:
    words = [sys.executable, "-m", "leyden", *command.arguments]
    with subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            shown = (re.search(r"http://localhost:\d+/", line) for line in process.stderr)
            address = next(found[0] for found in shown if found)
            with urlopen(address, timeout=PATIENCE_S) as page:
                assert "TensorBoard" in page.read().decode()
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("command", IN_POOLS, ids=str)
def test_strategy(command: Command, freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    run = Composer().run(overrides(command))
    assert verb(command) == "train"
    pools(run.config.topology.workers).run(freeze("run", *overrides(command), *SHORT))


@pytest.mark.thinned(4, 1)
@pytest.mark.parametrize("command", VALIDATED, ids=str)
def test_command_for_other_machines(command: Command, shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shown)
    composer = Composer(config_dir(command.arguments))
    chosen = [word for word in overrides(command) if "interval(" not in word]
    first_trial = [word if "[" in word else word.split(",")[0] for word in chosen]
    if verb(command) == "doctor" or "hydra/launcher=pipeline" in first_trial:
        assert composer.compose_with_hydra(first_trial)  # neither is a run, whose rules would apply
    else:
        composer.run(first_trial)


@pytest.mark.slow
@pytest.mark.parametrize("block", HOSTS, ids=lambda block: block.page)
def test_commands_for_several_hosts(block: Block, tmp_path: Path) -> None:
    """One host of two: it comes to the rendezvous, and waits in vain for the other."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for command in block.commands:
        arguments = [word.replace("HOST:29400", f"127.0.0.1:{port}") for word in command.arguments]
        done = started([*arguments, *(["--wait", "1"] if verb(command) == "node" else [])], tmp_path)
        if verb(command) == "node":
            assert done.returncode == 1
            assert "1 of 2 nodes" in done.stdout + done.stderr
        else:
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("section", sorted({b.section for b in BLOCKS if b.page == RECIPES and b.file}))
def test_recipe(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and commands of a section of the page, as they stand there."""
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in BLOCKS if block.page == RECIPES and block.section == section]
    write_files(tmp_path, blocks)
    commands = [command for block in blocks for command in block.commands]
    assert {command.program for command in commands} == {"leyden", "pytest"}
    for command in commands:
        if command.program == "leyden":
            assert main(command.arguments) == 0, command
            continue
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *command.arguments]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("section", SCRIPTS)
def test_script(section: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands of a section that shows scripts, in the order of the page."""
    monkeypatch.chdir(place)
    for command in (c for block in BLOCKS if (block.page, block.section) == (USING, section) for c in block.commands):
        if command.program == "leyden":
            assert main(command.arguments) == 0, command
        elif "leyden" in (place / command.arguments[0]).read_text().split():
            monkeypatch.setattr(sys, "argv", command.arguments)
            runpy.run_path(command.arguments[0], run_name="__main__")
        else:  # what goes without Leyden does so in a process that has none of it
            done = subprocess.run([sys.executable, *command.arguments], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            print(done.stdout)
        assert capfd.readouterr().out.strip(), command


@pytest.mark.parametrize("command", OTHERS, ids=str)
def test_command_of_another_program(command: Command) -> None:
    """What takes minutes, root or the network is not run here: what it names is there."""
    named = [word for word in command.arguments if word.endswith((".py", ".txt"))]
    if command.page != RECIPES or command.section == "What ships with Leyden":
        assert all((ROOT / word).is_file() for word in named)
    match command.program:
        case "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(re.findall(r"\[(\w+)\]", str(command))) <= set(extras)
        case "pytest" | "python":
            assert named or not command.arguments
        case "mkdocs":
            assert (ROOT / "mkdocs.yml").is_file()
        case "torchrun" | "mpirun":
            assert command.page == STARTED_BY_OTHERS  # run by test_external.py
        case "source":
            assert str(command).endswith(("./leyden.bash", "./leyden.zsh"))  # run by test_completion.py
        case other:
            pytest.fail(f"nothing is known of {other}")


def test_commands_of_the_figures_name_what_is_there() -> None:
    for subject in figures.subjects():
        for measurement in figures.read(subject)["measurements"]:
            for row in measurement["rows"]:
                command = row.get("command", measurement["command"])
                if command.startswith("leyden "):
                    continue
                file = re.search(r"\S+\.py", command)
                assert file, command
                source = (ROOT / file[0]).read_text()
                chosen = re.search(r"-k (\w+)", command)
                assert chosen is None or re.search(rf"def test_\w*{chosen[1]}", source), command
                variable = re.match(r"(LEYDEN_\w+)=", command)
                assert variable is None or variable[1] in source, command


def test_the_pages_have_the_figures_that_were_measured() -> None:
    outdated = [path.name for path, text in figures.pages().items() if path.read_text() != text]
    assert not outdated, "python benchmarks/figures.py"
    headings = [line for line in figures.page().splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings))


def test_every_figure_says_where_it_comes_from() -> None:
    listed = {path.stem for path in figures.RESULTS.glob("*.json") if path != figures.CAMPAIGN}
    assert sorted(listed) == sorted(figures.subjects())
    for subject in figures.subjects():
        for measurement in figures.read(subject)["measurements"]:
            for row in measurement["rows"]:
                origin = [row.get(name, measurement[name]) for name in figures.ORIGIN]
                assert all(origin), row
                assert re.fullmatch(r"\d{4}-\d\d-\d\d", origin[1])
                assert re.fullmatch(r"[0-9a-f]{7,}", origin[2])


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "console"], ids=lambda block: block.page)
def test_the_mistake_that_it_shows(block: Block, tmp_path: Path) -> None:
    command, *shown = block.text.splitlines()
    assert command.startswith("$ leyden ")
    done = started(command.split()[2:], tmp_path)
    assert done.returncode == 2
    assert done.stderr.split() == " ".join(shown).split()


def test_every_yaml_key_that_they_name_exists() -> None:
    from leyden.trainer.compose.validation import schema_keys

    named = {key for page in PAGES for key in re.findall(r"`(trainer\.\w+)=", page.read_text())}
    assert named
    assert named <= set(schema_keys())


def rooms() -> list[str]:
    """The folders of trainer/ in the order in which the page on the architecture lists them."""
    table = (ROOT / "docs" / "architecture.md").read_text().split("## The rooms")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_files_that_they_name_are_there() -> None:
    pattern = re.compile(r"(?<![\w./])((?:trainer|tests|benchmarks)/[\w/]+\.py)")
    short = re.compile(rf"(?<![\w./])((?:{'|'.join(rooms())})/[\w/]+\.py)")
    texts = [page.read_text() for page in PAGES]
    named = {path for text in texts for path in pattern.findall(text)}
    named |= {f"trainer/{path}" for text in texts for path in short.findall(text)}
    assert len(named) > 20
    assert not [path for path in sorted(named) if not (ROOT / path).is_file()]


def test_the_rooms_are_those_of_the_tree() -> None:
    found = {path.name for path in (ROOT / "trainer").iterdir() if (path / "__init__.py").exists()}
    assert set(rooms()) == found


def test_the_readme_is_a_landing_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
    images = [path for path in (ROOT / "docs" / "images").iterdir() if path.suffix in (".png", ".svg")]
    shown = [path for path in images if path.name in (ROOT / "README.md").read_text()]
    assert sum(path.stat().st_size for path in shown) < 100_000
    assert sum(path.stat().st_size for path in images) < 500_000


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_documentation_builds(tmp_path: Path) -> None:
    pytest.importorskip("material")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "architecture" / "index.html").exists()
