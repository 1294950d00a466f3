"""Checkpoints: what is saved, how, and what is trusted.

A file holds plain Python values and tensors only, so that `torch.load(weights_only=True)` reads it. It is written
next to its final name, flushed to the disk and renamed: whatever happens meanwhile, the old one is whole. Its zip
container carries a checksum of every entry, which is verified before anything of it is used. Its files are written by
`checkpoint_files`.
"""

import errno
import json
import os
from pathlib import Path
from typing import Any

import torch
from torchmetrics import Metric

from ...base import rng
from ...base.heartbeat import CHECKPOINT, SYNCHRONIZATION, heartbeat
from ...core import threads
from ...core.callback_contract import CallbackContract
from ...core.checkpoints.checkpoint_io import FORMAT, refuse_not_finite, shards_of, write
from ...core.checkpoints.optimizer_trial import refuse_useless_state
from ...core.communication.metric_lists import join_lists
from ...core.communication.plain_values import all_gather_values
from ...core.hooks import own_hook
from ...core.lightning_compat import precision_of
from ...core.state import RunState
from ...runs.checkpoints import path_of
from ...runs.sessions import Record, Session, check_session
from .callback_state import callback_states, load_callback
from .checkpoint_files import write_files, write_in_background
from .restored_parts import (
    kinds_kept,
    lay_out_as_parameters,
    refuse_later_steps,
    refuse_replaced_attributes,
    restoring_part,
    settings_of,
)


def collect(state: RunState) -> dict[str, Any]:
    """The complete training state; every worker must call it, the first worker's result is what is written."""
    # The file holds the weights that training goes on with; EMA and the like keep theirs among the callbacks.
    workers: list[Any] = [(rng.capture(state.fabric.device), threads.current().count)]
    if state.fabric.world_size > 1:
        workers = all_gather_values(workers[0])
    content = {
        "format": FORMAT,
        **state.contract.full_state(state.task, state.raw_optimizer),
        "schedules": [entry.scheduler.state_dict() for entry in state.schedules],
        "precision": precision_of(state.fabric).state_dict(),
        "position": {
            "epoch": state.epoch,
            "step": state.step,
            "step_in_epoch": state.step_in_epoch,
            "samples": state.samples,
            "validated_at": state.validated_at,
            **({"offset": state.offset} if state.offset else {}),
        },
        **({} if state.content is None else {"content": state.content}),
        "sessions": [*state.earlier_sessions, state.session_record()],
        "seconds": state.time_limit.elapsed_s(),
        "random": [random for random, _ in workers],
        "threads": [count for _, count in workers],
        "metrics": dict(state.metrics),
        "epoch_metrics": state.log.state_dict(state.fabric.strategy),
        "epoch_metric_objects": metric_objects(state),
        "data": state.data.state_dict(),
        "callbacks": callback_states(state),
    }
    for hook in state.hooks.find("on_save_checkpoint"):
        hook(content)
    return content


def metric_objects(state: RunState) -> dict[str, Any]:
    """What torchmetrics objects have gathered so far, over all workers; their own state_dict leaves it out."""
    found: dict[str, Any] = {}
    for name, module in state.task.named_modules():
        if isinstance(module, Metric):
            join_lists(module)
            with module.sync_context(should_sync=state.fabric.world_size > 1):
                kept = {key: _clone(value) for key, value in module.metric_state.items()}
            found[name] = {"state": kept, "updates": module._update_count}
    return found


def _clone(value: Any) -> Any:
    return [item.clone() for item in value] if isinstance(value, list) else value.clone()


def save(state: RunState) -> Path | None:
    """Save a checkpoint of this step. Every worker must call it.

    With trainer.async_checkpoint it is complete after `complete`: what has kept it from being written is raised there.

    Returns:
        The file's path; None where nothing is saved (trainer.fast_dev_run).

    Raises:
        NotFinite: the weights are not finite; nothing was written.
        OSError: the disk is full, say; the earlier checkpoints are untouched.
    """
    if state.config.trainer.fast_dev_run:
        return None
    path = path_of(state.run_dir, state.step)
    if path in (state.last_checkpoint, state.unfinished_checkpoint):
        return path
    complete(state)
    with heartbeat.phase(SYNCHRONIZATION, "a checkpoint"):
        state.contract.flush_pending_updates(state.task)
        content = collect(state)
    in_background = state.config.trainer.async_checkpoint
    with heartbeat.phase(CHECKPOINT):
        write_in_background(state, path, content) if in_background else write_files(state, path, content)
    state.unfinished_checkpoint = path
    if not in_background:
        complete(state)
    return path


def complete(state: RunState) -> None:
    """Wait until the checkpoint that is being written is complete. Every worker must call it.

    Raises:
        NotFinite, OSError: as `save`.
    """
    path, state.unfinished_checkpoint = state.unfinished_checkpoint, None
    if path is None:
        return
    with heartbeat.phase(CHECKPOINT):
        state.checkpoint_writer.wait()
    with heartbeat.phase(SYNCHRONIZATION):
        state.fabric.barrier()
    state.last_checkpoint = path
    state.call(CallbackContract.on_checkpoint)
    if not state.config.trainer.async_checkpoint:
        state.checkpoint_writer.run_deferred()


def finish(state: RunState) -> None:
    """`complete` where no other checkpoint follows."""
    complete(state)
    state.checkpoint_writer.run_deferred()


def write_copies(state: RunState) -> None:
    """Write the checkpoints that the task has asked its trainer for. Every worker must call it, between two steps.

    Raises:
        ValueError: the strategy divides checkpoints over several files.
        NotFinite: the weights are not finite; nothing was written.
    """
    with heartbeat.phase(SYNCHRONIZATION):
        state.contract.flush_pending_updates(state.task)
        if state.contract.shard(state.task, state.raw_optimizer) is not None:
            text = "this strategy's checkpoints are several files; callbacks.checkpoint"
            raise ValueError(f"trainer.save_checkpoint: {text}")
        content = {**collect(state), "shards": 0}
        for path in state.copies_wanted if state.fabric.is_global_zero else ():
            refuse_not_finite(content["model"])
            _make_folder(state.run_dir, path.parent)
            write(content, path)
        state.copies_wanted.clear()
        state.fabric.barrier()


def _make_folder(run_dir: Path, folder: Path) -> None:
    """The folder of a copy, wherever the task wants it; a run folder that was renamed is not created again."""
    if not run_dir.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(run_dir))
    folder.mkdir(parents=True, exist_ok=True)


def restore(state: RunState, path: Path | None, content: dict[str, Any]) -> None:
    """Put a training back where the checkpoint was taken, on this or another number of workers.

    Args:
        path: of its file; None: it comes from another worker's memory, and is whole.
    """
    for hook in state.hooks.find("on_load_checkpoint"):
        hook(content)
    divided = None if path is None else shards_of(path, content)
    optimizer = state.raw_optimizer
    own_settings = settings_of(optimizer)
    with restoring_part(path, "optimizer", optimizer, alone=state.fabric.world_size == 1):
        with kinds_kept(optimizer, "param_groups"):
            state.contract.load_full_state(state.task, optimizer, content, divided)
            lay_out_as_parameters(optimizer)
        refuse_useless_state(optimizer, own_settings)
    _restore_schedules(state, path, content)
    with restoring_part(path, "precision"):
        precision_of(state.fabric).load_state_dict(content["precision"])
    for name, value in content["position"].items():
        setattr(state, name, value)
    if state.content is None or "content" not in content:
        is_new = state.has_other_content
    else:
        is_new = state.content != content["content"]
    if is_new:
        begin_next_epoch(state)
    state.time_limit.before = content.get("seconds", 0.0)
    state.metrics = dict(content["metrics"])
    for name, callback in state.callbacks.items():
        if name in content["callbacks"]:
            with restoring_part(path, f"callbacks.{name}", callback):
                load_callback(name, callback, content["callbacks"][name], divided)
                check_loaded = own_hook(callback, CallbackContract.check_loaded)
                if check_loaded is not None:
                    check_loaded(state)
    with restoring_part(path, "data", state.data):
        state.data.load_state_dict(content.get("data", {}))
    # a model that comes from another worker brings its number of threads with it, as far as there are cores for it
    silent = path is None or state.fabric.device.type != "cpu" or not state.fabric.is_global_zero
    with restoring_part(path, "threads"):
        threads.restore(content.get("threads", []), state.fabric.global_rank, state.fabric.world_size, silent)
    with restoring_part(path, "sessions"):
        restore_sessions(state, path, content.get("sessions", []))
    if not is_new:
        with restoring_part(path, "epoch_metrics"):
            restore_epoch_metrics(state, content)
    with restoring_part(path, "random"):
        restore_random_state(state, content["random"])
    state.last_checkpoint = state.resumed_from = path


def _restore_schedules(state: RunState, path: Path | None, content: dict[str, Any]) -> None:
    with restoring_part(path, "schedules"):
        # of a run that is evaluated on other data there are none
        saved = content["schedules"] if state.schedules else []
        pairs = list(zip(state.schedules, saved, strict=True))
    # a task of the user's may step one several times a step, but not more often than once a sample
    most = content["position"]["samples"] + content["position"]["epoch"] + 1
    for entry, saved_schedule in pairs:
        schedule, name = entry.scheduler, type(entry.scheduler).__name__
        with restoring_part(path, "schedules", schedule), kinds_kept(schedule, name):
            refuse_replaced_attributes(schedule, saved_schedule)
            schedule.load_state_dict(saved_schedule)
            refuse_later_steps(schedule, most, name)


def begin_next_epoch(state: RunState) -> None:
    """Leave an epoch that was begun with another content of the data: its order would not be this one's."""
    state.epoch += state.step_in_epoch > 0
    state.step_in_epoch = 0
    state.offset = state.step - state.epoch * state.steps_per_epoch


def restore_sessions(state: RunState, path: Path | None, records: list[Record]) -> None:
    """What a checkpoint knows of the sessions; a training that only changes its worker goes on in its own."""
    if path is not None:
        for number, record in enumerate(records):
            check_session(path, record, f"sessions.{number}")
        json.dumps(records)  # summary.json takes them
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
        rng.restore(workers[state.fabric.global_rank], state.fabric.device)
    else:
        rng.seed_everything(state.config.seed, state.step, state.fabric.global_rank)
