"""Checkpoints: what is saved, how, and what is trusted.

A file holds plain Python values and tensors only, so that `torch.load(weights_only=True)` reads it. It is written
beside its final name, flushed to the disk and renamed: whatever happens meanwhile, the old one is whole. Its zip
container carries a checksum of every entry, which is verified before anything of it is used.
"""

import os
import zipfile
from pathlib import Path
from typing import Any

import torch
from torchmetrics import Metric

from . import random_state, shards, threads
from .checkpoint_names import LAST, folder, path_in, path_of, saved, server_path
from .checkpoint_names import step_of as step_of  # callers know checkpoints by this module
from .log import log
from .pulse import CALLBACKS, CHECKPOINT, MEETING, pulse
from .sessions import Record, Session
from .shards import Shard, Shards
from .state import RunState
from .whole_file import whole_file

FORMAT = 1


class DamagedCheckpoint(ValueError):
    """A checkpoint file that is not what was written."""


class NotFinite(FloatingPointError):
    """Weights or losses that are NaN or infinite."""


def collect(state: RunState) -> dict[str, Any]:
    """The complete training state; every worker must call it, the first worker's result is what is written."""
    # The file holds the weights that training goes on with; EMA and the like keep theirs among the callbacks.
    workers: list[Any] = [(random_state.capture(state.fabric.device), threads.used().count)]
    if state.fabric.world_size > 1:
        gathered: list[Any] = [None] * state.fabric.world_size
        torch.distributed.all_gather_object(gathered, workers[0])
        workers = gathered
    content = {
        "format": FORMAT,
        **state.contract.full_state(state.task, state.raw_optimizer),
        "schedules": [entry.scheduler.state_dict() for entry in state.schedules],
        "precision": state.fabric._precision.state_dict(),
        "position": {
            "epoch": state.epoch,
            "step": state.step,
            "step_in_epoch": state.step_in_epoch,
            "samples": state.samples,
            "validated_at": state.validated_at,
        },
        "sessions": [*state.earlier_sessions, state.session_record()],
        "seconds": state.time_limit.elapsed(),
        "random": [random for random, _ in workers],
        "threads": [count for _, count in workers],
        "metrics": dict(state.metrics),
        "epoch_metrics": state.log.state_dict(state.fabric.strategy),
        "epoch_metric_objects": metric_objects(state),
        "data": state.data.state_dict(),
        "callbacks": {n: c.state_dict() for n, c in state.callbacks.items() if hasattr(c, "state_dict")},
    }
    for hook in state.hooks.find("on_save_checkpoint"):
        hook(content)
    return content


def metric_objects(state: RunState) -> dict[str, Any]:
    """What torchmetrics objects have gathered so far, over all workers; their own state_dict leaves it out."""
    found: dict[str, Any] = {}
    for name, module in state.task.named_modules():
        if isinstance(module, Metric):
            with module.sync_context(should_sync=state.fabric.world_size > 1):
                kept = {key: _clone(value) for key, value in module.metric_state.items()}
            found[name] = {"state": kept, "updates": module._update_count}
    return found


def _clone(value: Any) -> Any:
    return [item.clone() for item in value] if isinstance(value, list) else value.clone()


def save(state: RunState) -> Path | None:
    """Write a checkpoint of this step and point last.ckpt at it. Every worker must call it.

    Returns:
        The file's path; None where nothing is saved (trainer.fast_dev_run).

    Raises:
        NotFinite: the weights are not finite; nothing was written.
        OSError: the disk is full, say; the earlier checkpoints are untouched.
    """
    if state.config.trainer.fast_dev_run:
        return None
    path = path_of(state.run_dir, state.step)
    if state.last_checkpoint == path:
        return path
    pulse.at(MEETING, state.step)
    state.contract.settle(state.task)
    content = collect(state)
    pulse.at(CHECKPOINT, state.step)
    content["shards"] = save_shards(state, path)
    if state.fabric.is_global_zero:
        refuse_not_finite(content["model"])
        write(content, path)
        point_last_at(path)
    pulse.at(MEETING, state.step)
    state.fabric.barrier()
    pulse.at(CALLBACKS, state.step)
    state.last_checkpoint = path
    state.call("on_checkpoint")
    return path


def write_copies(state: RunState) -> None:
    """Write the checkpoints that the task has asked its trainer for. Every worker must call it, between two steps.

    Raises:
        ValueError: the strategy divides checkpoints over several files.
        NotFinite: the weights are not finite; nothing was written.
    """
    pulse.at(MEETING, state.step)
    state.contract.settle(state.task)
    if state.contract.shard(state.task, state.raw_optimizer) is not None:
        raise ValueError("trainer.save_checkpoint: this strategy's checkpoints are several files; callbacks.checkpoint")
    content = {**collect(state), "shards": 0}
    for path in state.copies_wanted if state.fabric.is_global_zero else ():
        refuse_not_finite(content["model"])
        write(content, path)
    state.copies_wanted.clear()
    state.fabric.barrier()
    pulse.at(CALLBACKS, state.step)


def save_shards(state: RunState, path: Path) -> int:
    """Each worker writes what the strategy says is its own. Returns how many files lie beside the checkpoint.

    Raises:
        NotFinite: a worker's part of the weights is not finite; nothing was written.
    """
    shard: Shard | None = state.contract.shard(state.task, state.raw_optimizer)
    if shard is None:
        return 0
    for name, callback in state.callbacks.items():
        if hasattr(callback, "pieces"):
            shard.pieces.update({f"callbacks/{name}/{key}": piece for key, piece in callback.pieces().items()})
    workers, rank = state.fabric.world_size, state.fabric.global_rank
    listed: list[Any] = [(shard.finite, shard.listed())]
    if workers > 1:
        mine, listed = listed[0], [None] * workers
        torch.distributed.all_gather_object(listed, mine)
    broken = [worker for worker, (finite, _) in enumerate(listed) if not finite]
    if broken:
        raise NotFinite(f"weights of worker {broken[0]} have NaN or infinite values: not saved")
    write(shard.content(), shards.shard_path(path, rank))
    if rank == 0:
        shards.write_index(path, [pieces for _, pieces in listed])
    pulse.at(MEETING, state.step)
    state.fabric.barrier()
    pulse.at(CHECKPOINT, state.step)
    return workers


def remove(path: Path) -> None:
    """Delete a checkpoint and what lies beside it."""
    path.unlink(missing_ok=True)
    shards.remove(path)
    for beside in path.parent.glob(f"{path.stem}.server*.ckpt"):
        beside.unlink(missing_ok=True)


def shards_of(path: Path, content: dict[str, Any]) -> Shards | None:
    """The workers' files that belong to a checkpoint; None where it is whole without.

    Raises:
        DamagedCheckpoint: the index is missing or damaged.
    """
    if not content.get("shards"):
        return None
    try:
        return Shards(path_in(path.parent, content["position"]["step"]), content["shards"])
    except ValueError as error:
        raise DamagedCheckpoint(str(error)) from error


def refuse_not_finite(weights: dict[str, Any]) -> None:
    """
    Raises:
        NotFinite: one of them is.
    """
    for name, value in weights.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not _finite(value):
            raise NotFinite(f"{name} has NaN or infinite values: not saved")


def _finite(values: torch.Tensor) -> bool:
    # one NaN makes a NaN of the sum, which is read once; it may also overflow, so that it proves nothing if it is not
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def write(content: dict[str, Any], path: Path) -> None:
    """Write beside, flush, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole_file(path, "wb") as file:
            torch.save(content, file)
            file.flush()
            _refuse_foreign(Path(file.name))
    except RuntimeError as error:  # torch's zip writer reports a full disk as RuntimeError
        raise OSError(f"could not write {path}: {error}") from error
    _flush_folder(path.parent)


def _refuse_foreign(path: Path) -> None:
    """What `read` would take for an attack must not be written in the first place."""
    foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if foreign:
        raise TypeError(
            f"a checkpoint holds plain Python values and tensors only, not {', '.join(sorted(foreign))}: look at what "
            "on_save_checkpoint adds, and at the state_dict of callbacks and of the data module"
        )


def point_last_at(path: Path) -> None:
    """Make last.ckpt another name of this file (a copy where the file system has no hard links)."""
    beside = path.with_name(f".{LAST}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:
        beside.write_bytes(path.read_bytes())
    os.replace(beside, path.with_name(LAST))
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, every byte verified, nothing executed.

    Raises:
        DamagedCheckpoint: it is truncated, altered, or no Leyden checkpoint.
        FileNotFoundError: there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as container:
            broken = container.testzip()
        if broken is not None:
            raise DamagedCheckpoint(f"{path} is damaged: checksum of {broken} does not match")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise DamagedCheckpoint(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    except Exception as error:  # pickle.UnpicklingError and its kin: whatever it is, it is not ours
        raise DamagedCheckpoint(f"{path} is no Leyden checkpoint: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DamagedCheckpoint(f"{path} is no Leyden checkpoint of format {FORMAT}")
    return content


def newest(run_dir: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is whole; damaged ones are named in the log and passed over.

    Raises:
        DamagedCheckpoint: there are checkpoints, and none is whole.
    """
    last = folder(run_dir) / LAST
    candidates = saved(run_dir)
    if last.exists() and not any(os.path.samefile(last, path) for path in candidates):
        candidates.insert(0, last)
    for path in candidates:
        try:
            content = read(path)
            divided = shards_of(path, content)
            if divided is not None:
                divided.verify()
            for server in range(content.get("servers", 0)):
                shards.verify_file(server_path(path_in(path.parent, content["position"]["step"]), server))
            return path, content
        except ValueError as error:
            log.warning("%s; trying the one before", error)
    if candidates:
        raise DamagedCheckpoint(f"none of the {len(candidates)} checkpoints in {folder(run_dir)} can be read")
    return None


def restore(state: RunState, path: Path | None, content: dict[str, Any]) -> None:
    """Put a training back where the checkpoint was taken, on this or another number of workers.

    Args:
        path: of its file; None: it comes from another worker's memory, and is whole.
    """
    for hook in state.hooks.find("on_load_checkpoint"):
        hook(content)
    divided = None if path is None else shards_of(path, content)
    state.contract.load_full_state(state.task, state.raw_optimizer, content, divided)
    for entry, saved_schedule in zip(state.schedules, content["schedules"], strict=True):
        entry.scheduler.load_state_dict(saved_schedule)
    state.fabric._precision.load_state_dict(content["precision"])
    for name, value in content["position"].items():
        setattr(state, name, value)
    state.time_limit.before = content.get("seconds", 0.0)
    state.metrics = dict(content["metrics"])
    for name, callback in state.callbacks.items():
        if name in content["callbacks"] and hasattr(callback, "load_state_dict"):
            more = (divided, f"callbacks/{name}/") if hasattr(callback, "pieces") else ()
            callback.load_state_dict(content["callbacks"][name], *more)
    state.data.load_state_dict(content.get("data", {}))
    # a model that comes from another worker brings its number of threads with it, as far as there are cores for it
    silent = path is None or state.fabric.device.type != "cpu" or not state.fabric.is_global_zero
    threads.restore(content.get("threads", []), state.fabric.global_rank, state.fabric.world_size, silent)
    restore_sessions(state, path, content.get("sessions", []))
    restore_epoch_metrics(state, content)
    restore_random_state(state, content["random"])
    state.last_checkpoint = state.resumed_from = path


def restore_sessions(state: RunState, path: Path | None, records: list[Record]) -> None:
    """What a checkpoint knows of the sessions; a training that only changes its worker goes on in its own."""
    if path is None and records:
        *records, own = records
        state.session = Session.of(own)
    state.earlier_sessions = records


def restore_epoch_metrics(state: RunState, content: dict[str, Any]) -> None:
    """Sums of the interrupted epoch: the first worker carries what all had gathered."""
    if not state.fabric.is_global_zero:
        return
    state.log.load_state_dict(content["epoch_metrics"])
    modules = dict(state.task.named_modules())
    for name, kept in content["epoch_metric_objects"].items():
        metric = modules[name]
        for key, value in kept["state"].items():
            if isinstance(metric._defaults[key], list) and isinstance(value, torch.Tensor):  # pyright: ignore[reportAttributeAccessIssue, reportIndexIssue]
                value = [value]  # gathered from several workers, a list has become one tensor
            setattr(metric, key, _to(value, state.fabric.device))
        metric._update_count = kept["updates"]  # pyright: ignore[reportAttributeAccessIssue]


def _to(value: Any, device: torch.device) -> Any:
    return [item.to(device) for item in value] if isinstance(value, list) else value.to(device)


def restore_random_state(state: RunState, workers: list[Any]) -> None:
    """Each worker goes on with its own random numbers; on another number of workers they start anew from the step."""
    if len(workers) == state.fabric.world_size:
        random_state.restore(workers[state.fabric.global_rank], state.fabric.device)
    else:
        random_state.seed_everything(state.config.seed, state.step, state.fabric.global_rank)


def load_weights(task: torch.nn.Module, source: str, own: dict[str, torch.Size]) -> str:
    """Start from weights of another run (init_from): every tensor whose name and shape match.

    Args:
        own: names and shapes of the task's tensors on one device.
        source: a run folder, a .ckpt file or a .safetensors file.

    Returns:
        One line that says what was taken and what was not.

    Raises:
        ValueError: nothing matches, or the file cannot be read.
    """
    weights = _weights_of(Path(source))
    names = {name: name if name in weights else name.removeprefix("model.") for name in own}
    taken = {n: weights[s] for n, s in names.items() if s in weights and weights[s].shape == own[n]}
    if not taken:
        raise ValueError(
            f"init_from={source}: none of its {len(weights)} tensors has name and shape of one of the {len(own)} here"
        )
    task.load_state_dict(taken, strict=False)
    left = sorted(set(own) - set(taken))
    rest = f"; started fresh: {', '.join(left[:6])}{' ...' if len(left) > 6 else ''}" if left else ""
    return f"init_from {source}: {len(taken)} of {len(own)} tensors{rest}"


def _weights_of(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"init_from={path} cannot be read: {error}") from error
    if path.is_dir():
        found = newest(path)
        if found is None:
            raise ValueError(f"init_from={path} holds no checkpoint")
        return _whole_model(*found)
    return _whole_model(path, read(path))


def _whole_model(path: Path, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    divided = shards_of(path, content)
    return content["model"] if divided is None else divided.put_together(content)["model"]
