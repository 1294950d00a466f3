"""The GPU battery on the CPU: its file of results, how a call is resumed, and the checks that a CPU can make."""

import gzip
import json
import signal
import time
from collections.abc import Callable
from importlib.metadata import distributions, version
from pathlib import Path

import figures
import gpu_1_correctness
import gpu_2_ranks
import gpu_3_speed
import pytest
import torch
from gpu_battery import Checks, Outcome, Skipped, figures_of, lines_of, run_checks
from gpu_trace import exposed_seconds
from gpu_wheels import missing, names_in
from lightning.fabric.accelerators.cuda import CUDAAccelerator
from machines import topology_config
from packaging.utils import canonicalize_name

from leyden.trainer.diagnostics.preflight.devices import shared_devices
from leyden.trainer.engine.shared_gpu import SharedCUDA


def failing() -> Outcome:
    raise RuntimeError("no such kernel")


def skipped() -> Outcome:
    raise Skipped("no GPU")


CHECKS: Checks = {
    "good": lambda: Outcome(1e-12, 1e-9), "bad": lambda: Outcome(1.0, 1e-9), "figure": lambda: Outcome(3.0),
    "failing": failing, "skipped": skipped,
}  # fmt: skip


def test_a_line_for_each_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results/gpu.jsonl"
    yielded = list(run_checks(CHECKS, file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == yielded
    assert {line["check"]: line["ok"] for line in lines} == {
        "good": True, "bad": False, "figure": None, "failing": False, "skipped": None,
    }  # fmt: skip
    assert all({"check", "value", "limit", "ok", "seconds"} <= line.keys() for line in lines)
    assert "no such kernel" in lines[3]["text"]
    assert "RuntimeError" in capsys.readouterr().err


def test_a_call_goes_on_where_the_last_has_stopped(tmp_path: Path) -> None:
    file = tmp_path / "gpu.jsonl"
    assert list(run_checks(CHECKS, file, seconds=-1)) == []
    first = run_checks(CHECKS, file)
    next(first)
    next(first)
    first.close()
    with file.open("a") as lines:
        lines.write('{"check": "fig')  # killed in the middle of a line
        lines.write("\n")
    assert [line["check"] for line in run_checks(CHECKS, file)] == ["figure", "failing", "skipped"]
    assert list(run_checks(CHECKS, file)) == []
    assert [line["check"] for line in run_checks({**CHECKS, "bad": CHECKS["good"]}, file, again=True)] == [
        "bad",
        "failing",
    ]
    assert {line["check"]: line["ok"] for line in lines_of(file)}["bad"] is True


def never_ends() -> Outcome:
    try:
        time.sleep(60)
    except Exception:
        return Outcome(0.0, 0.0)  # as code that takes every error for its own
    return Outcome(0.0)


def test_a_check_without_an_end_has_failed_and_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_battery.CHECK_SECONDS", 0.2)
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0
    lines = list(run_checks({"hangs": never_ends, "good": CHECKS["good"]}, tmp_path / "gpu.jsonl"))
    assert [(line["ok"], line["text"]) for line in lines] == [(False, "no end after 0.2 s"), (True, "")]
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0) == before


def test_a_check_that_the_calls_end_cuts_off_is_left_to_the_next(tmp_path: Path) -> None:
    file = tmp_path / "gpu.jsonl"
    checks: Checks = {"good": CHECKS["good"], "long": never_ends, "figure": CHECKS["figure"]}
    assert [line["check"] for line in run_checks(checks, file, seconds=1.0)] == ["good"]
    assert [line["check"] for line in run_checks({**checks, "long": CHECKS["good"]}, file)] == ["long", "figure"]


def test_the_page_of_figures_shows_a_call_with_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(run_checks(CHECKS, tmp_path / "gpu.jsonl"))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "CAMPAIGN", tmp_path / "none")
    assert figures.page() == ""
    for name in ("gpu-1", "gpu-1-rehearsal"):
        content = figures_of(1, lines, f"Some GPU of {name}")
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    page = figures.page()
    assert page.count("GPU battery, call 1") == 1
    assert "Some GPU of gpu-1, 2" in page, "device and date"
    assert "| good | 1e-12 | 1e-09 | yes |  |" in page
    assert "| bad | 1 | 1e-09 | **no** |  |" in page
    assert "| figure | 3 |  |  |  |" in page
    assert "| failing |  |  | **no** | RuntimeError: no such kernel |" in page
    assert "skipped: no GPU" in page


@pytest.mark.parametrize("make", [gpu_1_correctness.checks, gpu_2_ranks.checks, gpu_3_speed.checks])
def test_a_rehearsal_has_checks_of_the_call(
    make: Callable[[str, bool], Checks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEYDEN_SHARE_GPU", raising=False)
    assert make("cpu", True).keys() <= make("cuda", False).keys()


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name",
    ["dropout masks: CPU = device, torch.bfloat16", "float64: CPU = device, lenet5", "resumed = uninterrupted, 32-true",
     "checkpoint of the CPU, resumed on the device", "no leak between steps 10 and 200"],
)  # fmt: skip
def test_checks_that_a_cpu_can_make(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(gpu_1_correctness.__file__).parent)
    assert gpu_1_correctness.checks("cpu", True)[name]().ok


def test_wheels_are_fetched_of_what_a_machine_lacks() -> None:
    here = {canonicalize_name(each.name) for each in distributions()}
    assert missing(here, "3.12") == {}
    lacks = {"hydra-core", "omegaconf", "antlr4-python3-runtime", "pydantic", "pydantic-core"}
    assert missing(here - lacks, "3.12") == {name: version(name) for name in lacks}
    assert names_in("torch==2.11.0\nPillow @ file:///x\n\nabsl-py, rich") == ["torch", "Pillow", "absl-py", "rich"]


def test_exposed_communication_of_a_trace(tmp_path: Path) -> None:
    """Of 85 us in collectives, of which two run at once, 10 are beside another kernel."""
    kernels = [("ncclAllReduce", 0, 60), ("gemm", 50, 40), ("ncclSend", 95, 25), ("ncclRecv", 100, 20)]
    events = [{"cat": "kernel", "name": name, "ts": begin, "dur": length} for name, begin, length in kernels]
    events.append({"cat": "cpu_op", "name": "nccl:all_reduce", "ts": 0, "dur": 1000})
    file = tmp_path / "rank-0.json.gz"
    with gzip.open(file, "wt") as stream:
        json.dump({"traceEvents": events}, stream)
    assert exposed_seconds(file) == pytest.approx(75e-6)


def test_workers_share_gpus_for_tests_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert SharedCUDA.get_parallel_devices(SharedCUDA.parse_devices(4)) == [
        torch.device("cuda", index) for index in (0, 1, 0, 1)
    ]
    assert issubclass(SharedCUDA, CUDAAccelerator)
    assert len(shared_devices(["a", "a"], ["here", "here"])) == 1
    monkeypatch.setenv("LEYDEN_SHARE_GPU", "1")
    assert shared_devices(["a", "a"], ["here", "here"]) == []


def test_a_config_with_more_workers_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from leyden.trainer.base.errors import ConfigError
    from leyden.trainer.compose import checks

    monkeypatch.setattr(checks, "gpu_count", lambda: 1)
    config = topology_config("topology.device.kind=cuda", "topology.devices_per_node=2", "strategy=ddp")
    with pytest.raises(ConfigError, match="has 1 GPU"):
        checks.check_values(config)
    monkeypatch.setenv("LEYDEN_SHARE_GPU", "1")
    checks.check_values(config)
