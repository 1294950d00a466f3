"""Accounts and qualities of service of a Slurm with slurmdbd over MariaDB, which enforces both.

apt-get install slurmdbd mariadb-server && pytest -m campaign tests/campaign/test_slurm_accounts.py
"""

import random
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from runs import metrics, summary, wait_until
from slurm_cluster import NEEDS_SLURM, SlurmCluster
from slurm_runs import ONE_NODE, job_of, submitted, submitting_from
from typing_extensions import override

from leyden.trainer.cli.main import main

PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb", "mariadb-install-db")
pytestmark = [
    pytest.mark.campaign,
    NEEDS_SLURM,
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="needs slurmdbd and mariadb-server"),
]

ENFORCED = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/socket
AccountingStorageEnforce=associations,qos
"""
DATABASE = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


class AccountedCluster(SlurmCluster):
    """The cluster with a database of its own, that listens on a socket in its folder alone."""

    @override
    def _start_slurm(self, attempts: int = 5) -> None:
        self._port = random.randrange(32000, 32700)
        database = self.folder / "database"
        self._socket = database / "socket"
        database.mkdir()
        shutil.chown(database, "mysql", "mysql")
        install = ["mariadb-install-db", "--user=mysql", f"--datadir={database}", "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True)
        words = [
            f"--datadir={database}",
            f"--socket={self._socket}",
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
        ]
        self._daemon("mariadbd", ["mariadbd", "--no-defaults", *words], user="mysql")
        wait_until(self._socket.exists)
        sql = "CREATE USER slurm@localhost IDENTIFIED BY 'slurm'; GRANT ALL ON slurm.* TO slurm@localhost;"
        subprocess.run(["mariadb", f"--socket={self._socket}", "-e", sql], check=True)
        settings = self.folder / "slurmdbd.conf"
        settings.touch(mode=0o600)
        settings.write_text(DATABASE.format(folder=self.folder, port=self._port))
        self.environment["MYSQL_UNIX_PORT"] = str(self._socket)
        self.config.write_text(self._configured(random.sample(range(20000, 32000), 3)))
        self._daemon("slurmdbd", ["slurmdbd", "-D"])
        wait_until(lambda: self._answers() or self._died())
        self._account(f"add cluster {self.name}")
        self._account("add account lab")
        self._account("add qos calm")
        self._account("add user root account=lab qos=normal,calm defaultaccount=lab")
        super()._start_slurm(attempts)

    @override
    def _configured(self, ports: Sequence[int]) -> str:
        return super()._configured(ports) + ENFORCED.format(folder=self.folder, port=self._port)

    @override
    def stop(self) -> None:
        super().stop()
        for name in ("slurmdbd", "mariadbd"):
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("localhost", self._port)) == 0

    def _account(self, words: str) -> None:
        command = ["sacctmgr", "--immediate", *words.split()]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def accounted() -> Iterator[AccountedCluster]:
    cluster = AccountedCluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def here(accounted: AccountedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLURM_CONF", str(accounted.config))
    return submitting_from(tmp_path, monkeypatch)


def test_a_run_has_its_account_and_quality_of_service(accounted: AccountedCluster, here: Path) -> None:
    words = ["topology.slurm.account=lab", "topology.slurm.qos=calm", "topology.slurm.comment=a b"]
    run_dir, job = submitted(here, *ONE_NODE, *words)
    ended = accounted.ended(job)
    assert (ended["JobState"], ended["Account"], ended["QOS"]) == ("COMPLETED", "lab", "calm")
    assert summary(run_dir)["status"] == "done"
    assert metrics(run_dir)["val/acc"] > 0
    assert job_of(run_dir) == job


@pytest.mark.parametrize(("key", "value"), [("account", "other"), ("qos", "hectic")])
def test_what_the_user_may_not_use_is_one_error_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    run_dir = here / "run"
    assert main([*ONE_NODE, f"topology.slurm.{key}={value}", f"hydra.run.dir={run_dir}"]) == 2
    error = capsys.readouterr().err
    assert f"topology.slurm.{key}" in error
    assert value in error
    assert "sacctmgr show" in error
    assert not run_dir.exists()
