"""A Slurm of Debian's packages on this machine: munged, slurmctld and a slurmd for each node, in a folder and on ports of their own, so that they meet
no other Slurm. The daemons are children of this process and end with it."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("unshare", "hostname", "munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "squeue", "scontrol")
START_S = 30

CONFIG = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
ReturnToService=2
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
TmpFS={folder}/%n
StateSaveLocation={folder}/state
SlurmUser=root
SlurmdUser=root
SwitchType=switch/none
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
KillWait=5
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
NODE = "NodeName={name} NodeHostname=localhost Port={port} CPUs=8 Sockets=8 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN"

# A node's name and /dev/shm are its own: Open MPI's segments there are named after both.
OWN_HOST = 'hostname "$1" && mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N "$1"'


class Unavailable(Exception):
    pass


def check_available():
    """Raises Unavailable with the reason why there can be no Slurm here."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        raise Unavailable(f"{', '.join(missing)} not found: apt-get install munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins")
    if os.geteuid() != 0:
        raise Unavailable("only root starts slurmd")
    if subprocess.run(["unshare", "-mu", "true"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise Unavailable("no namespaces here")


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    """A context. `env` are the variables that Slurm's commands need."""

    def __init__(self, nodes=("n0", "n1")):
        self.nodes, self._daemons = nodes, []

    def __enter__(self):
        check_available()
        self._temporary = tempfile.TemporaryDirectory(prefix="slurm.")
        self.folder = pathlib.Path(self._temporary.name)
        ports = free_ports(1 + len(self.nodes))
        lines = [NODE.format(name=name, port=port) for name, port in zip(self.nodes, ports[1:])]
        for name in ("state", *self.nodes):
            (self.folder / name).mkdir()
        config = self.folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=self.folder, ports=ports, nodes="\n".join(lines)))
        self.env = {"SLURM_CONF": str(config), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munge.pid",
                     f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed")
        self._wait("munged", lambda: (self.folder / "munge.socket").exists())
        self._daemon("slurmctld", "-D")
        for name in self.nodes:
            self._daemon("unshare", "-mu", "sh", "-c", OWN_HOST, "sh", name)
        self._wait("the nodes", lambda: self.command("sinfo", "-h", "-o", "%T").stdout.split() == ["idle"])

    def _daemon(self, *command):
        with open(self.folder / f"{command[0]}.out", "a") as out:
            self._daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **self.env}))

    def _wait(self, what, is_ready):
        deadline = time.monotonic() + START_S
        while not is_ready():
            ended = [one.args[0] for one in self._daemons if one.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(f"--- {p.name}\n{p.read_text()[-2000:]}" for p in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")))
                raise RuntimeError(f"{ended[0] + ' has ended' if ended else what + ' did not come'}\n{logs}")
            time.sleep(0.1)

    def command(self, *command, extra=None, **options):
        env = {**os.environ, **self.env, **(extra or {})}
        return subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=env, **options)

    def __exit__(self, *_):
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._temporary.cleanup()
