#!/usr/bin/env python3
"""No silent hang: whatever becomes of one rank, the job ends, or goes on, with one line that names it, and leaves nothing running or lying. The
times that it took are printed; those fail that come LATE_S after their limit, and with --long more than a tenth that miss the measure of the fault.
IDs such as P4 name the fault, see docs/reliability.md.
Usage: watchdog_test.py TRAIN [--long] [WORD ...]   (only the cases whose names have one of the words)"""

import os
import pathlib
import random
import re
import signal
import sys
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

    def problems(self, code, says, leaves_segments=False, is_start=False):
        """Whether the job has ended with this code, nothing left, and one line that says all this. While the job starts, Open MPI's mpirun
        now and then dies of a segmentation fault of its own when a rank ends, and ranks that end within MPI_Init may leave its segments."""
        mpirun_died = is_start and self.result.code == -signal.SIGSEGV
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


# Where a rank stops: fault point, the hit that counts, what the line says of the place, further settings.
PLACES = [
    ("compute", 41, r"step \d+", {}),
    ("comm.op", 301, r"step \d+, in \w+\(.*\) .*#\d+", {}),
    ("data.load", 31, r"step \d+, in reading data", {}),
    ("ckpt.write", 3, r"checkpoint \d+, in writing a checkpoint", {"checkpoint__every": 3}),
    ("init", 1, "in init", {}),
    ("agree", 1, "in init", {}),
    ("finalize", 1, "in end", {"train__steps": 5}),
    ("finalized", 1, "in end", {"train__steps": 5}),
    ("step", 1, "in first step 1", {}),
]


def print_times(report, name, count, seconds, what, measure_s, is_long):
    print(f"{name}: {len(seconds)} of {count}, {max(seconds, default=0):.2f} s {what} at most")
    late = [s for s in seconds if s > measure_s]
    if is_long:
        report.case(f"{name}: within {measure_s} s but for {len(late)}", [f"late: {late}"] if 10 * len(late) > count else [])


def stopped_ranks(train, report, count, is_long):
    """P4, `count` times: places, ranks, numbers of ranks and transports take turns."""
    draw, ages = random.Random(4), []
    for i in range(count):
        place, hit, where, sets = PLACES[i % len(PLACES)]
        ranks = (4, 4, 3, 8)[i % 4]
        culprit, transport = draw.randrange(ranks), ("shm", "mpi")[i // len(PLACES) % 2]
        job = Job(train, ranks, f"{place}@rank={culprit},hit={hit}:stop", {"comm__transport": transport, **sets})
        problems = job.problems(LOST, [rf"rank {culprit} stopped answering", r"host \S+, pid \d+, state T", where, r"; rank \d+ waits in "],
                                is_start=place == "init")
        if place not in ("init", "agree"):
            problems += job.record_problems(ranks, rf"rank {culprit} stopped answering ")
        said = job.ages()
        ages += said
        report.case(f"P4 stop {i}: rank {culprit} of {ranks} in {place} over {transport}, said after {said} s of {LIMIT_S}", problems, job.result)
    print_times(report, "P4: the line names the rank", count, ages, f"after its last sign, with a limit of {LIMIT_S} s,", LIMIT_S + TOLD_S, is_long)


def stopped_job(train, report):
    """P5: all ranks are stopped, as by a batch system, for longer than they wait for each other."""
    sets = {"train__steps": 60, "run__sample_tokens": 0}
    for transport in ("shm", "mpi"):
        def pause(job, process):
            wait_for_steps(job.metrics, 3)
            ranks = harness.children(process.pid)
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for rank in ranks:
                    os.kill(rank, number)
                time.sleep(5 if number == signal.SIGSTOP else 0)

        job = Job(train, 3, "step@rank=0:delay=100", {**sets, "comm__timeout_s": 3, "comm__transport": transport}, pause, watch_s=10)
        goes_on = [w for w in job.lines("warning") if re.search(r"rank \d did not run for \d\.\d s", w)]
        report.case(f"P5 all ranks stopped for 5 s, who wait for 3 s, over {transport}", job.problems(0, []) + ([] if goes_on else ["no warning"]), job.result)


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


def stop_rank(rank, draw, moment):
    """For `on_start`: like signal_rank() with SIGSTOP, and notes when the last rank has ended."""
    stop = signal_rank(rank, draw, signal.SIGSTOP, moment)

    def watch(job, process):
        stop(job, process)
        while any(state(pid) not in "XZ" for pid in moment["pids"]) and time.monotonic() < moment["sent"] + LIMIT_S + LATE_S:
            time.sleep(0.02)
        moment["ended"] = time.monotonic()
    return watch


def ranks_stopped_from_outside(train, report, count, is_long):
    """P4 by this program's clock: from the signal until the last rank has ended, which is after the line. They follow who tells by themselves, long
    before mpirun, which is told to be patient, kills them, and before they would give it up (after 5 s)."""
    draw, seconds, backoff_s = random.Random(14), [], 4
    for i in range(count):
        ranks, transport, moment = (4, 8)[i % 2], ("shm", "mpi")[(i + i // 2) % 2], {}
        culprit = i // 2 % ranks
        job = Job(train, ranks, "", {"comm__transport": transport}, stop_rank(culprit, draw, moment), flags=["--mca", "odls_base_sigkill_timeout", str(backoff_s)])
        problems = job.problems(LOST, [rf"rank {culprit} stopped answering", r"host \S+, pid \d+, state T", r"; rank \d+ waits in "])
        seconds.append(moment["ended"] - moment["sent"])
        problems += [f"ended {seconds[-1]:.1f} s after the signal"] if seconds[-1] > LIMIT_S + backoff_s else []
        report.case(f"P4 rank {culprit} of {ranks} is stopped from outside over {transport}: {seconds[-1]:.2f} s to the end, with a limit of {LIMIT_S} s", problems, job.result)
    print_times(report, "P4: jobs whose last rank ended", count, seconds, f"from SIGSTOP, with a limit of {LIMIT_S} s,", LIMIT_S + TOLD_S + GONE_S, is_long)


def starts(train, report, count, is_long):
    """P4 in init: ranks that have no connection yet agree who tells. A rank stops there, stands there, or does not come at all."""
    ages = []
    with tempfile.TemporaryDirectory(prefix="watchdog.") as folder:
        late = pathlib.Path(folder, "late")
        late.write_text(f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && exec sleep 1000\nexec {train} "$@"\n')
        late.chmod(0o755)
        for i in range(count):
            ranks = (4, 3, 8, 2)[(i + i // 4) % 4]
            culprit = (i // 4 + 1) % ranks
            program, fault, says = (
                (train, f"init@rank={culprit}:stop", [rf"rank {culprit} stopped answering [\d.]+ s ago in init", "state T"]),
                (train, f"init@rank={culprit}:delay=1000000", [rf"rank {culprit} has stood still for [\d.]+ s in init"]),
                (late, "", [r"rank 1 has stood still for [\d.]+ s at its start"]),
                (train, f"connected@rank={culprit}:delay=1000000", [rf"rank {culprit} has stood still for [\d.]+ s in init"]),
            )[i % 4]
            job = Job(program, ranks, fault)
            problems = job.problems(LOST, [*says, r"host \S+, pid \d+", r"; rank \d+ waits in MPI_(Init|Comm_split_type)"], is_start=True)
            ages += job.ages()
            report.case(f"P4 start {i} of {ranks} ranks: {fault or 'rank 1 does not come'}", problems, job.result)
    print_times(report, "P4: the line names the rank at the start", count, ages, f"after its last sign, with a limit of {LIMIT_S} s,", LIMIT_S + TOLD_S, is_long)


def lone_rank(train, report):
    """P4 without mpirun: there is nobody who waits, only the user."""
    job = Job(train, None, "compute@hit=41:delay=1000000")
    problems = job.problems(LOST, [r"rank 0 has stood still for [\d.]+ s in step \d+", r"host \S+, pid \d+"])
    problems += [] if job.records == ["rank-0.txt"] else [f"records: {job.records}"]
    report.case("P4 a rank alone stands in compute", problems, job.result)


def records_in_the_way(train, report):
    """A pipe or a file in the way of the records holds nothing up, and is named once."""

    def put_a_pipe(job, process):
        wait_for_steps(job.metrics, 1)
        (job.metrics.parent / "flight").mkdir()
        os.mkfifo(job.metrics.parent / "flight" / "rank-0.txt")

    def put_a_file(job, process):
        wait_for_steps(job.metrics, 1)
        (job.metrics.parent / "flight").write_text("")

    for what, ranks, action, put, code, says, warns in [
        ("by a rank alone", None, "delay=1000000", put_a_pipe, LOST, [r"rank 0 has stood still", r"in step \d+"], "is not written"),
        ("of a rank that stops", 3, "stop", put_a_pipe, LOST, [r"rank 0 stopped answering", r"in step \d+"], "is not written"),
        ("by a rank that throws", 3, "throw", put_a_pipe, INTERNAL, ["an exception", "rank 0"], "is not written"),
        ("anywhere", 3, "stop", put_a_file, LOST, [r"rank 0 stopped answering", r"in step \d+"], "Not a directory"),
    ]:
        job = Job(train, ranks, f"compute@rank=0,hit=301:{action}", on_start=put)
        problems = job.problems(code, says)
        warnings = [w for w in job.lines("warning") if warns in w]
        problems += [] if len(warnings) == 1 else [f"{len(warnings)} warnings of the records"]
        problems += [] if job.result.last_error_line().startswith("train: error: ") else ["the error line is not the last"]
        report.case(f"P4 records that cannot be written {what}", problems, job.result)


def resumed_rank(train, report):
    """P5: a rank that is stopped for a while and goes on changes nothing but for one warning."""
    sets = {"train__steps": 400, "run__sample_tokens": 0}
    expected = harness.weights_hash(Job(train, 3, "", sets).result.out)

    def pause(job, process):
        wait_for_steps(job.metrics, 3)
        rank = harness.children(process.pid)[1]
        os.kill(rank, signal.SIGSTOP)
        time.sleep(5)
        os.kill(rank, signal.SIGCONT)

    # Every step a little slower: the run outlasts the pause, and the delay of the warning.
    job = Job(train, 3, "step:delay=20", sets, pause, watch_s=10)
    problems = job.problems(0, [])
    warnings = [w for w in job.lines("warning") if "is slow" not in w]  # on a busy machine some rank may be that too
    problems += [] if len(warnings) == 1 and re.search(r"rank \d did not run for \d\.\d s", warnings[0]) else [f"warnings: {warnings}"]
    problems += [] if expected and harness.weights_hash(job.result.out) == expected else ["the weights are not those of the undisturbed run"]
    report.case("P5 a rank stopped for 5 s under a limit of 10 s", problems, job.result)


def killed_ranks(train, report, count, is_long):
    """P1: each rank in turn, over both transports; the last time mpirun leaves the others no moment to say so. The resumed run is as if nobody had
    been killed."""
    sets, slowly = {"train__steps": 100, "run__sample_tokens": 0, "checkpoint__every": 2}, "step@rank=0:delay=20"  # it does not end before the kill
    expected = harness.weights_hash(Job(train, None, "", {**sets, "checkpoint__every": 200}).result.out)
    draw, seconds, killed = random.Random(1), [], 128 + signal.SIGKILL
    for i in range(count + 1):
        ranks, transport, is_silent = (4, 8)[i % 2], ("shm", "mpi")[(i + i // 2) % 2], i == count
        victim, moment = i // 2 % ranks, {}
        flags = ["--mca", "odls_base_sigkill_timeout", "0"] if is_silent else []
        job = Job(train, ranks, slowly, {**sets, "comm__transport": transport}, signal_rank(victim, draw, signal.SIGKILL, moment), flags=flags, resumes=True)
        took = job.result.gone - moment["sent"]
        if is_silent:
            problems = [p for p in job.problems(killed, []) if "error lines" not in p]
        else:
            seconds.append(took)
            problems = job.problems(killed, [rf"rank {victim} has died in (step|checkpoint) \d+", r"host \S+, pid \d+", r"--resume latest"])
            problems += job.record_problems(ranks, rf"rank {victim} has died in ")
        problems += [f"the last process has ended {took:.1f} s after the kill"] if took > LATE_S else []
        problems += [] if expected and harness.weights_hash(job.resumed.out) == expected else [f"resumed, it is not the undisturbed run: {job.resumed}"]
        name = f"P1 rank {victim} of {ranks} is killed over {transport}{', and the others by mpirun at once' if is_silent else ''}"
        report.case(f"{name}: {took:.2f} s to the end", problems, job.result)
    print_times(report, "P1: jobs whose last process ended", count, seconds, "from the kill", GONE_S, is_long)


def killed_before_the_start(train, report):
    """P1 before the program begins in a rank: nothing is known of it but its process, and something that it has started has its environment."""
    with tempfile.TemporaryDirectory(prefix="watchdog.") as folder:
        dying = pathlib.Path(folder, "dying")
        dying.write_text(f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && {{ sleep 4 & sleep 2; kill -9 $$; }}\nexec {train} "$@"\n')
        dying.chmod(0o755)
        job = Job(dying, 3, watch_s=30)
        problems = job.problems(128 + signal.SIGKILL, [r"rank 1 has died at its start", r"host \S+, pid \d+"], is_start=True)
        report.case("P1 rank 1 of 3 is killed before its program begins", problems, job.result)


def ends_in_mpi(train, report):
    """MPI that cannot start ends its processes all at once, and mpirun -q keeps the reason to itself. A rank that waits in MPI_Init is killed there."""
    says = [r"rank \d has died in init, in MPI_Init", r"host \S+, pid \d+", "mpirun without -q shows why MPI could not start"]
    for ranks in (2, 3, 8):
        job = Job(train, ranks, watch_s=30, btl="self")
        problems = job.problems(1, says if job.lines() else [], is_start=True)  # whether a rank lives long enough to tell is chance
        report.case(f"P13 {ranks} ranks that cannot reach each other", problems, job.result)
    job = Job(train, 2, watch_s=30, btl="self", is_quiet=False)
    problems = job.problems(1, says if job.lines() else [], is_start=True)
    problems += [] if re.search("unable to reach|MPI_INIT has failed|MPI_ERRORS_ARE_FATAL", job.result.err) else ["Open MPI's own reason is missing"]
    report.case("P13 2 ranks that cannot reach each other, without -q", problems, job.result)

    def kill(job, process):
        time.sleep(2)
        os.kill(harness.children(process.pid)[-1], signal.SIGKILL)

    job = Job(train, 3, "init@rank=0:delay=5000", watch_s=30, on_start=kill)
    problems = job.problems(128 + signal.SIGKILL, [r"rank [012] has died in init", r"host \S+, pid \d+"], is_start=True)
    report.case("P1 a rank of 3 is killed in MPI_Init", problems, job.result)


def killed_jobs(train, report):
    def kill_all(job, process):
        wait_for_steps(job.metrics, 3)
        for pid in harness.children(process.pid):
            os.kill(pid, signal.SIGKILL)

    def kill_mpirun(job, process):
        wait_for_steps(job.metrics, 3)
        os.kill(process.pid, signal.SIGKILL)

    def stop_and_kill_mpirun(job, process):
        wait_for_steps(job.metrics, 3)
        os.kill(harness.children(process.pid)[0], signal.SIGSTOP)
        os.kill(process.pid, signal.SIGKILL)

    job = Job(train, 4, "", {}, kill_all)
    problems = [p for p in job.problems(128 + signal.SIGKILL, [], True) if "error lines" not in p]
    report.case("P3 all ranks are killed at once", problems + ([] if len(job.lines()) <= 1 else ["more than one error line"]), job.result)
    for name, kill in (("", kill_mpirun), (", one rank stopped", stop_and_kill_mpirun)):
        job = Job(train, 4, "", {}, kill)
        problems = [] if job.result.code == -signal.SIGKILL and not job.result.orphans else [f"exit code {job.result.code}, orphans {job.result.orphans}"]
        problems += [f"{len(job.lines())} error lines"] if len(job.lines()) > 1 else []
        problems += [f"left: {job.left}"] if job.left else []
        report.case(f"P3 mpirun is killed{name}", problems, job.result)
    report.case("P3 the next start works", Job(train, 4, "", {"train__steps": 3}).problems(0, []))


def ranks_that_end(train, report):
    """P10, O2: a rank that ends by itself."""
    # One thread: several that call exit() at once break in the C library itself before glibc 2.41.
    for name, which, where in (("without mpirun", "", {}), ("of three in one process", "rank=1,", {"comm__ranks": 3})):
        job = Job(train, None, f"step@{which}hit=5:exit=0", where)
        report.case(f"P10 step:exit=0, a rank {name}", job.problems(INTERNAL, [r"exit\(0\) was called before the end of the job", r"ranks? \d"]), job.result)
    died = [r"rank 1 has died in step 5", r"host \S+, pid \d+"]
    for point, action, code, says in (
        ("step@rank=1,hit=5", "throw", INTERNAL, [r"an exception", "rank 1"]),
        ("compute@rank=1,hit=33", "throw", INTERNAL, [r"an exception", "rank 1"]),  # on a stream's thread
        ("step@rank=1,hit=5", "abort", 128 + signal.SIGABRT, died),
        ("step@rank=1,hit=5", "segv", 128 + signal.SIGSEGV, died),
        ("step@rank=1,hit=5", "exit=0", INTERNAL, [r"exit\(0\) was called before the end of the job", "rank 1"]),
        ("step@rank=1,hit=5", "return", DISAGREE, [r"rank 1 has ended its part, rank \d waits for it in step 5 in (all_gather|publish)\(root\) .*#\d+"]),
    ):
        for transport in ("shm", "mpi"):
            job = Job(train, 3, f"{point}:{action}", {"comm__transport": transport})
            report.case(f"{'O2' if action == 'return' else 'P10'} {point}:{action} over {transport}", job.problems(code, says), job.result)


def mpirun_stopped(train, report):
    """A rank that ends the job asks mpirun for that, and does not wait for the answer for ever; nor do the others."""
    waited = {}

    def stop_for_a_while(job, process):
        wait_for_steps(job.metrics, 3)
        ranks = harness.children(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        while time.monotonic() - begin < HARD_LIMIT_S / 4 and not all(state(pid) in "ZX" for pid in ranks):
            time.sleep(0.05)
        waited["left"] = sum(state(pid) not in "ZX" for pid in ranks)
        os.kill(process.pid, signal.SIGCONT)

    job = Job(train, 3, "step:delay=20;step@rank=1,hit=150:throw", on_start=stop_for_a_while)
    code = LOST if job.result.code == LOST else INTERNAL  # of whichever rank mpirun, when it goes on, takes for the first that ended
    problems = job.problems(code, [r"an exception", "rank 1"], True)
    problems += [f"{waited['left']} ranks did not end by themselves"] if waited["left"] else []
    report.case("P10 throw while mpirun is stopped", problems, job.result)


def ranks_that_stand(train, report):
    """A rank whose process runs, but whose work does not go on; as a process and as a thread."""
    says = [r"rank 1 has stood still for [\d.]+ s in step \d+", r"; rank \d waits in"]
    fault = "compute@rank=1,hit=20:delay=1000000"
    report.case("a rank that computes for ever", (job := Job(train, 3, fault)).problems(LOST, says), job.result)
    job = Job(train, None, fault, {"comm__ranks": 3})
    report.case("a rank that computes for ever, ranks as threads", job.problems(LOST, says), job.result)
    # Slow is not still: four times the limit in one step, but never the limit in one operation.
    job = Job(train, 3, "compute@rank=1:delay=500", {"train__steps": 2, "train__global_batch": 48})
    report.case("a rank that is slow is left alone", job.problems(0, []), job.result)


def slow_ranks(train, report, is_long):
    """P6: a rank that is slower by 30 % of a step of 200 ms, or by 300 ms, is named within 20 steps; nobody is in 1000 steps without one, on a machine with nothing
    else to do."""
    slow = r"rank 1 is slow: in the last \d+ steps others waited for it \d+ % of the time"
    # Eight micro-batches a step. A machine with other work slows the other ranks too, so that the smaller delays are for the long leg.
    delays = [("its computing, by 320 ms", "compute@rank=1:delay=40"), ("its host, by 300 ms", "step@rank=1:delay=300")]
    if is_long:
        delays += [("its computing", "compute:delay=24;compute@rank=1:delay=8"), ("its host", "step:delay=200;step@rank=1:delay=60")]
    for name, fault in delays:
        for _ in range(3):
            job = Job(train, 3, fault, {"train__steps": 20, "run__sample_tokens": 0}, watch_s=30)
            warnings = job.lines("warning")
            problems = job.problems(0, []) + ([] if len(warnings) == 1 and re.search(slow, warnings[0]) else [f"warnings: {warnings}"])
            if not problems:
                break
        report.case(f"P6 a rank is slow in {name}: {warnings}", problems, job.result)
    for ranks in (2, 4, 8) if is_long else ():
        job = Job(train, ranks, "", {"train__steps": 1000, "run__sample_tokens": 0}, watch_s=30)
        report.case(f"P6 1000 steps, {ranks} ranks, nobody is slow", job.problems(0, []) + [f"a warning: {w}" for w in job.lines("warning")], job.result)


def places_to_run(train, report):
    """P13, P14, P15: numbers of ranks, networks, names and /dev/shm that a job must live with."""
    small = {"train__steps": 3, "model__layers": 1, "model__heads": 1, "model__width": 8, "model__context": 4, "run__sample_tokens": 0}
    for ranks in (1, 7, 16):
        job = Job(train, ranks, "", {**small, "train__global_batch": 2 * ranks}, watch_s=30)
        report.case(f"P13 {ranks} ranks", job.problems(0, []), job.result)
    job = Job(train, 7, "", {"train__steps": 3}, watch_s=30)
    report.case("P13 a batch that 7 ranks do not divide", job.problems(78, ["global_batch"]), job.result)
    if harness.in_namespace("-n", "-u", "-m") is None:
        print("P14, P15: skipped, no namespaces may be made here")
        return
    few = {"train__steps": 3, "run__sample_tokens": 0}
    reference = harness.weights_hash(Job(train, 3, "", few, watch_s=30).result.out)
    wrappers = [
        ("P14 no network but lo", "-n", "ip link set lo up"),
        ("P14 no IPv4 but lo's", "-n", "ip link set lo up && ip link add eth0 type veth peer name eth1 && ip -6 address add fd00::1/64 dev eth0 nodad && ip link set eth0 up && ip link set eth1 up"),
        ("P14 an odd host name", "-u", 'hostname "a-0-odd.host-0123456789.of.many-letters"'),
        *[(f"P15 /dev/shm of {size}", "-m", f"mount -t tmpfs -o size={size} tmpfs /dev/shm") for size in ("1m", "64m")],
    ]
    for name, kind, prepare in wrappers:
        wrapper = [*harness.in_namespace(kind), "sh", "-c", prepare + ' && exec "$@"', "sh"]
        for transport in ("auto", "mpi"):
            job = Job(train, 3, "", {**few, "comm__transport": transport}, wrapper=wrapper, watch_s=30, btl="self,vader,tcp")
            problems = job.problems(0, [])
            is_warned, is_due = "zshard: /dev/shm has" in job.result.err, "of 1m" in name and transport == "mpi"
            problems += [] if is_warned == is_due else [f"the line about /dev/shm is {'missing' if is_due else 'there'}"]
            problems += [] if f"transport {'mpi' if transport == 'mpi' else 'shm'}," in job.result.out else ["another transport"]
            problems += [] if reference and harness.weights_hash(job.result.out) == reference else ["the weights are not those of the plain run"]
            report.case(f"{name}, transport {transport}, {job.result.seconds:.1f} s", problems, job.result)


def no_loopback(report):
    """P14: where lo is down Open MPI starts nothing; ./setup says so before it does anything."""
    inside = harness.in_namespace("-n")
    if inside is None:
        return print("P14 lo is down: skipped, no namespaces may be made here")
    setup = pathlib.Path(__file__).resolve().parents[3] / "setup"
    for mode in ("train", "test"):
        result = harness.run([*inside, setup, mode], timeout_s=10)  # before anything is built
        is_said = result.err.startswith("setup: error: the network device lo is down") and result.err.count("\n") == 1
        report.case(f"P14 ./setup {mode} where lo is down", [] if is_said and result.code == 1 else ["exit 1 and one line about lo expected"], result)


def main():
    train, is_long = pathlib.Path(sys.argv[1]).resolve(), "--long" in sys.argv[2:]
    words = [a for a in sys.argv[2:] if a != "--long"]
    harness.become_subreaper()
    report = harness.Report()
    parts = {
        "stop": lambda: stopped_ranks(train, report, 100 if is_long else 9, is_long),
        "outside": lambda: ranks_stopped_from_outside(train, report, 12 if is_long else 2, is_long),
        "start": lambda: starts(train, report, 48 if is_long else 4, is_long),
        "kill": lambda: killed_ranks(train, report, 30 if is_long else 4, is_long),
        "dying": lambda: killed_before_the_start(train, report),
        "mpi": lambda: ends_in_mpi(train, report),
        "job": lambda: killed_jobs(train, report),
        "alone": lambda: lone_rank(train, report),
        "records": lambda: records_in_the_way(train, report),
        "resume": lambda: resumed_rank(train, report),
        "suspend": lambda: stopped_job(train, report),
        "end": lambda: ranks_that_end(train, report),
        "waits": lambda: mpirun_stopped(train, report),
        "stand": lambda: ranks_that_stand(train, report),
        "slow": lambda: slow_ranks(train, report, is_long),
        "place": lambda: places_to_run(train, report),
        "loopback": lambda: no_loopback(report),
    }
    for name, part in parts.items():
        if (words and name in words) or (not words and (not is_long or name in ("stop", "outside", "start", "kill", "slow"))):
            part()
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
