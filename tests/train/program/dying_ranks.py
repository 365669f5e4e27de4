"""Cases of watchdog_test.py in which ranks, or mpirun, are killed or end by themselves."""

import os
import pathlib
import random
import re
import signal
import tempfile
import time

import harness
from stop_test import wait_for_steps
from watched_job import DISAGREE, GONE_S, HARD_LIMIT_S, INTERNAL, LATE_S, LOST, Job, print_times, signal_rank, state


def killed_ranks(train, report, count, is_long):
    """P1: each rank in turn, over both transports; the last time mpirun leaves the others no moment to say so. The resumed run is as if nobody had
    been killed."""
    sets, slowly = {"train__steps": 100, "run__sample_tokens": 0, "checkpoint__every": 2}, "step@rank=0:delay=80"  # it does not end before the kill
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
    has_reason = re.search("unable to reach|MPI_INIT has failed|MPI_ERRORS_ARE_FATAL", job.result.err)
    problems += [] if has_reason or job.has_mpirun_died() else ["Open MPI's own reason is missing"]
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
