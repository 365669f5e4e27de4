#!/usr/bin/env python3
"""Training under a real Slurm (cluster.py): srun's ranks are mpirun's, to the bit; a job that is asked to stop, or that runs out of time, saves, exits with 75
and goes on when it is requeued; one clear line, and a code that a script sees, when a task is killed or srun was used wrongly.
Usage: slurm_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import os
import pathlib
import re
import signal
import sys
import tempfile
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "train" / "program"))

import harness  # noqa: E402
import tiny_run  # noqa: E402
from cluster import Cluster, Unavailable  # noqa: E402
from stop_test import wait_for_steps  # noqa: E402

LIMIT_S, USAGE, STOPPED, LOST, INTERNAL = 180, 64, 75, 69, 70
MPI, OTHER_MPI = ("pmi2", "pmix") if harness.is_mpich() else ("pmix", "pmi2")
SRUN = ("srun", "-Q", f"--mpi={MPI}", "--overlap")
SHORT = {"train__steps": 4, "train__deterministic": True, "run__sample_tokens": 0}
SLOW = {"TRAIN_FAULT": "data.load@rank=0:delay=100"}  # of every micro-batch


def command_in(folder, train, **values):
    return [train, tiny_run.write_files(folder), *tiny_run.options(**{**SHORT, **values})]


def run(cluster, folder, command, **options):
    return harness.run(command, LIMIT_S, cwd=folder, env={**cluster.env, **options.pop("env", {})}, **options)


def one_line_problems(result, codes, *words):
    errors = [line for line in result.err.splitlines() if line.startswith("train: error: ")]
    problems = [] if result.code in codes else [f"exit code {result.code}, expected {codes}"]
    problems += [] if len(errors) == 1 else [f"{len(errors)} error lines"]
    problems += [f"the line does not say /{word}/" for word in words if not re.search(word, " ".join(errors))]
    return problems + ([f"{len(result.orphans)} processes were left running"] if result.orphans else [])


def mpirun_hash(train, ranks):
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        return harness.weights_hash(harness.run(harness.launch(ranks, command_in(folder, train)), LIMIT_S, cwd=folder).out)


def same_bits(cluster, train, report):
    """srun -n 1, 2, 4 on one node, and -n 3 and 8 on two"""
    both = r"hier \(shm inside 2 hosts, mpi across\)"
    for ranks, nodes, transport in ((1, 1, "single"), (2, 1, "shm"), (4, 1, "shm"), (3, 2, both), (8, 2, both)):
        with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
            result = run(cluster, folder, [*SRUN, "-N", nodes, "-n", ranks, *command_in(folder, train)])
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        problems += [] if harness.weights_hash(result.out) == mpirun_hash(train, ranks) else ["other weights than mpirun's"]
        first = result.out.partition("\n")[0]
        problems += [] if ranks == 1 or re.search(rf"{ranks} ranks.*transport {transport}", first) else [f"the first line says otherwise: {first}"]
        problems += [] if ranks == 1 or "to stop and save: scancel --signal=USR1" in result.out else ["it does not say how to stop"]
        report.case(f"{ranks} ranks on {nodes} nodes", problems, result)


def threads_of_a_rank(cluster, train, report):
    """--cpus-per-task is obeyed without OMP_NUM_THREADS"""
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        command = ["env", "-u", "OMP_NUM_THREADS", *SRUN, "-n", 2, "-c", 1, *command_in(folder, train), "--dry-run"]
        result = run(cluster, folder, command)
    problems = [] if result.code == 0 and re.search(r"\b1 thread\b", result.out) else ["1 thread a rank expected"]
    report.case("threads of a rank", problems, result)


def killed_task(cluster, train, report):
    """a killed task: one line names the rank, and the script sees that it failed"""
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        def kill_rank_1(_):
            wait_for_steps(pathlib.Path(folder, "out", "metrics.jsonl"), 2)
            for pid in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    environment, name = (pid / "environ").read_bytes().split(b"\0"), (pid / "comm").read_text().strip()
                except OSError:
                    continue
                if name == train.name and b"SLURM_PROCID=1" in environment and f"SLURM_CONF={cluster.env['SLURM_CONF']}".encode() in environment:
                    os.kill(int(pid.name), signal.SIGKILL)

        result = run(cluster, folder, [*SRUN, "-n", 3, *command_in(folder, train, train__steps=100000)], on_start=kill_rank_1)
    report.case("a killed task", one_line_problems(result, (128 + signal.SIGKILL, LOST), "rank 1 has died in step"), result)


def failing_rank(cluster, train, report):
    """a rank that fails: its line is the last but Slurm's own, without Open MPI's text about MPI_Abort; where MPI cannot start, Open MPI's text is there"""
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        result = run(cluster, folder, [*SRUN, "-n", 3, *command_in(folder, train)], env={"TRAIN_FAULT": "step@rank=1,hit=2:throw"})
        codes = (INTERNAL, 128 + signal.SIGKILL) if harness.is_mpich() else (INTERNAL,)  # PMI 2 has the step killed
        problems = one_line_problems(result, codes, "an exception that TRAIN_FAULT asked for")
        report.case("a rank that fails", problems + (["Open MPI's text about MPI_Abort"] if "MPI_ABORT" in result.err else []), result)
        if harness.is_mpich():
            return
        result = run(cluster, folder, [*SRUN, "-n", 2, *command_in(folder, train), "--overwrite"], env={"OMPI_MCA_btl": "self"})
    report.case("MPI cannot start", [] if result.code == 1 and "unreachable" in result.err else ["exit 1 and Open MPI's text expected"], result)


def wrong_srun(cluster, train, report):
    """srun without what the build's MPI knows: the line names the right command"""
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        for mpi in ("none", OTHER_MPI):
            result = run(cluster, folder, ["srun", "-Q", f"--mpi={mpi}", "-n", 2, *command_in(folder, train)])
            report.case(f"srun --mpi={mpi}", one_line_problems(result, (USAGE,), f"srun --mpi={MPI} -n 2"), result)


def a_shell(cluster, train, report):
    """a shell of salloc, and a task of srun that is alone, are one process, which may start ranks of its own"""
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        alone = [*command_in(folder, train), "--overwrite"]
        train_here, mpirun_here = [*alone, "--set", "comm.ranks=2"], harness.launch(2, alone)
        wanted = mpirun_hash(train, 2)
        for name, command in (("salloc -n 4", ["salloc", "-Q", "-n", 4]), ("srun -n 1 of a shell", [*SRUN, "-n", 1, "sh", "-c", '"$@"', "sh"]),
                              ("mpirun in an allocation", ["salloc", "-Q", "-n", 2])):
            result = run(cluster, folder, [*command, *(mpirun_here if "mpirun" in name else train_here)])
            problems = [] if result.code == 0 and harness.weights_hash(result.out) == wanted else ["exit 0 and the weights of 2 ranks expected"]
            report.case(name, problems, result)


class BatchJob:
    """The script that docs/clusters.md begins with, as a job of two nodes, or any other text."""

    def __init__(self, cluster, folder, command, *options, text=None):
        script = pathlib.Path(folder, "job.sh")
        script.write_text(text or self.documented(command))
        self.cluster, self.output = cluster, pathlib.Path(folder, "job.out")
        result = cluster.command("sbatch", "--parsable", "-o", self.output, *options, script, cwd=folder, extra=SLOW)
        self.number, self.problem = result.stdout.strip(), result.stderr

    @staticmethod
    def documented(command):
        text = textwrap.dedent(re.search(r"(    #!/bin/bash\n(?:    .*\n)+)", (ROOT / "docs" / "clusters.md").read_text()).group(1))
        start = "build/train config.toml"
        assert text.count(start) == 1 and text.count("--mpi=pmix") == 1, text
        text = text.replace("--mpi=pmix", f"--mpi={MPI}")
        return text.replace(start, " ".join(map(str, command)))

    def field(self, name):
        shown = re.search(rf"\b{name}=(\S+)", self.cluster.command("scontrol", "show", "job", self.number).stdout)
        return shown.group(1) if shown else ""

    def wait(self, *states):
        deadline = time.monotonic() + LIMIT_S
        while self.field("JobState") not in states and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.field("JobState")

    def text(self):
        return self.output.read_text() if self.output.exists() else ""

    def __str__(self):
        return f"job {self.number} {self.problem}: {self.field('JobState')} {self.field('ExitCode')}\n{self.text()[-3000:]}"


def requeued(cluster, train, report):
    """the documented script: scancel --signal=USR1 saves and requeues, and the run goes on to the end with the same bits"""
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        job = BatchJob(cluster, folder, command_in(folder, train), "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=10")
        wait_for_steps(pathlib.Path(folder, "out", "metrics.jsonl"), 1)
        cluster.command("scancel", "--signal=USR1", job.number)
        problems = [] if job.wait("PENDING", "FAILED", "COMPLETED") == "PENDING" else ["the job was not requeued"]
        problems += [] if "train: stopped on request after step" in job.text() else ["the run does not say that it was stopped"]
        cluster.command("scontrol", "update", f"JobId={job.number}", "StartTime=now")  # else Slurm waits for two minutes
        problems += [] if job.wait("COMPLETED", "FAILED") == "COMPLETED" and job.field("ExitCode") == "0:0" else ["it did not go on to the end"]
        problems += [] if harness.weights_hash(job.text()) == mpirun_hash(train, 4) else ["other weights than without a stop"]
        report.case("stopped, requeued and gone on", problems, job)


def out_of_time(cluster, train, report):
    """--signal=USR1 before the time limit"""
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        text = BatchJob.documented(command_in(folder, train, train__steps=100000)).replace("scontrol requeue $SLURM_JOB_ID", "exit 75")
        begin = time.monotonic()
        job = BatchJob(cluster, folder, None, "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=1", "--signal=USR1@30", text=text)
        job.wait("FAILED", "TIMEOUT", "COMPLETED")
        problems = [] if job.field("ExitCode") == f"{STOPPED}:0" else [f"exit code {job.field('ExitCode')}"]
        problems += [] if time.monotonic() - begin < 70 else ["it came to the time limit"]
        report.case("the time limit", problems, job)


def job_array(cluster, train, report):
    """an array of jobs, each with a seed and a folder by its number"""
    with tempfile.TemporaryDirectory(prefix="slurm-test.") as folder:
        command = " ".join(map(str, [*SRUN, "-n", 2, *command_in(folder, train)]))
        own = "--set train.seed=$SLURM_ARRAY_TASK_ID --set run.dir=array-$SLURM_ARRAY_TASK_ID"
        job = BatchJob(cluster, folder, None, "--array=1-3", "--ntasks=2", "--cpus-per-task=1", "--time=5", text=f"#!/bin/bash\n{command} {own}\n")
        deadline = time.monotonic() + LIMIT_S
        runs = [pathlib.Path(folder, f"array-{number}", "model.safetensors") for number in (1, 2, 3)]
        while not all(path.exists() for path in runs) and time.monotonic() < deadline:
            time.sleep(0.2)
        missing = [path.parent.name for path in runs if not path.exists()]
        problems = [f"{missing} did not come to their ends"] if missing else []
        problems += [] if missing or len({path.read_bytes() for path in runs}) == 3 else ["two jobs have the same weights"]
        report.case("an array of jobs", problems, job)


CASES = (same_bits, threads_of_a_rank, killed_task, failing_rank, wrong_srun, a_shell, requeued, out_of_time, job_array)


def main():
    train, words, report = harness.begin(), sys.argv[2:], harness.Report()
    try:
        with Cluster() as cluster:
            for case in CASES:
                if not words or any(word in case.__name__ for word in words):
                    case(cluster, train, report)
    except Unavailable as reason:
        print(f"skipped: {reason}")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
