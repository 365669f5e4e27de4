#!/usr/bin/env python3
"""No silent hang: whatever becomes of one rank, the job ends, or goes on, with one line that names it, and leaves nothing running or lying. The
times that it took are printed; those fail that come LATE_S after their limit, and with --long more than a tenth that miss the measure of the fault.
IDs such as P4 name the fault, see docs/reliability.md.
Usage: watchdog_test.py TRAIN [--long] [PART ...]   (by default all parts but "slow", which wants the machine for itself)"""

import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

import harness
from dying_ranks import ends_in_mpi, killed_before_the_start, killed_jobs, killed_ranks, mpirun_stopped, ranks_that_end
from stop_test import wait_for_steps
from watched_job import GONE_S, INTERNAL, LATE_S, LIMIT_S, LOST, TOLD_S, Job, print_times, signal_rank, state

# Where a rank stops: fault point, the hit that counts, what the line says of the place, further settings.
PLACES = [
    ("compute", 41, r"step \d+", {}),
    ("comm.op", 301, r"step \d+, in (\w+\(.*\) .*#\d+|agreement of all ranks)", {}),  # agreements of the host count among them
    ("data.load", 31, r"step \d+, in reading data", {}),
    ("ckpt.write", 3, r"checkpoint \d+, in writing a checkpoint", {"checkpoint__every": 3}),
    ("init", 1, "in init", {}),
    ("agree", 1, "in init", {}),
    ("finalize", 1, "in end", {"train__steps": 5}),
    ("finalized", 1, "in end", {"train__steps": 5}),
    ("step", 1, "in first step 1", {}),
]


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


def absent_rank(train, report):
    """The command of a rank ends with 0 before MPI begins: mpirun does not mind, and the others wait in MPI_Init."""
    with tempfile.TemporaryDirectory(prefix="watchdog.") as folder:
        nothing = pathlib.Path(folder, "nothing")
        nothing.write_text(f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && exit 0\nexec {train} "$@"\n')
        nothing.chmod(0o755)
        job = Job(nothing, 3)
        problems = job.problems(LOST, [r"rank 1 has not come to MPI within [\d.]+ s", r"host \S+"], is_start=True)
        report.case("P4 a rank's command ends before MPI begins", problems, job.result)


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
    report.case("P13 a batch that 7 ranks do not divide", job.problems(0, []), job.result)
    job = Job(train, 7, "", {"train__steps": 3, "train__global_batch": 6}, watch_s=30)
    report.case("P13 a batch that is too small for 7 ranks", job.problems(78, ["global_batch"]), job.result)
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
    if harness.is_mpich():
        print("skipped: Hydra kills all ranks as soon as one is killed, before another can say so")
        return harness.SKIP
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
        "absent": lambda: absent_rank(train, report),
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
        if name in (words or (("stop", "outside", "start", "kill", "slow") if is_long else parts.keys() - {"slow"})):
            part()
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
