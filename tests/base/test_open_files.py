"""A process that may have no more open files: one sentence, whoever noticed."""

import errno
import os
import resource
from pathlib import Path

import pytest
from runs import HERE, TINY, Freeze, summary
from torch import Tensor

from leyden.trainer.base.open_files import TooManyOpenFiles
from leyden.trainer.base.system_errors import system_errors
from leyden.trainer.data.splits import Reader, plain_sample
from leyden.trainer.entrypoints.start import start


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/some/file"), RuntimeError("socket: Too many open files")],
    ids=["open", "gloo"],
)
def test_a_lack_of_descriptors_is_explained(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(TooManyOpenFiles, match=r"a process may have \d+ \(ulimit -n\)"), system_errors(tmp_path):
        raise error


def test_a_lack_on_the_host_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TooManyOpenFiles, match="on this host"), system_errors(tmp_path):
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), RuntimeError("another"), ValueError("x")])
def test_other_errors_pass(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as raised, system_errors(tmp_path):
        raise error
    assert raised.value is error


class Unopened:
    """A dataset whose files cannot be opened."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), f"{index}.png")


def test_a_sample_that_cannot_be_opened_now_is_not_skipped_as_unreadable() -> None:
    with pytest.raises(OSError, match=r"0\.png"):
        Reader(Unopened(), plain_sample, replace_bad=False).__getitems__([(0, 0)])  # pyright: ignore[reportArgumentType]


def test_a_run_without_descriptors_ends_with_a_sentence(freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    here = [HERE, "+callbacks.starve._target_=open_file_examples.Starve"]
    run_dir = freeze("run", *TINY, *here, "+callbacks.starve.left=0")
    try:
        assert start(run_dir) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed, printed
    assert printed.count("too many open files: a process may have ") == 1
    assert "no checkpoint had been written" in printed
    assert summary(run_dir)["status"] == "failed"
