"""Runs programs the way the fault tests need it: in a session and with a TMPDIR of their own, with empty stdin, a hard time limit, and a
look at what they leave running or lying. Only the standard library is used."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SKIP = 77
ROOT = pathlib.Path(__file__).resolve().parents[3]
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
# The event library inside mpirun says this now and then, when a rank's pipe closes while mpirun looks at it: no line of ours.
_MPIRUN_NOISE = re.compile(r"^\[warn\] Epoll (ADD|MOD|DEL)\(.*\n?", re.MULTILINE)
_LINE_OF_A_FAILURE = re.compile(r"^(?!\S+: (note|warning): ).", re.MULTILINE)
# A launcher, or a shell that was started by one, must not reach into the tests.
_FOREIGN = ("PMI_", "PMIX_", "OMPI_COMM_", "OMPI_UNIVERSE_", "ORTE_", "SLURM_", "MPI_LOCAL", "WORLD_SIZE", "TRAIN_FAULT")


def become_subreaper():
    """Orphans of the programs under test become children of this process, where they can be counted. Their /dev/shm is its own, where this user may
    have one: what jobs of other tests leave there for a moment is not theirs."""
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    # Tried by another process first: there is no way back from a namespace in which nothing may be mounted.
    if in_namespace("-m") is None or libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user != 0 else 0)) != 0:
        return
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            pathlib.Path("/proc/self", name).write_text(text)
    libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)


def clean_env(extra=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    env.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "ZSHARD_SITE_CONFIG": ""})
    env.update(extra or {})
    return env


def is_mpich():
    """Whether the programs are built with MPICH, so that its launcher, Hydra, starts their ranks."""
    return os.environ.get("ZSHARD_TEST_MPI") == "mpich"


def mpirun(ranks, command, *more):
    """The command under the launcher of the MPI that the programs are built with. `more`: (ranks, command) of those that start another one."""
    line = ["mpiexec.mpich"] if is_mpich() else ["mpirun", "-q", "--oversubscribe", "--mca", "btl", "self,vader"]
    for i, (count, words) in enumerate([(ranks, command), *more]):
        line += [*([":"] if i > 0 else []), "-n" if is_mpich() else "-np", str(count), *map(str, words)]
    return line


def ranks_of(launcher):
    """Processes of the ranks that the launcher of this pid has started on this machine. Hydra starts them through a proxy."""
    return [rank for proxy in children(launcher) for rank in children(proxy)] if is_mpich() else children(launcher)


def in_namespace(*flags):
    """What to put before a command for namespaces of its own (flags of unshare); None where this user may make none."""
    prefix = ["unshare", *([] if os.geteuid() == 0 else ["-Ur"]), *flags]
    return prefix if subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20).returncode == 0 else None


def launch(ranks, command):
    """`ranks` None: the program itself, without mpirun."""
    return [str(c) for c in command] if ranks is None else mpirun(ranks, command)


class Result:
    """`orphans`: processes that were left running, and killed then. `files`: what was left in the program's TMPDIR, and removed then. `gone`: when the
    last of its processes was, by time.monotonic()."""

    def __init__(self, command, code, out, err, begin, timed_out, orphans, files, ended, gone):
        self.command, self.code, self.out, self.err = command, code, out, err
        self.seconds, self.gone, self.timed_out, self.orphans, self.files = ended - begin, gone, timed_out, orphans, files

    def last_error_line(self):
        lines = self.err.rstrip("\n").split("\n")
        return lines[-1] if lines else ""

    def __str__(self):
        return (f"$ {' '.join(self.command)}\nexit {self.code} after {self.seconds:.1f} s{' (killed: time limit)' if self.timed_out else ''}\n"
                f"--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}")


def _session_members(session):
    """Living processes of the session; zombies do not count."""
    members = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            members.append(int(entry))
    return members


def children(pid):
    """Of a process, zombies too; of a subreaper also those whose parents have ended, whatever session they are in."""
    return [int(child) for listed in pathlib.Path(f"/proc/{pid}/task").glob("*/children") for child in listed.read_text().split()]


def _kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _reap_orphans(session, others, limit_s):
    """Waits until nobody is left of the session, nor of those that have left it: children of this process, but for the `others`, which it had
    before. Who still lives at the limit is killed and returned."""
    deadline, orphans = time.monotonic() + limit_s, set()
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass
        members = (set(children(os.getpid())) - others).union(_session_members(session))
        if not members or time.monotonic() > deadline + 10:
            return sorted(orphans | members)
        if time.monotonic() > deadline:
            orphans |= members
            _kill(members)
        time.sleep(0.02)


def unused_segments():
    """Of shared memory in /dev/shm that no living process has: others may run jobs too."""
    used = set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= set(re.findall(r"/dev/shm/\S+", maps.read_text()))
        except OSError:
            continue
    return {p for p in pathlib.Path("/dev/shm").glob("*") if str(p) not in used}


def missed_an_end(command, code, err):
    """Whether mpirun ends with 1, which no rank of ours does, and nobody says why: Open MPI 4 seldom takes a rank that has ended well for one that
    has not (its issue 7833, which stays as it is there)."""
    return command[:1] == ["mpirun"] and code == 1 and not _LINE_OF_A_FAILURE.search(err)


def run(command, timeout_s=180, cwd=None, env=None, on_start=None):
    """Runs to the end or to the limit. `on_start(process)` is called once, beside the running program. Not reentrant."""
    command, others, segments = [str(c) for c in command], set(children(os.getpid())), unused_segments()
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryDirectory(prefix="run.") as place:
        env = clean_env({"TMPDIR": place, **(env or {})})
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=env, start_new_session=True)
        timed_out = False
        try:
            if on_start:
                on_start(process)
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            _kill(_session_members(process.pid))
            process.wait(10)
        finally:  # also where on_start has failed
            ended = time.monotonic()
            orphans = _reap_orphans(process.pid, others, 3)
            gone = time.monotonic()
            if timed_out or process.returncode == -signal.SIGKILL:  # a killed mpirun cannot remove what Open MPI has made
                for path in unused_segments() - segments:
                    if path.name.startswith("vader_segment."):
                        path.unlink(missing_ok=True)
        out.seek(0)
        err.seek(0)
        texts = [_MPIRUN_NOISE.sub("", f.read().decode("utf-8", "backslashreplace")) for f in (out, err)]
        files = sorted(tree(place))
    code = 0 if on_start is None and missed_an_end(command, process.returncode, texts[1]) else process.returncode
    return Result(command, code, *texts, begin, timed_out, orphans, files, ended, gone)


def tree(folder):
    """Every path under the folder with its size: what a refused run must leave as it was."""
    return {str(p.relative_to(folder)): p.lstat().st_size if p.is_file() else -1 for p in sorted(pathlib.Path(folder).rglob("*"))}


def read_metrics(run_dir):
    return [json.loads(line) for line in (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def weights_hash(out):
    lines = [line for line in out.splitlines() if line.startswith("weights: ")]
    return lines[-1].split(None, 1)[1].strip() if lines else None


def bible_text(build_dir, work_dir):
    """The corpus of the README's job: build/kjv.txt, or written afresh; None when this machine has neither."""
    ready = pathlib.Path(build_dir) / "kjv.txt"
    if ready.is_file() and ready.stat().st_size > 4_000_000:
        return ready
    if not shutil.which("bible"):
        return None
    target = pathlib.Path(work_dir) / "kjv.txt"
    with open(target, "wb") as f:
        subprocess.run(["bible", "-f", "Genesis1:1-Revelation22:21"], stdin=subprocess.DEVNULL, stdout=f, check=True, timeout=60)
    return target


class Report:
    """Collects the outcome of named cases; `exit_code` is 0, 1, or 77 when nothing ran."""

    def __init__(self):
        self.passed, self.failures = 0, []

    def case(self, name, problems, detail=""):
        if problems:
            self.failures.append(name)
            print(f"FAILED {name}")
            for problem in problems:
                print(f"    {problem}")
            if detail:
                print("    " + str(detail).replace("\n", "\n    "))
        else:
            self.passed += 1
            print(f"ok     {name}")
        sys.stdout.flush()

    def exit_code(self):
        print(f"{self.passed} cases passed, {len(self.failures)} failed", *self.failures, sep="\n    ")
        return 1 if self.failures else 0 if self.passed else SKIP


def run_cases(cases, *arguments):
    """A test whose cases are functions of the program, and of `arguments`, that return problems: runs those whose name holds a word of the command
    line behind the program, or all. The exit code."""
    train, words, report = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:], Report()
    for case in cases:
        if not words or any(word in case.__name__ for word in words):
            report.case(case.__doc__.splitlines()[0], case(train, *arguments))
    return report.exit_code()


def run_parts(*parts):
    """A test whose parts are functions of the program, of a folder for all of them, and of a report. The exit code."""
    train, report = pathlib.Path(sys.argv[1]).resolve(), Report()
    with tempfile.TemporaryDirectory() as work:
        for part in parts:
            part(train, pathlib.Path(work), report)
    return report.exit_code()


def begin():
    """The program under test, before anything of it is started; its threads are as few as can be."""
    become_subreaper()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return pathlib.Path(sys.argv[1]).resolve()
