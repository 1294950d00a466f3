"""Flags and help: each verb has its own, and topics are explained by the comments of the YAML files."""

import subprocess
import sys
from pathlib import Path

import pytest

from leyden.trainer.cli.main import main
from leyden.trainer.cli.verbs import VERBS, all_flags
from leyden.trainer.compose.reference.yaml_comments import read_comments
from leyden.trainer.compose.reference.yaml_library import Library


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints, white space made even."""
    assert main(words) == code
    printed = capsys.readouterr()
    return " ".join((printed.err if code else printed.out).split())


# flags


FOREIGN = [
    (["status", "--port", "9"], "--port is a flag of leyden view"),
    (["--port", "9"], "--port is a flag of leyden view; leyden train has no such flag"),
    (["eval", "RUN", "-m"], "--multirun is a flag of leyden train"),
    (["view", "--json"], "--json is a flag of leyden status"),
    (["resume", "--cfg", "job", "RUN"], "--cfg is a flag of leyden train"),
    (["doctor", "-cn", "mine"], "--config-name is a flag of leyden train"),
    (["stop", "RUN", "--eval"], "--eval is a flag of leyden node"),
    (["schema", "--write", "x.yaml"], "--write is a flag of leyden doctor"),
    (["--rendezvous", "a:1", "resume", "RUN"], "--rendezvous is a flag of leyden node"),
    (
        ["predict", "-cd", "mine", "RUN"],
        "--config-dir is a flag of leyden train, eval, resume, doctor, plan, bench, inspect, prepare, ",
    ),
]


@pytest.mark.parametrize(("words", "message"), FOREIGN, ids=[" ".join(words) for words, _ in FOREIGN])
def test_flag_of_another_verb_is_a_mistake_that_names_it(
    words: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, *words, code=2)
    assert message in found
    verb = words[0] if words[0] in VERBS else "resume" if "resume" in words else "train"
    assert f"try: leyden {verb} --help" in found
    assert not list(here.iterdir())


def test_overrides_stand_before_and_after_flags(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["seed=3", "--cfg", "job", "model=mlp"], ["--cfg", "job", "train", "seed=3", "model=mlp"],
                  ["train", "seed=3", "-c", "job", "model=mlp"], ["seed=3", "model=mlp", "--cfg=job"]):  # fmt: skip
        assert "seed: 3" in said(capsys, *words)


def test_every_flag_works_on_its_verb_and_is_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    for name, verb in VERBS.items():
        page = said(capsys, name, "--help")
        assert verb.text in page
        assert said(capsys, "help", name).startswith(page)
        for flag in all_flags().values():
            assert (flag.usage in page) == (flag in verb.flags or flag.key in ("help", "version")), (name, flag)
    assert said(capsys, "--help") == said(capsys, "help") == said(capsys, "model=mlp", "--help")


# topics


TOPICS = {
    "model=resnet50": ("He et al. 2016", "resnet50.yaml", "leyden.models.resnet.ResNet", "model.depth=50",
                       "18, 34, 50, 101, 152", "model.norm=batch"),
    "strategy": ("single unless another is named", "strategy=easgd", "every tau steps"),
    "strategy=easgd": ("strategy.tau=10", "local steps from one exchange to the next",
                       "strategy.execution.servers=null"),
    "data=cifar10": ("dataset.root=???", "dataset.val_fraction=0.1", "Keys of any dataset", "dataset.num_workers=0"),
    "trainer.precision": ("default: 32-true", "bf16-mixed | bf16-true"),
    "trainer.max_epochs": ("default: 25", "whole number at least 1", "passes over the training data"),
    "trainer.max_epochs=3": ("default: 25",),
    "optimizer.lr": ("optimizer=adamw: 0.001", "optimizer=sgd: 0.02", "learning rate"),
    "callbacks.checkpoint": ("callbacks.checkpoint.save_top_k=1", "number of the best to keep"),
    "predict": ("top=5", "classes of each photograph"),
    "prepare": ("out=???", "folder of the shards", "size=256", "images in a shard"),
    "dataset=shards": ("dataset.json_label=label", "dataset.limits.members"),
    "topology": ("print this machine", "topology=dgx_h100", "topology.fabric.kind=null"),
    "topology=cots16": ("topology.nodes=16", "[press] 11 billion parameters on 16 machines", "machines"),
    "topology.links": ("topology.links.in_node.kind=null", "topology.links.across_sockets.gb_s=null"),
    "experiment=cots_digits": ("model.stages=2", "each of filters, pooling and normalization", "trainer.max_epochs=10"),
    "hydra/launcher=pipeline": ("hydra.launcher.eta=3", "the best 1 in eta continue"),
}  # fmt: skip


@pytest.mark.thinned(4)
@pytest.mark.parametrize("topic", TOPICS)
def test_topic(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "help", topic)
    for part in TOPICS[topic]:
        assert part in found


def test_several_topics(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "help", "seed", "batch_size")
    assert found.index("seed of the weights") < found.index("samples per optimizer step")


UNKNOWN = {
    "modle": "leyden help model",
    "lr": "leyden help optimizer.lr",
    "hiden": "leyden help model.hidden",
    "model=resnet5": "leyden help model=resnet50",
    "trainer.max_epoch": "leyden help trainer.max_epochs",
    "strategy.taau": "leyden help strategy.tau",
    "resnet50": "leyden help model=resnet50",
    "zzqqxx": "leyden help",
}


@pytest.mark.parametrize("topic", UNKNOWN)
def test_unknown_topic(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "help", topic, code=2).endswith(f"try: {UNKNOWN[topic]}")


def test_the_users_own_files_are_explained(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/model").mkdir(parents=True)
    (here / "mine/model/tiny.yaml").write_text(
        "# A small one.\ndefaults:\n  - mlp\n# units that\n# are hidden\nhidden: [7]\nslope: '#3' # of the ReLU\n"
    )
    found = said(capsys, "help", "--config-dir", "mine", "model=tiny")
    for part in ("A small one.", "model.hidden=[7] units that are hidden", "model.slope=#3 of the ReLU",
                 "model.dropout=0.0 probability", "leyden.models.mlp.MLP"):  # fmt: skip
        assert part in found
    assert "model=tiny: [7] units that are hidden" in said(capsys, "-cd", "mine", "help", "model.hidden")
    assert "there is no such folder" in said(capsys, "-cd", "mime", "help", "model=tiny", code=2)
    (here / "mine/model/tiny.yaml").write_text("hidden: [7\n")
    assert "is not valid YAML" in said(capsys, "help", "-cd", "mine", "model=tiny", code=2)


def test_where_comments_stand() -> None:
    file = read_comments(
        "# About the file.\n\n# not about a\n\na: 1\n# above b\nb: '# no comment'\n"
        "c:        # of c\n          # and more of it\n  # above d\n  d: {e: 1, f: '#'}   # of d\n  g: 2\n"
    )
    assert file.head == ("About the file.", "not about a")
    assert {name: key.comment for name, key in file.keys.items()} == {
        "a": "", "b": "above b", "c": "of c and more of it", "c.d": "of d", "c.d.e": "of d", "c.d.f": "of d", "c.g": "",
    }  # fmt: skip
    assert file.keys["b"].value == "# no comment"


LIBRARY = Library()
SHIPPED = [
    *LIBRARY.root_entries(),
    *(entry for group, choices in LIBRARY.groups.items() for name in choices for entry in LIBRARY.entries(group, name)),
]


def test_every_key_of_every_shipped_file_is_explained() -> None:
    assert len(SHIPPED) > 400
    assert not [(entry.choice or "train.yaml", entry.name) for entry in SHIPPED if not entry.comment]


def test_every_shipped_file_says_what_it_is() -> None:
    files = {
        f"{group}/{name}": LIBRARY.file(f"{group}/{name}") for group, names in LIBRARY.groups.items() for name in names
    }
    assert len(files) > 60
    assert not [name for name, file in files.items() if not file.head]


@pytest.mark.parametrize("backwards", [False, True])
def test_groups_are_in_no_order_of_the_file_system(backwards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *arguments: sorted(glob(*arguments), reverse=backwards))
    assert list(Library().groups) == list(LIBRARY.groups)


def test_help_imports_neither_torch_nor_hydra() -> None:
    script = (
        "import sys; from leyden.trainer.cli.main import main;"
        "assert [main(words.split()) for words in sys.argv[1:]] == [0, 0, 0];"
        "print([name for name in ('torch', 'lightning', 'hydra') if name in sys.modules])"
    )
    pages = ["help trainer.precision", "help model=resnet50", "eval --help"]
    done = subprocess.run([sys.executable, "-c", script, *pages], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
