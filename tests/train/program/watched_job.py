"""A run of the tiny model under a watchdog of short limits, and what is asked of how it ended."""

import os
import pathlib
import re
import signal
import tempfile
import time

import harness
import tiny_run
from stop_test import wait_for_steps

LIMIT_S, LATE_S, HARD_LIMIT_S = 2, 10, 240  # of the watchdog under test; after it, on however busy a machine; of a job that should have ended
TOLD_S, GONE_S = 0.5, 1.5  # the measures: after the limit, to the line that names a stopped rank; from a kill, to the end of the last process
LOST, INTERNAL, DISAGREE = 69, 70, 72


def state(pid):
    """The letter of /proc/PID/stat; X where there is none."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "X"


class Job:
    """One run of the tiny model in a folder of its own."""

    def __init__(self, train, ranks, fault="", sets=None, on_start=None, wrapper=(), watch_s=LIMIT_S, btl="self,vader", flags=(), resumes=False, is_quiet=True):
        with tempfile.TemporaryDirectory(prefix="watchdog.") as folder:
            config = tiny_run.write_files(folder)
            values = {"train__steps": 100000, "train__deterministic": True, **{f"watchdog__{k}_s": watch_s for k in ("init", "first_step", "step", "checkpoint")}}
            arguments = [train, config, *tiny_run.options(**{**values, **(sets or {})})]
            self.metrics = pathlib.Path(folder, "out", "metrics.jsonl")
            self.limit_s, before = watch_s, harness.unused_segments()
            command = [btl if word == "self,vader" else word for word in harness.launch(ranks, arguments)]
            command[1:1] = flags  # of mpirun
            command = [word for word in command if is_quiet or word != "-q"]
            env = {"TRAIN_FAULT": fault, "OMP_NUM_THREADS": "1"}
            self.result = harness.run([*wrapper, *command], HARD_LIMIT_S, cwd=folder, env=env,
                                      on_start=(lambda process: on_start(self, process)) if on_start else None)
            self.left = harness.unused_segments() - before
            if resumes:
                self.resumed = harness.run([*command, "--set", "checkpoint.every=200", "--resume", "latest"], HARD_LIMIT_S, cwd=folder, env={**env, "TRAIN_FAULT": ""})
            self.records = sorted(p.name for p in pathlib.Path(folder, "out", "flight").glob("*"))
            self.record = {p.name: p.read_text() for p in pathlib.Path(folder, "out", "flight").glob("*") if p.is_file()}

    def lines(self, kind="error"):
        return [line for line in self.result.err.splitlines() if line.startswith(f"train: {kind}: ")]

    def ages(self):
        """How long a rank had given no sign when that was told."""
        return [float(age) for line in self.lines() for age in re.findall(r"(?:answering|still for) ([\d.]+) s ", line)]

    def has_mpirun_died(self):
        return self.result.code == -signal.SIGSEGV

    def problems(self, code, says, leaves_segments=False, is_start=False):
        """Whether the job has ended with this code, nothing left, and one line that says all this. While the job starts, Open MPI's mpirun
        now and then dies of a segmentation fault of its own when a rank ends, and ranks that end within MPI_Init may leave its segments."""
        mpirun_died = is_start and self.has_mpirun_died()
        left = {path for path in self.left if not (is_start and path.name.startswith("vader_segment."))}
        late = [age for age in self.ages() if age > self.limit_s + LATE_S]
        found = [] if self.result.code == code or mpirun_died else [f"exit code {self.result.code}, expected {code}"]
        found += ["did not end in time"] if self.result.timed_out else []
        found += [f"{len(self.result.orphans)} processes were left running"] if self.result.orphans else []
        found += [f"left in /dev/shm: {left}"] if left and not leaves_segments else []
        found += [f"left in TMPDIR: {self.result.files}"] if self.result.files and not mpirun_died else []
        found += [f"told after {late[0]} s, with a limit of {self.limit_s} s"] if late else []
        errors = self.lines()
        if len(errors) != (1 if says else 0):
            found.append(f"{len(errors)} error lines")
        for line in errors[:1]:
            found += [f"the line does not say /{word}/: {line}" for word in says if not re.search(word, line)]
            found += [f"the line has {len(line.encode())} bytes, more than 300"] if len(line.encode()) > 300 else []
            found += ["the line does not say what to do"] if not re.search(r"(\)|rank \d+): \S", line) else []
        return found

    def record_problems(self, ranks, reason):
        """Whether every rank's record is there, and says why."""
        begin = rf"zshard flight record 1\nreason {reason}.*\nrank (\d+) of {ranks}\n"
        wrong = [name for name, text in self.record.items() if not (m := re.match(begin, text)) or name != f"rank-{m[1]}.txt"]
        found = [] if self.records == [f"rank-{r}.txt" for r in range(ranks)] else [f"records: {self.records}"]
        return found + [f"{name} does not begin with its format, /{reason}/ and its rank: {self.record[name][:200]}" for name in wrong]


def print_times(report, name, count, seconds, what, measure_s, is_long):
    print(f"{name}: {len(seconds)} of {count}, {max(seconds, default=0):.2f} s {what} at most")
    late = [s for s in seconds if s > measure_s]
    if is_long:
        report.case(f"{name}: within {measure_s} s but for {len(late)}", [f"late: {late}"] if 10 * len(late) > count else [])


def signal_rank(rank, draw, number, moment):
    """For `on_start`: sends a rank a signal while it trains, at a moment drawn at random, which is noted."""
    def send(job, process):
        wait_for_steps(job.metrics, 3)
        time.sleep(draw.uniform(0, 0.3))
        # Their environment says which they are.
        pids = {int(re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", pathlib.Path(f"/proc/{p}/environ").read_bytes()).group(1)): p for p in harness.children(process.pid)}
        moment["pids"], moment["sent"] = list(pids.values()), time.monotonic()
        os.kill(pids[rank], number)
    return send
