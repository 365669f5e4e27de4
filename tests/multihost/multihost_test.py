#!/usr/bin/env python3
"""Training across hosts: the same bits as on one, over slow links too, and one clear line and no process left when a host is lost or a rank of
one stops. Without --long one case of each kind.
Usage: multihost_test.py TRAIN BUILD [--long]"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "train" / "program"))

import harness  # noqa: E402
import tiny_run  # noqa: E402
from hosts import CIDR, Hosts, Unavailable  # noqa: E402

LONG_RUN = {"train__steps": 100000, "run__sample_tokens": 0}
LIMIT_S = 4  # of the watchdog, where it is what is tried


def train_options(folder, **values):
    return [tiny_run.write_files(folder), *tiny_run.options(**values)]


def reference(train, folder, ranks):
    options = train_options(folder, train__steps=4, train__deterministic=True, comm__transport="local", comm__ranks=ranks)
    return harness.run([train, *options], timeout_s=240, cwd=folder)


def left_running(hosts):
    """Processes on the hosts, a few seconds after a run has ended."""
    deadline = time.monotonic() + 5
    while any(hosts.pids(name) for name in hosts.names) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"still running on {name}: {hosts.pids(name)}" for name in hosts.names if hosts.pids(name)]


def same_bits_case(report, train, hosts, ranks_each, *options, transport=None, env=None, says=(), settings=None, **launched):
    """`transport` and `says`: what is expected in the first line, and of Open MPI on stderr."""
    ranks = ranks_each * len(hosts.names) if isinstance(ranks_each, int) else sum(ranks_each)
    if transport is None:
        transport = "transport mpi" if ranks_each == 1 else f"transport hier (shm inside {len(hosts.names)} hosts, mpi across)"
    with tempfile.TemporaryDirectory(prefix="multihost.") as folder:
        wanted = harness.weights_hash(reference(train, folder, ranks).out)
    with tempfile.TemporaryDirectory(prefix="multihost.") as folder:
        run = [train, *train_options(folder, train__steps=4, train__deterministic=True, **(settings or {}))]
        result = harness.run(hosts.mpirun(ranks_each, run, *options, **launched), timeout_s=240, cwd=folder, env=env)
        problems = [] if result.code == 0 and wanted and harness.weights_hash(result.out) == wanted else [f"exit 0 and weights {wanted} expected"]
        problems += [f"'{word}' expected" for word in (f"{ranks} ranks", transport) if word not in result.out.partition("\n")[0]]
        problems += [f"'{word}' expected" for word in says if word not in result.err]
    words = [*(["IPv6"] if hosts.family == 6 else []), *map(str, options), *(f"{key} {getattr(value, 'name', value)}" for key, value in launched.items()), *(f"{key}={value}" for key, value in (env or {}).items())]
    report.case(f"{len(hosts.names)} hosts of {ranks_each} ranks over {hosts.rate} {' '.join(words)}", problems + left_running(hosts), result)


def when_it_trains(folder, act):
    """Does `act` when the run has made some steps."""
    def wait(_process):
        metrics, deadline = pathlib.Path(folder, "out", "metrics.jsonl"), time.monotonic() + 120
        while time.monotonic() < deadline:
            if metrics.exists() and len(metrics.read_text().splitlines()) >= 3:
                act()
                return
            time.sleep(0.05)
    return wait


def lost_host_case(report, train, name, lose, code, words):
    with Hosts(2) as hosts, tempfile.TemporaryDirectory(prefix="multihost.") as folder:
        options = train_options(folder, comm__timeout_s=3, **LONG_RUN)
        result = harness.run(hosts.mpirun(1, [train, *options]), timeout_s=240, cwd=folder, on_start=when_it_trains(folder, lambda: lose(hosts)))
        problems = ["it went on until the time limit"] if result.timed_out else [] if result.code in code else [f"exit {code} expected"]
        problems += [f"'{word}' is missing" for word in words if word not in result.err + result.out]
        report.case(name, problems + left_running(hosts), result)


def kill_all(hosts, name):
    for pid in hosts.pids(name):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def rank_on(hosts, rank):
    """(host, pid as all hosts together have it, pid on its host) of a rank."""
    for name in hosts.names:
        for pid in hosts.pids(name):
            environment = pathlib.Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
            if pathlib.Path("/proc", str(pid), "comm").read_text() == "train\n" and f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment:
                return name, pid, re.search(r"NSpid:.*\t(\d+)\n", pathlib.Path("/proc", str(pid), "status").read_text()).group(1)
    raise LookupError(f"no rank {rank}")


def watched_case(report, train, hosts, ranks_each, name, says, fault="", stops=None, most_lines=1, code=69, mpi_network=None, **values):
    """A rank's watchdog, or its backoff, ends the run: one line in all, or as few as said, the first of which says these words. `stops` is a rank that is stopped while it trains;
    {where} in a word is its host and pid there. What can write the records of all ranks does."""
    with tempfile.TemporaryDirectory(prefix="multihost.") as folder:
        limits = {f"watchdog__{phase}_s": LIMIT_S for phase in ("init", "first_step", "step", "checkpoint")}
        options = train_options(folder, **{**LONG_RUN, **limits, "comm__timeout_s": 60, **values})
        stopped = {}

        def stop():
            host, pid, own_pid = rank_on(hosts, stops)
            stopped.update(at=time.monotonic(), where=f"host {host}, pid {own_pid}, ")
            os.kill(pid, signal.SIGSTOP)

        result = harness.run(hosts.mpirun(ranks_each, [train, *options], mpi_network=mpi_network), timeout_s=240, cwd=folder, env={"TRAIN_FAULT": fault},
                             on_start=when_it_trains(folder, stop) if stops is not None else None)
        after = f", {time.monotonic() - stopped['at']:.1f} s after it at a limit of {LIMIT_S}" if stopped else ""
        lines = [line for line in result.err.splitlines() if line.startswith("train: error: ")]
        problems = ["it went on until the time limit"] if result.timed_out else [] if result.code == code else [f"exit {code} expected, not {result.code}"]
        problems += [] if 1 <= len(lines) <= most_lines else [f"{len(lines)} lines of error"]
        problems += [f"the line does not say /{word}/" for word in says if not re.search(word.replace("{where}", stopped.get("where", "")), "".join(lines[:1]))]
        problems += [f"the line has {len(line.encode())} bytes, more than 300" for line in lines[:1] if len(line.encode()) > 300]
        records = sorted(path.name for path in pathlib.Path(folder, "out", "flight").glob("*"))
        wanted = [f"rank-{rank}.txt" for rank in range(2 * len(hosts.names))] if (stops is not None or code == 70) and ranks_each == 2 else records
        problems += [] if records == wanted else [f"records: {records}"]
        report.case(f"{len(hosts.names)} hosts of {ranks_each} ranks: {name}{after}", problems + left_running(hosts), result)


def hostfile_case(report, train, hosts):
    with tempfile.TemporaryDirectory(prefix="multihost.") as folder:
        same_bits_case(report, train, hosts, [2, 1], hostfile=pathlib.Path(folder, "hosts.txt"))


def interface_cases(report, train, hosts):
    """comm.interface tells Open MPI where nobody else does, by its name on this host; one that a host has not is one line."""
    shown = ["--mca", "mpi_show_mca_params", "environment"]
    same_bits_case(report, train, hosts, 1, *shown, settings={"comm__interface": CIDR}, tells_mpi=False, says=[" btl_tcp_if_include=eth0 "])
    with tempfile.TemporaryDirectory(prefix="multihost.") as folder:
        result = harness.run(hosts.mpirun(1, [train, *train_options(folder, comm__interface="eth7")]), timeout_s=60, cwd=folder)
    problems = [] if result.code == 78 and re.search(r"host host\d has no network interface or address \"eth7\": its interfaces are lo, eth0", result.last_error_line()) else ["exit 78 and one line expected"]
    report.case("an interface that no host has", problems + left_running(hosts), result)


def launch_cases(report, train, hosts):
    """Further ways to start a run that docs/clusters.md names."""
    shown = ["--mca", "mpi_show_mca_params", "environment"]
    same_bits_case(report, train, hosts, 1, *shown, network=CIDR, says=[" btl_tcp_if_include=eth0 ", " btl_tcp_flags=send,inplace,need-ack "])
    flags = "send,put,inplace,need-ack"
    same_bits_case(report, train, hosts, 1, *shown, "--mca", "btl_tcp_flags", flags, says=[f" btl_tcp_flags={flags} "])
    same_bits_case(report, train, hosts, 1, *shown, env={"OMPI_MCA_btl_tcp_flags": flags}, says=[f" btl_tcp_flags={flags} "])
    same_bits_case(report, train, hosts, 2, "-x", "ZSHARD_HOSTS_OF", env={"ZSHARD_HOSTS_OF": "0,1,2,3"}, transport="transport mpi")


def elements_on_the_wire(layers, width, context, vocabulary, scheme):
    """Of a GPT-2 in a step: (gathered, reduced) between hosts. Every unit is gathered for its forward, and with `zero3` all but the root and the last one are once
    more for their backward; `nested` with groups of a host's ranks has those at hand."""
    block = 12 * width * width + 13 * width
    model = layers * block + (vocabulary + context) * width + 2 * width
    return model + (0 if scheme.get("strategy") == "nested" else (layers - 1) * block), model


def bench_row(result, is_json):
    """Of bench/multihost.py: what it ran, its times, and the MiB a step on a link; None for anything but one such row."""
    if is_json:
        rows = [json.loads(line) for line in result.out.splitlines()]
        return [(r["hosts"], r["ranks_each"], r["transport"], r["prefetch"], [r[f"{k}_ms"] for k in ("compute", "communication", "step", "planned_step")],
                 r["link_mib_a_step"]) for r in rows][0] if len(rows) == 1 else None
    rows = [re.split(r" *\| *", line) for line in result.out.splitlines()[2:]]
    if len(rows) != 1 or len(rows[0]) != 14:
        return None
    hosts, _, ranks_each = rows[0][1].partition(" x ")
    return int(hosts), int(ranks_each), rows[0][3], int(rows[0][4]), [float(word) for word in rows[0][5:9]], float(rows[0][11])


def bench_case(report, build, ranks_each, scheme, bytes_gathered, bytes_reduced, is_json=True):
    """bench/multihost.py, one row, and whether what crossed a link is what the scheme says: the bytes of an element that one of two hosts sends,
    within 2 % for how runs start and end, and 3 % more for TCP's own and signs of life."""
    layers, width, steps = 4, 256, 8
    command = [sys.executable, ROOT / "bench" / "multihost.py", "--build", build, "--hosts", 2, "--ranks-each", ranks_each, "--rates", "1gbit", "--prefetch", 0,
               "--warmup", 0, "--steps", 1, "--counted-steps", steps, *(["--json"] if is_json else []), "--", "--preset", "tiny", "--layers", layers, "--width", width, "--heads", 4, "--micro-batch", 1,
               "--sequence", 64, "--dtype", "bf16", *(word for key, value in scheme.items() for word in ("--set", f"shard.{key}={value}"))]
    result = harness.run(command, timeout_s=240)
    row = bench_row(result, is_json) if result.code == 0 else None
    good = row is not None and row[:4] == (2, ranks_each, "mpi" if ranks_each == 1 else "hier", 0) and all(ms > 0 for ms in row[4])
    problems = [] if good else ["exit 0 and one row of numbers expected"]
    if good:
        gathered, reduced = elements_on_the_wire(layers, width, 256, 256, scheme)
        wanted, counted = (gathered * bytes_gathered + reduced * bytes_reduced) / 2 / 2**20, row[5]
        problems = [] if 0.98 * wanted <= counted <= 1.05 * wanted else [f"{counted:.2f} MiB a step crossed a link, {wanted:.2f} expected"]
    words = " ".join(f"{key}={value}" for key, value in scheme.items())
    report.case(f"bench/multihost.py, 2 hosts of {ranks_each} ranks {words or 'zero3'}{f', {counted:.2f} MiB of {wanted:.2f}' if good else ''}", problems, result)


def bench_cases(report, build, is_long):
    eight_bits = 1 + 4 / 256  # and a scale of four bytes for every 256
    bench_case(report, build, 2, {"strategy": "nested", "group_size": 2}, 2, 4)
    if is_long:
        bench_case(report, build, 1, {}, 2, 4, is_json=False)
        bench_case(report, build, 1, {"compress_gather": "int8"}, eight_bits, 4)
        bench_case(report, build, 1, {"compress_gather": "int8", "compress_reduce": "int8"}, eight_bits, eight_bits)
        bench_case(report, build, 2, {}, 2, 4)


def remains(pid):
    """Of the hosts that this process has made: namespaces, folders, and the process with a number of its own among its words."""
    own = f"zshard-{pid}-"
    namespaces = [line for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines() if line.startswith(own)]
    folders = [str(path) for path in pathlib.Path(tempfile.gettempdir()).glob(f"{own}*")]
    processes = subprocess.run(["pgrep", "-f", f"sleep 98765{pid}"], capture_output=True, text=True).stdout.split()
    return {"namespaces": namespaces, "folders": folders, "processes": processes}


def ended_user_case(report, signal_number):
    """Who holds hosts, with a process on one, is ended. By SIGKILL everything stays until the next one makes hosts."""
    program = ("import os, subprocess, sys, time; sys.path.insert(0, sys.argv[1]); from hosts import Hosts\n"
               "with Hosts(2) as hosts:\n"
               "    subprocess.Popen(hosts.on('host1', ['sleep', f'98765{os.getpid()}']))\n"
               "    while len(hosts.pids('host1')) < 2: time.sleep(0.05)\n"
               "    print('ready', flush=True)\n"
               "    time.sleep(600)")
    user = subprocess.Popen([sys.executable, "-c", program, ROOT / "tests" / "multihost"], stdout=subprocess.PIPE, text=True)
    is_ready = user.stdout.readline() == "ready\n"
    before = remains(user.pid)
    user.send_signal(signal_number)
    user.wait(60)
    problems = [] if is_ready and all(before.values()) else [f"hosts expected, there are {before}"]
    if signal_number == signal.SIGKILL:
        problems += [] if all(remains(user.pid).values()) else [f"nobody has cleaned up yet, and there are {remains(user.pid)}"]
        with Hosts(1):
            pass
    problems += [f"left behind: {remains(user.pid)}"] if any(remains(user.pid).values()) else []
    report.case(f"who holds hosts is ended by {signal.Signals(signal_number).name}", problems)


STOPPED = r"in .*; rank \d waits in .*\({where}"


def stopped_case(report, train, hosts, ranks_each, rank):
    said = rf"rank {rank} stopped answering [\d.]+ s ago {STOPPED}state T" if ranks_each > 1 else \
        rf"rank {rank} has not been heard for [\d.]+ s, last {STOPPED}stopped, or no power"
    watched_case(report, train, hosts, ranks_each, f"rank {rank} is stopped{', IPv6' if hosts.family == 6 else ''}", [said], stops=rank)


def two_hosts_cases(report, train, hosts, is_long):
    same_bits_case(report, train, hosts, 2)
    hostfile_case(report, train, hosts)
    interface_cases(report, train, hosts)
    stopped_case(report, train, hosts, 2, 3)
    stopped_case(report, train, hosts, 1, 1)
    watched_case(report, train, hosts, 2, "rank 2 throws", ["an exception", "rank 2"], "step@rank=2,hit=5:throw", code=70)
    if not is_long:
        return
    same_bits_case(report, train, hosts, 1)
    same_bits_case(report, train, hosts, 2, "--map-by", "node")
    launch_cases(report, train, hosts)
    stopped_case(report, train, hosts, 2, 0)
    stopped_case(report, train, hosts, 2, 2)
    stopped_case(report, train, hosts, 1, 0)
    watched_case(report, train, hosts, 1, "rank 1 is stopped, and hosts do not tell each other", ["waited 12 s for rank 1"], stops=1,
                 most_lines=2, watchdog__hosts=False, comm__timeout_s=12)
    watched_case(report, train, hosts, 2, "rank 1 throws", ["an exception", "rank 1"], "step@rank=1,hit=5:throw", code=70)
    watched_case(report, train, hosts, 2, "rank 3 stops at the start", ["rank 3 stopped answering", "host host1, "], "init@rank=3:stop")
    watched_case(report, train, hosts, 2, "MPI's network does not lead to the other host", [r"MPI_\w+ has not ended for", r"\): .*btl_tcp_if_include"], most_lines=2, mpi_network="lo")
    watched_case(report, train, hosts, 1, "rank 1 stops at the start", ["MPI_Init has not ended for", "those of other hosts cannot be seen"], "init@rank=1:stop")


def training_cases(report, train, is_long):
    with Hosts(2) as hosts:
        two_hosts_cases(report, train, hosts, is_long)
    with Hosts(3, rate="20mbit") as hosts:
        same_bits_case(report, train, hosts, 1)
        if is_long:
            same_bits_case(report, train, hosts, 2)
    if is_long:
        with Hosts(4) as hosts:
            same_bits_case(report, train, hosts, 1)
    with Hosts(2, family=6) as hosts:
        same_bits_case(report, train, hosts, 1)
        if is_long:
            same_bits_case(report, train, hosts, 2)
            stopped_case(report, train, hosts, 1, 1)


def main():
    train, report, is_long = pathlib.Path(sys.argv[1]).resolve(), harness.Report(), "--long" in sys.argv
    harness.become_subreaper()
    try:
        with Hosts(1):
            pass
    except Unavailable as reason:
        print(f"skipped: {reason}")
        return harness.SKIP
    try:
        for signal_number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL) if is_long else (signal.SIGKILL,):
            ended_user_case(report, signal_number)
        training_cases(report, train, is_long)
        bench_cases(report, sys.argv[2], is_long)
        # 205 is mpirun's own, where it gives its daemon on the other host up before it has heard of the rank's end.
        lost_host_case(report, train, "a cable that is pulled", lambda hosts: hosts.cut("host1"), [69, 205], ["waited 3 s for rank 1", "train: error:"])
        if is_long:
            lost_host_case(report, train, "a host that dies", lambda hosts: kill_all(hosts, "host1"), [128 + signal.SIGKILL, 9, 205], [])
    except Unavailable as reason:
        report.case("hosts, which could be made before", [str(reason)])
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
