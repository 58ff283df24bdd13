"""The files of examples/clusters work on one machine."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
import yaml

import daskprep as dp

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "examples" / "clusters"
SCRIPTS = Path(sys.executable).parent

# A fake SLURM: jobs are processes of this machine.
SBATCH = """#!/usr/bin/env bash
tasks=1
for word in "$@"; do case "$word" in --ntasks=*) tasks="${word#--ntasks=}" ;; esac; done
export SLURM_JOB_ID=$$ SLURM_NTASKS="$tasks"
echo "Submitted batch job $$"
cp "${@: -1}" "job-$$.sh"
nohup setsid bash "job-$$.sh" > "slurm-$$.out" 2>&1 &
echo $! > "job-$$.pid"
"""
SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
for ((task = 0; task < SLURM_NTASKS; task++)); do SLURM_PROCID=$task "$@" & done
wait
"""
SCANCEL = """#!/usr/bin/env bash
for job in "$@"; do kill -- "-$(cat "job-$job.pid")"; done
"""


@pytest.fixture
def sales(tmp_path: Path) -> dict[str, str]:
    """Write two small files, and return the environment of a run on them."""
    for part in range(2):
        rows = {"city": ["Oslo", "Rome"] * 50, "price": range(part, part + 100), "sold": ["yes", "no"] * 50}
        pd.DataFrame(rows).to_parquet(tmp_path / f"{part}.parquet")
    paths = {"SOURCE": f"{tmp_path}/*.parquet", "TARGET": f"{tmp_path}/sales.dp", "PYTHON": sys.executable}
    return {**os.environ, **paths, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def slurm(tmp_path: Path, sales: dict[str, str]) -> dict[str, str]:
    """Prepend fake SLURM commands, which run on this machine, to the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scancel", SCANCEL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**sales, "PATH": f"{folder}:{SCRIPTS}:{sales['PATH']}"}


def check_written(environment: dict[str, str]) -> None:
    """Check that the dataset has the same bytes as one written with threads."""
    assert len(dp.open_dataset(environment["TARGET"])["train"]) == 140
    local = {**environment, "TARGET": environment["TARGET"] + "-local"}
    subprocess.run([sys.executable, CLUSTERS / "preprocess.py"], env=local, check=True, timeout=600)
    written, expected = (Path(one["TARGET"], "manifest.json").read_bytes() for one in (environment, local))
    assert written == expected


def run(environment: dict[str, str], folder: Path) -> str:
    """Run the script as users do, and return what it prints."""
    command = [sys.executable, CLUSTERS / "preprocess.py"]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.cluster
def test_slurm_allocation_writes_the_dataset(slurm, tmp_path):
    # The script refers to itself by its path in the repository.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    batch = ["sbatch", "--ntasks=3", str(CLUSTERS / "slurm" / "allocation.sbatch")]
    output = subprocess.run(batch, env=slurm, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    job = output.split()[-1]
    subprocess.run(
        ["tail", "--pid", (tmp_path / f"job-{job}.pid").read_text().strip(), "-f", "/dev/null"], timeout=600, check=True
    )
    assert "1 worker(s)" in (tmp_path / f"slurm-{job}.out").read_text()
    check_written(slurm)


@pytest.mark.slow
@pytest.mark.cluster
def test_slurm_job_workers_write_the_dataset(slurm, tmp_path):
    printed = run({**slurm, "CLUSTER": "slurm-jobs", "WORKERS": "1"}, tmp_path)
    assert "1 worker(s)" in printed
    check_written(slurm)


@pytest.fixture
def ssh_host(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Serve SSH on the loopback address: commands of the holder of the key run here."""
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    config = tmp_path / "home" / ".ssh"
    key.write_private_key(config / "key")
    key.write_public_key(config / "authorized")
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    async def handle(process: Any) -> None:
        shell = await asyncio.create_subprocess_shell(
            process.command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        await process.redirect(stdout=shell.stdout, stderr=shell.stderr)
        try:
            # The output of the command is sent first: after `exit` it would close the whole connection.
            await process.stdout.drain()
            await process.stderr.drain()
            process.exit(await shell.wait())
        finally:
            if shell.returncode is None:
                shell.kill()
                await shell.wait()
            shell._transport.close()  # child processes may still hold its pipes

    served: queue.Queue[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        authorized, stop = str(config / "authorized"), asyncio.Event()
        async with asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[host_key], authorized_client_keys=authorized, process_factory=handle
        ) as server:
            served.put((server.get_port(), asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    port, loop, stop = served.get(timeout=60)
    public = host_key.export_public_key().decode()
    (config / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    (config / "config").write_text(
        f"Host 127.0.0.1\n  Port {port}\n  IdentityFile {config}/key\n  UserKnownHostsFile {config}/known_hosts\n"
    )
    yield {"HOME": str(config.parent)}
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)


@pytest.mark.slow
@pytest.mark.cluster
def test_ssh_workers_write_the_dataset(ssh_host, sales, tmp_path):
    printed = run({**sales, **ssh_host, "CLUSTER": "ssh", "WORKERS": "127.0.0.1"}, tmp_path)
    assert "1 worker(s)" in printed
    check_written(sales)


def strict(schema: Any) -> Any:
    """Reject fields that a resource does not have, which Kubernetes ignores."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(found.get("properties"), dict) and "x-kubernetes-preserve-unknown-fields" not in found:
        found.setdefault("additionalProperties", False)
    if found.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    return found


@pytest.mark.slow
def test_kubernetes_manifest_matches_the_operator_schema():
    folder = files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator/crds"
    definition = yaml.safe_load((folder / "daskjob.yaml").read_text())
    schema = strict(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
    manifest = yaml.safe_load((CLUSTERS / "kubernetes" / "preprocess.yaml").read_text())
    checker = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in checker.iter_errors(manifest)] == []
    manifest["spec"]["job"]["spec"]["containers"][0]["imagee"] = "typo"
    assert list(checker.iter_errors(json.loads(json.dumps(manifest))))


@pytest.mark.parametrize(
    ("tool", "file"), [("shellcheck", "slurm/allocation.sbatch"), ("hadolint", "kubernetes/Dockerfile")]
)
def test_linters_pass(tool, file):
    command = shutil.which(tool, path=f"{SCRIPTS}:{os.environ['PATH']}")
    assert command is not None
    done = subprocess.run([command, CLUSTERS / file], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout


def test_dockerfile_copies_existing_files_and_pins_torch():
    text = (CLUSTERS / "kubernetes" / "Dockerfile").read_text()
    for line in text.splitlines():
        if line.startswith("COPY "):
            assert all((ROOT / one).exists() for one in line.split()[1:-1]), line
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert pinned in text
