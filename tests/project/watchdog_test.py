#!/usr/bin/env python3
"""No silent hang: whatever becomes of one rank, the job ends, or goes on, with one line that names it, and leaves nothing running. The times
that it took are printed; only far larger ones fail. IDs such as P4 name the fault, see docs/reliability.md.
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
from stop_test import children, wait_for_steps

LIMIT_S, HARD_LIMIT_S = 2, 240  # of the watchdog under test; of a job that should have ended
LOST, INTERNAL, DISAGREE = 69, 70, 72


def segments():
    """Of shared memory in /dev/shm that no living process has: others may run jobs too."""
    used = set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= set(re.findall(r"/dev/shm/\S+", maps.read_text()))
        except OSError:
            continue
    return {p for p in pathlib.Path("/dev/shm").glob("*") if str(p) not in used}


class Job:
    """One run of the tiny model in a folder of its own."""

    def __init__(self, train, ranks, fault="", sets=None, on_start=None, wrapper=(), watch_s=LIMIT_S, btl="self,vader"):
        with tempfile.TemporaryDirectory(prefix="watchdog.") as folder:
            config = tiny_run.write_files(folder)
            values = {"train__steps": 100000, "train__deterministic": True, **{f"watchdog__{k}_s": watch_s for k in ("init", "first_step", "step", "checkpoint")}}
            arguments = [train, config, *tiny_run.options(**{**values, **(sets or {})})]
            self.metrics = pathlib.Path(folder, "out", "metrics.jsonl")
            before = segments()
            command = [btl if word == "self,vader" else word for word in harness.launch(ranks, arguments)]
            env = {"TRAIN_FAULT": fault, "OMP_NUM_THREADS": "1", **({"TMPDIR": folder} if wrapper else {})}  # Open MPI's folder is named by user
            self.result = harness.run([*wrapper, *command], HARD_LIMIT_S, cwd=folder, env=env,
                                      on_start=(lambda process: on_start(self, process)) if on_start else None)
            self.left = segments() - before
            self.records = sorted(p.name for p in pathlib.Path(folder, "out", "flight").glob("*"))
            self.record = {name: pathlib.Path(folder, "out", "flight", name).read_text() for name in self.records}

    def lines(self, kind="error"):
        return [line for line in self.result.err.splitlines() if line.startswith(f"train: {kind}: ")]

    def problems(self, code, says, leaves_segments=False, is_start=False):
        """Whether the job has ended with this code, nothing left, and one line that says all this. While the job starts, Open MPI's mpirun
        now and then dies of a segmentation fault of its own when a rank ends, and leaves its own segments."""
        mpirun_died = is_start and self.result.code == -signal.SIGSEGV
        left = {path for path in self.left if not (mpirun_died and path.name.startswith("vader_segment."))}
        found = [] if self.result.code == code or mpirun_died else [f"exit code {self.result.code}, expected {code}"]
        found += ["did not end in time"] if self.result.timed_out else []
        found += [f"{len(self.result.orphans)} processes were left running"] if self.result.orphans else []
        found += [f"left in /dev/shm: {left}"] if left and not leaves_segments else []
        errors = self.lines()
        if len(errors) != (1 if says else 0):
            found.append(f"{len(errors)} error lines")
        for line in errors[:1]:
            found += [f"the line does not say /{word}/: {line}" for word in says if not re.search(word, line)]
            found += [f"the line has {len(line.encode())} bytes, more than 300"] if len(line.encode()) > 300 else []
            found += ["the line does not say what to do"] if not re.search(r"(\)|rank \d+): \S", line) else []
        return found


# Where a rank stops: fault point, the hit that counts, what the line says of the place, further settings.
PLACES = [
    ("compute", 41, r"step \d+", {}),
    ("comm.op", 301, r"step \d+, in \w+\(.*\) .*#\d+", {}),
    ("data.load", 31, r"step \d+, in reading data", {}),
    ("ckpt.write", 3, r"checkpoint \d+, in writing a checkpoint", {"checkpoint__every": 3}),
    ("init", 1, "in init", {}),
    ("finalize", 1, "in end", {"train__steps": 5}),
    ("step", 1, "in first step 1", {}),
]


def stopped_ranks(train, report, count):
    """P4, `count` times: places, ranks, numbers of ranks and transports take turns."""
    draw, ages = random.Random(4), []
    for i in range(count):
        place, hit, where, sets = PLACES[i % len(PLACES)]
        ranks = (4, 4, 3, 8)[i % 4]
        culprit, transport = draw.randrange(ranks), ("shm", "mpi")[i // len(PLACES) % 2]
        job = Job(train, ranks, f"{place}@rank={culprit},hit={hit}:stop", {"comm__transport": transport, **sets})
        problems = job.problems(LOST, [rf"rank {culprit} stopped answering", r"host \S+, pid \d+, state T", where, r"; rank \d+ waits in "],
                                is_start=place == "init")
        if place not in ("init",):
            wanted = [f"rank-{r}.txt" for r in range(ranks)]
            problems += [] if job.records == wanted else [f"records: {job.records}"]
            problems += [f"{name}: does not begin with its format" for name, text in job.record.items() if not text.startswith("zshard flight record 1\n")]
        said = [float(m) for line in job.lines() for m in re.findall(r"answering ([\d.]+) s ago", line)]
        ages += said
        report.case(f"P4 stop {i}: rank {culprit} of {ranks} in {place} over {transport}, said after {said} s of {LIMIT_S}", problems, job.result)
    print(f"P4: {len(ages)} of {count} said; the line came {max(ages, default=0) - LIMIT_S:.1f} s after the limit at most")


def starts(train, report, count):
    """P4 in init: ranks that have no connection yet agree who tells. A rank stops there, stands there, or does not come at all."""
    with tempfile.TemporaryDirectory(prefix="watchdog.") as folder:
        late = pathlib.Path(folder, "late")
        late.write_text(f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && exec sleep 1000\nexec {train} "$@"\n')
        late.chmod(0o755)
        for i in range(count):
            ranks = (4, 3, 8, 2)[i % 4]
            culprit = (i // 3) % ranks
            program, fault, says = (
                (train, f"init@rank={culprit}:stop", [rf"rank {culprit} stopped answering [\d.]+ s ago in init", "state T"]),
                (train, f"init@rank={culprit}:delay=1000000", [rf"rank {culprit} has stood still for [\d.]+ s in init"]),
                (late, "", [r"rank 1 has stood still for [\d.]+ s at its start"]),
            )[i % 3]
            job = Job(program, ranks, fault)
            problems = job.problems(LOST, [*says, r"host \S+, pid \d+", r"; rank \d+ waits in MPI_Init"], is_start=True)
            report.case(f"P4 start {i} of {ranks} ranks: {fault or 'rank 1 does not come'}", problems, job.result)


def lone_rank(train, report):
    """P4 without mpirun: there is nobody who waits, only the user."""
    job = Job(train, None, "compute@hit=41:delay=1000000")
    problems = job.problems(LOST, [r"rank 0 has stood still for [\d.]+ s in step \d+", r"host \S+, pid \d+"])
    problems += [] if job.records == ["rank-0.txt"] else [f"records: {job.records}"]
    report.case("P4 a rank alone stands in compute", problems, job.result)


def resumed_rank(train, report):
    """P5: a rank that is stopped for a while and goes on changes nothing but for one warning."""
    sets = {"train__steps": 400, "run__sample_tokens": 0}
    expected = harness.weights_hash(Job(train, 3, "", sets).result.out)

    def pause(job, process):
        wait_for_steps(job.metrics, 3)
        rank = children(process.pid)[1]
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


def killed_ranks(train, report, count):
    """P1: each rank in turn, at moments drawn at random; P3: all of them, or mpirun."""
    draw, seconds = random.Random(1), []
    for i in range(count):
        ranks = (4, 8)[i % 2]
        victim, moment = i // 2 % ranks, {}

        def kill_one(job, process, rank=victim):
            wait_for_steps(job.metrics, 3)
            time.sleep(draw.uniform(0, 0.3))
            # The ranks in order: their environment says which they are.
            pids = {int(re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", pathlib.Path(f"/proc/{p}/environ").read_bytes()).group(1)): p for p in children(process.pid)}
            moment["killed"] = time.monotonic()
            os.kill(pids[rank], signal.SIGKILL)

        job = Job(train, ranks, "", {"checkpoint__every": 2}, kill_one)
        seconds.append(time.monotonic() - moment["killed"])
        problems = job.problems(128 + signal.SIGKILL, [rf"rank {victim} has died in (step|checkpoint) \d+", r"host \S+, pid \d+", r"--resume latest"])
        report.case(f"P1 rank {victim} of {ranks} is killed: {seconds[-1]:.2f} s to the end", problems, job.result)
    print(f"P1: {max(seconds):.2f} s from kill to the job's end at most")


def killed_jobs(train, report):
    def kill_all(job, process):
        wait_for_steps(job.metrics, 3)
        for pid in children(process.pid):
            os.kill(pid, signal.SIGKILL)

    def kill_mpirun(job, process):
        wait_for_steps(job.metrics, 3)
        os.kill(process.pid, signal.SIGKILL)

    def stop_and_kill_mpirun(job, process):
        wait_for_steps(job.metrics, 3)
        os.kill(children(process.pid)[0], signal.SIGSTOP)
        os.kill(process.pid, signal.SIGKILL)

    job = Job(train, 4, "", {}, kill_all)
    problems = [p for p in job.problems(128 + signal.SIGKILL, [], True) if "error lines" not in p]
    report.case("P3 all ranks are killed at once", problems + ([] if len(job.lines()) <= 1 else ["more than one error line"]), job.result)
    for name, kill in (("", kill_mpirun), (", one rank stopped", stop_and_kill_mpirun)):
        job = Job(train, 4, "", {}, kill)
        problems = [] if job.result.code == -signal.SIGKILL and not job.result.orphans else [f"exit code {job.result.code}, orphans {job.result.orphans}"]
        problems += [f"{len(job.lines())} error lines"] if len(job.lines()) > 1 else []
        for path in job.left:  # Open MPI's, which it cannot remove any more
            problems += [] if path.name.startswith("vader_segment") else [f"left: {path}"]
            path.unlink()
        report.case(f"P3 mpirun is killed{name}", problems, job.result)
    report.case("P3 the next start works", Job(train, 4, "", {"train__steps": 3}).problems(0, []))


def ranks_that_end(train, report):
    """P10, O2: a rank that ends by itself."""
    died = [r"rank 1 has died in step 5", r"host \S+, pid \d+"]
    for action, code, says in (
        ("throw", INTERNAL, [r"an exception", "rank 1"]),
        ("abort", 128 + signal.SIGABRT, died),
        ("segv", 128 + signal.SIGSEGV, died),
        ("exit=0", INTERNAL, [r"exit\(0\) was called before the end of the job", "rank 1"]),
        ("return", DISAGREE, [r"rank 1 has ended its part, rank \d waits for it in step 5 in (all_gather|publish)\(root\) .*#\d+"]),
    ):
        for transport in ("shm", "mpi"):
            job = Job(train, 3, f"step@rank=1,hit=5:{action}", {"comm__transport": transport})
            report.case(f"{'O2' if action == 'return' else 'P10'} {action} over {transport}", job.problems(code, says), job.result)


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
    """P6: a rank that is slower than the rest is named within 20 steps; nobody is in 1000 steps without one, on a machine with nothing else to do."""
    slow = r"rank 1 is slow: in the last \d+ steps others waited for it \d+ % of the time"
    for name, fault in (("its computing", "compute@rank=1:delay=60"), ("its host", "step@rank=1:delay=100")):
        job = Job(train, 3, fault, {"train__steps": 21, "run__sample_tokens": 0}, watch_s=30)
        warnings = job.lines("warning")
        problems = job.problems(0, []) + ([] if len(warnings) == 1 and re.search(slow, warnings[0]) else [f"warnings: {warnings}"])
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


def main():
    train, is_long = pathlib.Path(sys.argv[1]).resolve(), "--long" in sys.argv[2:]
    words = [a for a in sys.argv[2:] if a != "--long"]
    harness.become_subreaper()
    report = harness.Report()
    parts = {
        "stop": lambda: stopped_ranks(train, report, 100 if is_long else 10),
        "start": lambda: starts(train, report, 36 if is_long else 6),
        "kill": lambda: killed_ranks(train, report, 30 if is_long else 4),
        "job": lambda: killed_jobs(train, report),
        "alone": lambda: lone_rank(train, report),
        "resume": lambda: resumed_rank(train, report),
        "end": lambda: ranks_that_end(train, report),
        "stand": lambda: ranks_that_stand(train, report),
        "slow": lambda: slow_ranks(train, report, is_long),
        "place": lambda: places_to_run(train, report),
    }
    for name, part in parts.items():
        if (words and name in words) or (not words and (not is_long or name in ("stop", "start", "kill", "slow"))):
            part()
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
