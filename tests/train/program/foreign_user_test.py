#!/usr/bin/env python3
"""Another user of the host, who knows a job's name and what its ranks look for, can neither end it, nor crash a rank, nor silence its error line.
Skipped unless root runs it, since only root can be two users; the job is root's, whose processes may look at everybody's.
Usage: foreign_user_test.py TRAIN"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import harness
from watched_job import Job

NOBODY = 65534
# A process that says it is rank 2, and lays out a flight record as ranks do: magic, rank, size, pid, ..., has_left, has_reported, report_seen.
CLAIMANT = """
import fcntl, os, socket, struct, sys, time
deed, mpirun, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)  # not before it has begun: Python itself may be out of that user's reach
page = os.memfd_create("zshard-flight", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(page, int(os.environ["PAGE_BYTES"]))
now = time.monotonic_ns()
told = 1 if deed == "tell" else 0
os.pwrite(page, struct.pack("<QiiiB3xqqqBBB", 0x7a73666c69676874, 2, 3, os.getpid(), 1, 0, now, now, 0, told, told), 0)
if deed == "bind":  # a name that could decide who tells; abstract sockets have no owner
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    name.bind("\\0zshard-report-0-" + os.environ["PMIX_NAMESPACE"])
if deed != "cut":
    fcntl.fcntl(page, 1033, 1 | 2 | 4)  # F_ADD_SEALS: SEAL, SHRINK, GROW
print("ready", flush=True)
time.sleep(1)
if deed == "cut":
    os.ftruncate(page, 0)
while deed in ("tell", "bind") and os.path.exists(f"/proc/{mpirun}"):
    time.sleep(0.05)
"""


def page_bytes(pid):
    """How large the page of a rank is."""
    for fd in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
        try:
            if os.readlink(fd).startswith("/memfd:zshard-flight"):
                return os.stat(fd).st_size
        except OSError:
            pass
    return 0


def attack(deed, started):
    def begin(_job, process):
        while process.poll() is None:  # until a rank has begun
            for pid in harness.children(process.pid):
                size = page_bytes(pid)
                if size == 0:
                    continue
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                job = next(e for e in environment if e.startswith(b"PMIX_NAMESPACE=")).partition(b"=")[2].decode()
                other = subprocess.Popen([sys.executable, "-c", CLAIMANT, deed, str(process.pid), str(NOBODY)], stdout=subprocess.PIPE,
                                         env={"PMIX_NAMESPACE": job, "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2", "PAGE_BYTES": str(size)})
                started.append(other)
                other.stdout.readline()
                return
            time.sleep(0.01)
    return begin


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    if os.geteuid() != 0:
        print("skipped: only root can be two users")
        return 77
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="foreign.") as folder:
        late = pathlib.Path(folder, "late")  # rank 2 begins when the other user's process says that it is rank 2
        late.write_text(f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 2 ] && sleep 3\nexec {train} "$@"\n')
        late.chmod(0o755)
        for deed, fault, code, says in (
            ("die", "", 0, []),
            ("cut", "", 0, []),
            *((deed, "step@rank=1,hit=3:kill", 128 + signal.SIGKILL, [r"rank 1 has died in step 3", r"host \S+, pid \d+"]) for deed in ("tell", "bind")),
        ):
            started = []
            job = Job(late, 3, fault, {"train__steps": 6, "run__sample_tokens": 0}, attack(deed, started), watch_s=60)
            problems = job.problems(code, says) + ([] if started else ["no rank began"])
            report.case(f"another user's process says it is rank 2, and does this: {deed}", problems, job.result)
            for other in started:
                other.kill()
                other.wait()
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
