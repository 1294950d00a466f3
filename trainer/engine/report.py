"""What a run tells at its start and end: lines, the final table, summary.json."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..base.log import log
from ..base.paths import shorten_path
from ..base.versions import versions
from ..config.hyperparameters import hyperparameters, title, varied_names
from ..config.lightning.base_classes import overrides
from ..core import threads
from ..core.loggers.calls import call_logger
from ..core.loggers.contract import LoggerContract
from ..core.protocols import RankingCallback
from ..core.state import RunState
from ..core.step_timer import StepTimes
from ..data.contents import found
from ..data.contents.chance import not_learned
from ..hardware import cpu_contention
from ..runs import checkpoints
from ..runs.goodput import goodput
from ..runs.sessions import merge_sessions, totals
from ..runs.summary import read_summary, write_summary
from .planned_step import planned_beside_measured, planned_line


def announce(state: RunState) -> None:
    """One line: who trains, on how much, for how long."""
    parameters = state.contract.parameter_count(state.task)
    if state.fabric.device.type == "cpu" and state.fabric.local_rank == 0:
        busy_machine = cpu_contention.warning_since_start(threads.current().count, threads.current().workers)
        if busy_machine is not None:
            log.warning(busy_machine)
    if not state.fabric.is_global_zero:
        return
    config, workers = state.config, state.config.topology.workers
    _, count = state.contract.batch_share()
    accumulated = config.trainer.accumulate_grad_batches
    local = -(-config.batch_size // (count * accumulated))
    parts = f" in {accumulated} parts" if accumulated > 1 else ""
    who = f"{workers}{' virtual' * (config.worker_processes < workers)} worker{'s' * (workers > 1)}"
    if state.resumed_from is None:
        log.info("run folder: %s", shorten_path(state.run_dir))
    found.announce(state.data.found, state.run_dir)
    log.info(
        "%s on %s, %s%s, batch %d (%d a worker%s), %d steps an epoch, %d in all, %s parameters",
        who, state.fabric.device.type, threads.current(), " each" * (workers > 1), config.batch_size, local, parts,
        state.steps_per_epoch, state.total_steps, f"{parameters:,}",
    )  # fmt: skip
    batch, most = state.data.batch_and_most
    if most is not None and batch > most:
        text = "a batch of %s (batch_size) is more than the %s training samples: a step takes them all"
        log.warning(text, f"{batch:,}", f"{most:,}")
    if state.resumed_from is not None:
        log.info("goes on from %s: epoch %d, step %d", state.resumed_from, state.epoch + 1, state.step)
    if workers > 1:
        kind = "over all workers" if config.trainer.sync_batchnorm else "of each worker's own share"
        if any("BatchNorm" in type(module).__name__ for module in state.task.modules()):
            log.info("batch normalization: statistics %s (trainer.sync_batchnorm)", kind)


def summarize(state: RunState, status: str, throughput: float, communication: dict[str, float]) -> dict[str, Any]:
    """Everything worth keeping of a run, in plain values."""
    times = state.times

    def relative(path: Path) -> str:
        return str(path.relative_to(state.run_dir))

    sessions = merge_sessions(state.earlier_sessions, [state.session_record()])
    if not times.steps and sessions:  # all was trained before this session, which has only tested it
        throughput = sessions[-1]["samples_per_second"]
    good = goodput(sessions)
    ranking = state.callbacks.get("checkpoint")
    best = ranking.best if isinstance(ranking, RankingCallback) else []
    return {
        "status": status,
        "metrics": dict(state.metrics),
        "samples_per_second": throughput,
        "sessions": sessions,
        "totals": totals(sessions),
        "goodput": good.as_dict() if good is not None else None,
        "step_time": times.summary(),
        "communication": communication,
        "stragglers": state.stragglers.found,
        "steps": state.step,
        "epochs": state.epoch,
        "samples": state.samples,
        "world_size": state.fabric.world_size,
        "device": state.fabric.device.type,
        "threads": threads.current().count,
        "threads_from": threads.current().source,
        "stop_reason": state.stop_reason,
        "best": [
            {"value": value, "checkpoint": relative(checkpoints.path_of(state.run_dir, step))} for value, step in best
        ],
        "last_checkpoint": relative(state.last_checkpoint) if state.last_checkpoint else None,
        "resumed_from_step": checkpoints.step_of(state.resumed_from) if state.resumed_from else None,
        "bad_samples": list(state.data.bad_samples),
        "partition_orders": state.data.partition_orders,
        "seed": state.config.seed,
        "tags": state.config.tags,
        "versions": versions(),
    }


def finish(state: RunState, status: str) -> None:
    """summary.json; the sweep's row in TensorBoard. Every worker must call it."""
    sent, throughput = state.communication_sums(StepTimes()), state.throughput()
    if not state.fabric.is_global_zero:
        return
    summary = summarize(state, status, throughput, _totals(sent))
    planned = planned_beside_measured(state.config, state.times)
    if planned is not None:
        summary["plan"] = planned
        values = {f"plan/{name}": value for name, value in planned.items() if isinstance(value, float)}
        for logger in state.fabric.loggers:
            call_logger(logger, logger.log_metrics, values, state.step)
    write_summary(state.run_dir, summary)
    if status == "done" and not state.config.trainer.fast_dev_run:
        _log_hyperparameters(state)
    finalize_loggers(state, "success")
    log.info("%s: %d steps, %d samples, %s", status, state.step, state.samples, state.run_dir)


def finalize_loggers(state: RunState, status: str) -> None:
    """Close what the loggers have open.

    Args:
        status: "success", or "failed" of a run that ends with an exception, as Lightning's Trainer calls them.
    """
    if state.fabric.is_global_zero:
        for logger in state.fabric.loggers:
            call_logger(logger, logger.finalize, status)


def _totals(sent: dict[str, float]) -> dict[str, float]:
    """What all workers have sent since the training (or its resumption) began, and the mean a worker and step."""
    if not sent:
        return {}
    steps = max(1.0, sent["steps"])
    return {
        "bytes": sent["comm/bytes"],
        "inter_node_bytes": sent["comm/inter_node_bytes"],
        "bytes_a_step_and_worker": sent["comm/bytes"] / steps,
        "inter_node_bytes_a_step_and_worker": sent["comm/inter_node_bytes"] / steps,
        "exposed_ms_a_step": sent["comm/exposed_ms"] / steps,
    }


def _log_hyperparameters(state: RunState) -> None:
    config = state.config
    name, parameters, differ = title(config, state.run_dir), hyperparameters(config), varied_names(config.composition)
    for logger in state.fabric.loggers:
        if isinstance(logger, LoggerContract):
            call_logger(logger, logger.log_final, name, parameters, differ, _columns(state))


def _columns(state: RunState) -> list[str]:
    """Metrics by which runs are compared: what the best checkpoints are kept by, then validation, test, training."""
    checkpoints = state.config.callbacks.get("checkpoint")
    monitor = checkpoints.arguments.get("monitor") if checkpoints is not None else None
    phases = ("val", "test", "train")
    names = [name for phase in phases for name in sorted(state.metrics) if name.split("/")[0] == phase]
    return sorted(names, key=lambda name: name != monitor)


def _evaluates(state: RunState) -> bool:
    return any(overrides(state.task, step) for step in ("validation_step", "test_step"))


def print_end(state: RunState) -> None:
    """The final table, from summary.json, and the next commands."""
    if not state.fabric.is_global_zero:
        return
    summary = read_summary(state.run_dir)
    table = Table(show_header=False)
    for name, value in sorted(summary["metrics"].items()):
        if "/" in name and not name.startswith(("time/", "comm/", "workers/", "leyden/")):
            table.add_row(name, f"{value:.5g}")
    table.add_row("samples/s", f"{summary['samples_per_second']:.0f}")
    sessions, whole_time = summary["sessions"], summary["totals"]
    if len(sessions) > 1:
        samples, seconds = whole_time["samples"], whole_time["train_seconds"]
        table.add_row(f"over {len(sessions)} sessions", f"{samples} samples in {seconds:.1f} s")
    good = goodput(sessions)
    if good is not None:
        table.add_row("goodput", str(good))
    times = summary["step_time"]
    whole = times["total"] or 1.0
    shares = ", ".join(f"{part} {100 * seconds / whole:.0f} %" for part, seconds in times.items() if part != "total")
    table.add_row("time in steps", f"{times['total']:.1f} s: {shares}")
    if summary["communication"]:
        sent = summary["communication"]
        inside, outside = sent["bytes_a_step_and_worker"], sent["inter_node_bytes_a_step_and_worker"]
        table.add_row("sent a step by a worker", f"{inside / 1e6:.4g} MB, between nodes {outside / 1e6:.4g} MB")
    if state.data.bad_samples:
        table.add_row("unreadable samples", str(len(state.data.bad_samples)))
    Console(soft_wrap=True).print(table)
    weak = not_learned(summary["metrics"], state.data.found, state.config)
    if weak is not None and not state.config.trainer.fast_dev_run:
        log.warning("%s", weak)
    name = shorten_path(state.run_dir)
    log.info("next:  leyden view %s    # TensorBoard", name)
    if summary["status"] != "done":
        log.info("       leyden resume %s", name)
    elif state.last_checkpoint is not None and _evaluates(state):
        log.info("       leyden eval %s", name)
    if summary.get("plan"):
        log.info("%s", planned_line(summary["plan"]))
