"""Hosts made of namespaces: each with a name, an address and a shaped link of its own, joined by a bridge, and with processes and memory in
/dev/shm that no other host sees. Open MPI takes them for what real ones are, because its launcher's remote shell is a script that enters the
namespaces. Needs root, ip and tc."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

PREFIX = "zshard-"
ENDS = (signal.SIGTERM, signal.SIGHUP)  # of whoever makes hosts; SIGINT is an exception by itself
FRONT = "front"  # where mpirun runs. It sees everybody's processes, since they are its children; the hosts see their own only
NETWORK, NETWORK_OF_IPV6 = "10.77.31", "fd00:77:31:"
CIDR = f"{NETWORK}.0/24"
DEFAULT_CONTROL = "cubic"
# Else mpirun takes minutes to notice that a host is out of reach (docs/clusters.md).
NOTICE_SOON = [word for name, value in (("time", 2), ("intvl", 1), ("probes", 2)) for word in ("--mca", f"oob_tcp_keepalive_{name}", str(value))]


class Unavailable(Exception):
    """Why this machine cannot have such hosts, or, where they are there, what could not be done to them."""


def _run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return done.stdout


def _namespaces():
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.startswith(PREFIX)]


def _folders():
    return pathlib.Path(tempfile.gettempdir()).glob(f"{PREFIX}*-hosts.*")


def _is_left_behind(name):
    """Whether who made it has ended."""
    pid = name[len(PREFIX):].split("-")[0]
    return pid.isdigit() and not pathlib.Path("/proc", pid).exists()


def _remove(namespace):
    for pid in subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout.split():
        subprocess.run(["kill", "-9", pid], capture_output=True)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


class Hosts:
    """`count` hosts named host0, host1 ..., each link limited to `rate` (as tc writes it). A context manager: everything that was made, and every
    process in it, is gone at the end. What a killed user left behind is removed by the next one. With `divides_cpus` each host has an even part of
    this machine's processors for itself, where there are enough; else all have all. `family`: of their addresses, 4 or 6; lo has both."""

    def __init__(self, count, rate="1gbit", divides_cpus=False, family=4):
        self.names = [f"host{i}" for i in range(count)]
        self.rate, self.family, self.folder = rate, family, None
        self.cpus = sorted(os.sched_getaffinity(0))
        self.cpus_each = len(self.cpus) // count if divides_cpus else 0

    def __enter__(self):
        for tool in ("ip", "tc", "unshare", "taskset", "pgrep", "sysctl"):
            if not shutil.which(tool):
                raise Unavailable(f"there is no {tool} (Debian: iproute2, util-linux, procps)")
        if os.geteuid() != 0:
            raise Unavailable("only root may make network namespaces")
        for namespace in filter(_is_left_behind, _namespaces()):
            _remove(namespace)
        for folder in _folders():
            if _is_left_behind(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
        for number in ENDS:  # else it would leave them behind
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-hosts."))
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        came = []  # one that comes now would leave the rest behind
        handlers = [signal.signal(number, lambda number, _: came.append(number)) for number in ENDS]
        for name in [*self.names, FRONT, "switch"]:
            _remove(self.namespace(name))
        shutil.rmtree(self.folder, ignore_errors=True)
        for number, handler in zip(ENDS, handlers):
            signal.signal(number, handler)
        if came:
            sys.exit(128 + came[0])

    def namespace(self, name):
        return f"{PREFIX}{os.getpid()}-{name}"

    def pids(self, name):
        """Of everything that runs on the host."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.namespace(name)).split()]

    def sent_bytes(self, name):
        """That have left the host by its link, as the interface itself counts them."""
        return json.loads(_run("ip", "-s", "-j", "-n", self.namespace(name), "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]

    def congestion_control(self):
        """Of TCP on the hosts: Linux's own default, unless this machine has another one and does not allow that."""
        return _run("ip", "netns", "exec", self.namespace(self.names[0]), "sysctl", "-n", "net.ipv4.tcp_congestion_control").strip()

    def cut(self, name):
        """Pulls the host's cable."""
        _run("ip", "-n", self.namespace(name), "link", "set", "eth0", "down")

    def on(self, name, command):
        """The command that runs `command` on the host."""
        return [str(self.folder / "agent"), name, *map(str, command)]

    def mpirun(self, ranks_each, command, *options, hostfile=None, network="eth0", mpi_network=None, tells_mpi=True):
        """The command that runs `command` on every host, started on a machine before them. `ranks_each`: a number, or one for each host.
        `hostfile` is where the hosts are written to instead of into the command, `network` how it names theirs, `mpi_network` how
        MPI does, if otherwise; without `tells_mpi` MPI is not told."""
        slots = dict(zip(self.names, [ranks_each] * len(self.names) if isinstance(ranks_each, int) else ranks_each))
        if hostfile:
            hostfile.write_text("".join(f"{name} slots={count}\n" for name, count in slots.items()))
        where = ["--hostfile", hostfile] if hostfile else ["--host", ",".join(f"{name}:{count}" for name, count in slots.items())]
        told = ["--mca", "btl_tcp_if_include", mpi_network or network] if tells_mpi else []
        return self.on(FRONT, ["mpirun", "-q", *where, "--mca", "plm_rsh_agent", self.folder / "agent", "--mca", "btl", "self,vader,tcp",
                                 *told, "--mca", "oob_tcp_if_include", network, *NOTICE_SOON, *options, *command])

    def _address(self, number):
        return f"{NETWORK}.{number + 1}" if self.family == 4 else f"{NETWORK_OF_IPV6}:{number + 1}"

    def _make(self):
        switch = self.namespace("switch")
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        plugs = list(enumerate([*self.names, FRONT]))
        for i, name in plugs:
            self._plug_in(name, i, switch)
        lines = ["127.0.0.1 localhost", *(f"{self._address(i)} {name}" for i, name in plugs)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        self._write_agent()
        _run(*self.on("host0", ["true"]))

    def _plug_in(self, name, number, switch):
        namespace, port = self.namespace(name), f"port{number}"
        _run("ip", "netns", "add", namespace)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
        _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        prefix = ["24"] if self.family == 4 else ["64", "nodad"]  # nobody else is there who could have the address
        _run("ip", "-n", namespace, "address", "add", f"{self._address(number)}/{prefix[0]}", "dev", "eth0", *prefix[1:])
        # A wire sends packet by packet; pieces of 64 KiB, which the kernel likes to cut behind the limiter, come through it in jolts.
        _run("ip", "-n", namespace, "link", "set", "eth0", "gso_max_size", "16384")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        # Linux's own default, where this machine has another one and allows it.
        subprocess.run(["ip", "netns", "exec", namespace, "sysctl", "-q", "-w", f"net.ipv4.tcp_congestion_control={DEFAULT_CONTROL}"], capture_output=True)
        # What is sent to a host that is gone is given up after seconds, else after a quarter of an hour (docs/clusters.md).
        _run("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", "net.ipv4.tcp_retries2=4")
        _run("tc", "-n", namespace, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", self.rate, "burst", "256kb", "latency", "50ms")

    def _cpus_of(self, number):
        own = self.cpus[number * self.cpus_each:(number + 1) * self.cpus_each] or self.cpus
        return ",".join(map(str, own))

    def _write_agent(self):
        """A remote shell: agent HOST COMMAND... Names are the host's own, /etc/hosts is that of these hosts, temporary files are in /dev/shm.
        The first process of the host is its shell, which stays until all that it has started has ended."""
        inside = ('mount --bind "$1" /etc/hosts && hostname "$2" && mount -t tmpfs tmpfs /dev/shm && shift 2 && export TMPDIR=/dev/shm || exit 255\n'
                  '[ $$ != 1 ] && exec sh -c "$*"\n'
                  'sh -c "$*"\ncode=$?\nwhile pgrep -v -x "sh|pgrep" >/dev/null; do sleep 0.05; done\nexit $code')
        agent = self.folder / "agent"
        own_cpus = "\n".join(f"  {name}) taskset -cp {self._cpus_of(i)} $$ >/dev/null ;;" for i, name in enumerate(self.names))
        agent.write_text(f"""#!/bin/sh
host=$1
shift
own="--pid --fork --mount-proc --kill-child"
case $host in
{own_cpus}
  {FRONT}) own= ;;
esac
[ "$own" ] && unset ZSHARD_HOSTS_OF  # as with ssh, mpirun alone passes it on
exec ip netns exec {PREFIX}{os.getpid()}-"$host" unshare --mount --uts $own sh -c '{inside}' sh {self.folder}/hosts "$host" "$@"
""")
        agent.chmod(0o755)
