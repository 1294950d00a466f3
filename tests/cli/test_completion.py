"""Completion in bash, zsh and fish: the functions that `leyden completion` prints, in the real shells."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from runs import PATIENCE_S

from leyden.trainer.cli.completion import function
from leyden.trainer.cli.completion.index import lines
from leyden.trainer.cli.main import main
from leyden.trainer.cli.verbs import VERBS

SHELLS = ("bash", "zsh", "fish")
CANDIDATES = {
    "leyden ": ({"train", "resume", "find", "model=", "trainer.", "seed="}, {"--cfg", "high="}),
    "leyden mod": ({"model=", "model."}, {"optimizer="}),
    "leyden model=res": ({"model=resnet18", "model=resnet20"}, {"model=mlp", "resnet20"}),
    "leyden model=mlp trainer.max_": ({"trainer.max_epochs=", "trainer.max_steps="}, {"trainer.precision="}),
    "leyden trainer.exact_dropout=": ({"trainer.exact_dropout=true", "trainer.exact_dropout=false"}, {"mine"}),
    "leyden augment=[imagenet,cr": ({"augment=[imagenet,crop"}, {"augment=[imagenet,mixup"}),
    "leyden -m model=mlp,le": ({"model=mlp,lenet5"}, {"model=mlp,mlp"}),
    "leyden +optim": ({"+optimizer=", "+optimizer."}, set()),
    "leyden hydra/l": ({"hydra/launcher="}, set()),
    "leyden hydra/launcher=": ({"hydra/launcher=pipeline"}, set()),
    "leyden --config-dir mine model=t": ({"model=timm", "model=tiny"}, set()),
    "leyden -cd mine own=": ({"own=choice"}, set()),
    "leyden --config-dir=mine ow": ({"own="}, set()),
    "leyden --cfg ": ({"job", "hydra", "all"}, {"model="}),
    "leyden --": ({"--cfg", "--multirun", "--help"}, {"--rendezvous"}),
    "leyden node --r": ({"--rendezvous"}, {"--cfg", "--resolve"}),
    "leyden eval --crops ": ({"5", "10"}, set()),
    "leyden find ": ({"lr", "batch_size", "low=", "model="}, {"train", "--config-dir"}),
    "leyden find lr hi": ({"high="}, {"lr"}),
    "leyden completion ": ({"bash", "zsh", "fish"}, {"model="}),
    "leyden help fi": ({"find"}, set()),
    "leyden status ": (set(), {"model=", "train"}),
    "leyden nothing=x": (set(), {"model="}),
}
"""Typed so far: what must be offered, and what must not."""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the function of each shell, and a config folder `mine`."""
    folder = tmp_path_factory.mktemp("shells")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for shell in SHELLS:
            with open(folder / shell, "w") as file:
                subprocess.run([sys.executable, "-m", "leyden", "completion", shell], stdout=file, check=True)
    for name in ("model/tiny.yaml", "own/choice.yaml"):
        (folder / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mine" / name).touch()
    return folder


IN_BASH = """
source ./bash
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}
_leyden
printf '%s\\n' "${COMPREPLY[@]}"
"""
IN_ZSH = """
compdef() {} ; compset() {} ; _files() {}
compadd() { local name=${@[-1]}; for word in ${(P)name}; do
    [[ $word == "${words[CURRENT]}"* ]] && print -- $word; done }
source ./zsh
words=(${=1}); [[ $1 == *' ' ]] && words+=('')
CURRENT=${#words}
_leyden
"""
IN_FISH = "source ./fish; complete -C $argv[1] | string replace -r '\\t.*' ''"


def command(shell: str, line: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    return {
        "bash": ["bash", "--norc", "-c", IN_BASH, "bash", line],
        "zsh": ["zsh", "-f", "-c", IN_ZSH, "zsh", line],
        "fish": ["fish", "-N", "-c", IN_FISH, line],
    }[shell]


def completed(shell: str, line: str, folder: Path) -> set[str]:
    done = subprocess.run(command(shell, line), capture_output=True, text=True, cwd=folder, check=False)
    assert not done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("line", CANDIDATES)
@pytest.mark.parametrize("shell", SHELLS)
def test_candidates(shell: str, line: str, functions: Path) -> None:
    found, (offered, not_offered) = completed(shell, line, functions), CANDIDATES[line]
    assert offered <= found
    assert not not_offered & found


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_paths(shell: str, functions: Path) -> None:
    for line in ("leyden status m", "leyden --config-dir m", "leyden dataset.root=m"):
        found = {word.rstrip("/").rpartition("=")[2] for word in completed(shell, line, functions)}
        assert "mine" in found, line


@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_else_is_started(shell: str, functions: Path) -> None:
    """Without a PATH neither Python nor another program can be."""
    words = [str(shutil.which(shell)), *command(shell, "leyden trainer.max_")[1:]]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=functions, env={"PATH": "", "HOME": "/"}, check=False
    )
    assert "trainer.max_epochs=" in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_without_the_index_nothing_is_offered(
    shell: str, functions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(functions / "cache"))
    index, text = str(function._index()), functions.joinpath(shell).read_text()
    assert index in text
    (tmp_path / shell).write_text(text.replace(index, str(tmp_path / "gone")))
    assert not completed(shell, "leyden model=res", tmp_path)


BEGIN = {
    "bash": (["bash", "--norc", "-i"], "source ./bash"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D; source ./zsh"),
    "zsh, by its fpath": (
        ["zsh", "-f", "-i"],
        "fpath=($PWD/own $fpath); autoload -Uz compinit; compinit -u -D",
    ),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("how", BEGIN)
def test_in_a_terminal(how: str, functions: Path) -> None:
    words, begin = BEGIN[how]
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} here")
    (functions / "own").mkdir(exist_ok=True)
    shutil.copy(functions / "zsh", functions / "own" / "_leyden")
    # the function's result is seen as what the command gets
    script = [begin, "leyden() { printf '<%s>' \"$@\"; echo; }", "leyden mod\t=lenet\t trainer.max_ep\t3"]
    prompt = "<\\!>" if words[0] == "bash" else "<%!>"
    assert_answers(words, script, prompt, "<model=lenet5><trainer.max_epochs=3>", functions)


def assert_answers(words: list[str], script: list[str], prompt: str, answer: str, folder: Path) -> None:
    """A shell on a terminal shows the answer where these lines are typed.

    Args:
        prompt: shows the number of the command that is read.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "dumb", "PS1": prompt, "INPUTRC": "/dev/null", "HISTFILE": ""}
        os.execvp(words[0], words)
    try:
        for number, line in enumerate(script, start=1):
            read_until(terminal, f"<{number}>")  # what is typed before the prompt is lost
            os.write(terminal, f"{line}\r".encode())
        read_until(terminal, answer)
    finally:
        os.close(terminal)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def read_until(terminal: int, text: str) -> None:
    seen = ""
    while text not in seen:
        assert wait([terminal], PATIENCE_S), f"no {text} in {seen}"
        seen += os.read(terminal, 65536).decode(errors="replace")


def test_the_index_has_every_verb_flag_and_choice() -> None:
    found = set(lines())
    for name, verb in VERBS.items():
        assert f"V {name}" in found
        assert all(f"F {name} {typed}" in found for flag in verb.flags for typed in flag.names)
    some = "A --config-dir dir, A --out file, A --crops 5|10, A --port text, C model resnet20, C strategy ddp, "
    some += "K trainer.channels_last bool, K optimizer.lr, N predict top, P view, S find lr"
    assert set(some.split(", ")) <= found
    assert not any(line.startswith("A --info") for line in found), "its value may be left out"


@pytest.mark.parametrize("words", [[], ["ksh"], ["bash", "zsh"]])
def test_another_shell_is_a_mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", *words]) == 2
    assert "needs the shell: bash, zsh, fish\n    try: leyden completion bash" in capsys.readouterr().err
