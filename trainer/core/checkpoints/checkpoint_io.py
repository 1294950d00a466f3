"""Checkpoint files: written atomically, verified before reading, loaded without executing code."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import torch

from ...base.atomic_file import atomic_file, beside, naming, open_new
from ...base.errors import Explained, NotFiniteValue, SystemFailure
from ...base.log import log
from ...base.storage import no_space_for
from ...runs.checkpoints import LAST, folder, note_damaged, path_in, saved_checkpoints, server_path
from . import container
from .checkpoint_content import fault_of_server, fault_of_training, fault_of_types, not_finite
from .container import DamagedCheckpoint, UnreadableCheckpoint
from .sharded_checkpoint import CheckpointShards

FORMAT = 1
Fits = Callable[[Path, dict[str, Any], CheckpointShards | None], None]


class NotFinite(NotFiniteValue):
    """Weights that are NaN or infinite."""


class NotFiniteCheckpoint(Explained, DamagedCheckpoint):
    """A checkpoint whose weights are NaN or infinite."""


def shards_of(path: Path, content: dict[str, Any]) -> CheckpointShards | None:
    """The per-worker files of a checkpoint; None if it has none.

    Raises:
        DamagedCheckpoint: the index is missing or damaged.
    """
    if not content.get("shards"):
        return None
    return CheckpointShards(path_in(path.parent, content["position"]["step"]), content["shards"])


def refuse_not_finite(weights: dict[str, Any]) -> None:
    """Refuse to save NaN or infinity.

    Raises:
        NotFinite: a weight is NaN or infinite.
    """
    name = not_finite(weights)
    if name is not None:
        raise NotFinite(f"{name} has NaN or infinite values: not saved")


def write(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically.

    Raises:
        StorageError: there is no space for it; it says how much is missing.
        SystemFailure: its folder is a link of another user.
        OSError: another error of the disk, or there is no memory. The folder above the checkpoint's is gone, and
            nothing is created.
    """
    if path.parent.is_symlink() and path.parent.lstat().st_uid != os.geteuid():
        raise SystemFailure(f"{path.parent} is a link of another user: behind it nothing is written")
    # not its parents: a run folder that was renamed would get an heir that nobody can resume
    path.parent.mkdir(exist_ok=True)
    try:
        with atomic_file(path, "wb") as file:
            _save(content, file)
            _refuse_foreign(Path(file.name))
    except OSError as error:
        raise no_space_for(error, path, size_of(content)) or error from None
    except (MemoryError, RuntimeError) as error:  # no step is out of memory
        if not isinstance(error, MemoryError) and "alloc" not in str(error):  # torch's allocator raises RuntimeError
            raise
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error
    _flush_folder(path.parent)


def _save(content: dict[str, Any], file: IO[bytes]) -> None:
    try:
        torch.save(content, file)
        file.flush()
    except RuntimeError as error:
        # torch's zip writer says RuntimeError when it is closed after a write that failed
        for cause in (error.__context__, error):
            if isinstance(cause, OSError | MemoryError) or "DefaultCPUAllocator" in str(cause):
                assert cause is not None
                raise cause from None
        raise OSError(errno.EIO, f"could not write the checkpoint: {error}") from error


def size_of(content: Any) -> int:
    """Bytes of the tensors in a checkpoint's content, about the size of its file."""
    if isinstance(content, torch.Tensor):
        return content.nbytes
    values = content.values() if isinstance(content, dict) else content if isinstance(content, list | tuple) else ()
    return sum(map(size_of, values))


def _refuse_foreign(path: Path) -> None:
    """Refuse objects that `read` would refuse."""
    try:
        container.check_plain(path)
    except (ValueError, LookupError) as error:
        raise TypeError(
            f"a checkpoint holds plain Python values and tensors only ({error}): check what on_save_checkpoint adds, "
            "and the state_dict of callbacks and of the data module"
        ) from None


def point_last_at(path: Path) -> None:
    """Make last.ckpt another name of this file (a copy if the file system has no hard links)."""
    temporary = beside(path.with_name(LAST))
    try:
        try:
            os.link(path, temporary)
        except OSError:
            with naming(path.with_name(LAST)), open(temporary, "wb", opener=open_new) as file:
                file.write(path.read_bytes())
        os.replace(temporary, path.with_name(LAST))
    finally:
        temporary.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    # the rename itself must be on disk before an older checkpoint is removed
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint or a file of weights, every byte verified, nothing executed.

    Raises:
        DamagedCheckpoint: it is truncated, altered, contains code, or is not a Leyden checkpoint.
        NotFiniteCheckpoint: a weight is NaN or infinite.
        FileNotFoundError: the file does not exist.
    """
    content = read_part(path)
    fault = fault_of_types(content)
    if fault:
        raise DamagedCheckpoint(f"{path} is damaged: {fault}")
    name = not_finite(content["model"])
    if name is not None:
        raise NotFiniteCheckpoint(f"{path} is damaged: {name} has NaN or infinite values")
    return content


def read_part(path: Path) -> dict[str, Any]:
    """The content of any of a checkpoint's files, such as a server's; raises as `read`."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    content = container.load(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedCheckpoint(f"{path} is not a Leyden checkpoint of format {FORMAT}")
    return content


def read_to_resume(path: Path, fits: Fits | None = None) -> dict[str, Any]:
    """The content of a checkpoint from which a training can go on, with its other files verified.

    Args:
        fits: raises DamagedCheckpoint for one of another network.

    Raises:
        DamagedCheckpoint: as `read`, or it cannot be gone on from.
    """
    content = read(path)
    fault = fault_of_training(path, content)
    if fault:
        raise DamagedCheckpoint(f"{path} is damaged: {fault}")
    divided = shards_of(path, content)
    if divided is not None:
        divided.verify()
    for server in range(content.get("servers", 0)):
        _verify_server(server_path(path_in(path.parent, content["position"]["step"]), server))
    if fits is not None:
        fits(path, content, divided)
    return content


def _verify_server(path: Path) -> None:
    container.verify(path)
    fault = fault_of_server(container.map_tensors(path))
    if fault:
        raise DamagedCheckpoint(f"{path} is damaged: {fault}")


def newest(
    run_dir: Path,
    fits: Fits | None = None,
    to_evaluate: bool = False,
    leads: bool = True,
    passed: Mapping[Path, str] = MappingProxyType({}),
) -> tuple[Path, dict[str, Any]] | None:
    """The newest intact checkpoint; damaged ones are logged, noted in the run folder, and skipped.

    Args:
        fits: raises DamagedCheckpoint for one of another network.
        to_evaluate: weights that are not finite are an error: others are not what is asked for. Nothing is noted.
        leads: whether this process leads the run; into the folder of another one nothing is noted.
        passed: checkpoints that could not be restored, with the reasons.

    Raises:
        DamagedCheckpoint: there are checkpoints, but none is intact.
    """
    last = folder(run_dir) / LAST
    candidates = saved_checkpoints(run_dir)
    if last.exists() and not any(os.path.samefile(last, path) for path in candidates):
        candidates.insert(0, last)
    reasons = list(passed.values())
    left = [path for path in candidates if path not in passed]
    found = first_readable(left, fits, to_evaluate, reasons, leads)
    if candidates and found is None:
        none = f"none of the {len(candidates)} checkpoints in {folder(run_dir)} can be used"
        raise DamagedCheckpoint(f"{none}; the newest: {reasons[0]}")
    return found


def first_readable(
    candidates: Sequence[Path],
    fits: Fits | None = None,
    to_evaluate: bool = False,
    reasons: list[str] | None = None,
    leads: bool = True,
) -> tuple[Path, dict[str, Any]] | None:
    """The first intact one of some checkpoints; damaged ones as in `newest`.

    Args:
        reasons: gets a line for each damaged one.
    """
    for path in candidates:
        try:
            return path, read_to_resume(path, fits)
        except ValueError as error:
            if to_evaluate and isinstance(error, NotFiniteCheckpoint):
                raise
            if reasons is not None:
                reasons.append(str(error))
            pass_over(path, error, leads and not to_evaluate)
    return None


def pass_over(path: Path, error: Exception, notes: bool) -> None:
    """Log that a checkpoint is not used, and note it in its folder."""
    log.warning("%s; trying the one before", error)
    if notes and not isinstance(error, UnreadableCheckpoint):
        note_damaged(path, str(error))
