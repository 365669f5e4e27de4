"""zshard's runs, from Python: metrics and checkpoints as NumPy arrays, tokenizers, plans, and jobs that are started.

    import zshard
    run = zshard.train("c.toml", ranks=2, on_metrics=lambda line: print(line["step"], line["loss"]))
    run.metrics["loss"], run.checkpoint()["token_embedding.weight"]

Training is the program's work; here is no loop of one's own (that is libzshard's, in C++)."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import tomllib

import numpy

from ._zshard import Checkpoint, Error, Tokenizer, Weights, __version__, _fit, _plan

__all__ = ["Checkpoint", "Error", "Run", "Tokenizer", "Weights", "fit", "open_run", "plan", "train", "__version__"]

_POLL_S = 0.05


def _error(text, code):
    error = Error(text)
    error.code = code
    return error


def _toml(value):
    """A key's value as `--set` takes it. A text is one as it stands, where the key is a text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(json.dumps(one) if isinstance(one, str) else _toml(one) for one in value) + "]"
    return str(value)


def _overrides(keys):
    return [f"{key}={_toml(value)}" for key, value in (keys or {}).items()]


def plan(config, ranks=1, set=None):
    """What a run of the configuration file would take on rank 0 of so many, as `zshard plan` says before it has looked at the data: bytes, and units
    with their parameters. `set`: keys that count before the file's, as {"train.micro_batch": 4}. The configuration in force is in "config", a dictionary."""
    found = _plan(os.fspath(config), ranks, _overrides(set))
    found["config"] = tomllib.loads(found["config"])
    return found


def fit(config, ranks=1, memory_bytes=None, set=None):
    """Settings that fit, most tokens a micro-batch first: a list of dictionaries with `changes` (as --set takes them), bytes, and the `share` of the limit
    that is nearest. `memory_bytes`: what each rank may take; None: what this machine's limits leave to ranks that are all on it. train.sequence stays."""
    if memory_bytes is not None and memory_bytes <= 0:
        raise ValueError(f"memory_bytes is {memory_bytes}: give a number of bytes, or None for this machine's limits")
    return _fit(os.fspath(config), ranks, memory_bytes or 0, _overrides(set))


def _numbers(lines):
    """Arrays of f64 by key, one element a line; NaN where a line has no number."""
    keys = dict.fromkeys(key for line in lines for key, value in line.items() if isinstance(value, (int, float)) and not isinstance(value, bool))
    value_of = lambda line, key: line[key] if isinstance(line.get(key), (int, float)) else numpy.nan
    return {key: numpy.array([value_of(line, key) for line in lines], dtype=numpy.float64) for key in keys}


class Run:
    """A run's folder. What is asked for is read then, so that a run which goes on shows what it has come to."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        if not (self.folder / "config.toml").is_file():
            raise _error(f"this is no run's folder: it has no config.toml ({self.folder}): name a run.dir, such as runs/NAME-1", 68)

    def __repr__(self):
        return f"zshard.Run({os.fspath(self.folder)!r})"

    @property
    def config(self):
        """Every key in force, by table."""
        return tomllib.loads((self.folder / "config.toml").read_text())

    @property
    def lines(self):
        """The lines of metrics.jsonl, a dictionary for each step; of a line that is being written nothing."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def metrics(self):
        """Arrays of f64 by name, one element a step: "step", "loss", "val_loss" ...; NaN where a step has no such number."""
        return _numbers(self.lines)

    @property
    def checkpoints(self):
        """Steps that have a checkpoint, ascending."""
        names = os.listdir(self.folder / "checkpoints") if (self.folder / "checkpoints").is_dir() else []
        return sorted(int(name[5:]) for name in names if re.fullmatch("step-[0-9]+", name))

    def checkpoint(self, step=None):
        """The checkpoint of a step; None: the newest. zshard.Error where there is none."""
        steps = self.checkpoints
        if step is None and not steps:
            raise _error(f"the run has no checkpoint ({self.folder}): set checkpoint.every", 68)
        return Checkpoint(os.fspath(self.folder / "checkpoints" / f"step-{steps[-1] if step is None else step}"))

    @property
    def weights(self):
        """The final weights, by the model's own names."""
        return Weights(os.fspath(self.folder / "model.safetensors"))


def open_run(folder):
    """The run in a folder, finished or not."""
    return Run(folder)


def _program():
    found = os.environ.get("ZSHARD_PROGRAM") or shutil.which("zshard")
    if not found:
        raise FileNotFoundError("the program zshard is not in PATH: install it, name it in ZSHARD_PROGRAM, or give program=")
    return found


class _Follower:
    """Hands on the lines of metrics.jsonl, each once."""

    def __init__(self, use):
        self.use, self.file = use, None

    def look(self, path):
        if self.file is None and path.exists():
            self.file = open(path)
        while self.file is not None:
            at = self.file.tell()
            line = self.file.readline()
            if not line.endswith("\n"):
                self.file.seek(at)
                return
            self.use(json.loads(line))


def _told(stream, lines):
    for line in stream:
        lines.append(line)


def _stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def train(config, ranks=1, set=None, on_metrics=None, arguments=(), launcher=(), program=None):
    """Starts a run as a process of its own, waits for it, and returns it as a Run.

    `ranks` are threads of that process (comm.ranks); with a `launcher`, such as ["mpirun", "-q", "-np", "4"], its ranks. `set`: keys, as of plan().
    `arguments`: further ones, such as ["--resume", "auto"]. `on_metrics` is called with each line of metrics.jsonl, a dictionary (of a run
    that goes on, with those before, too); what it raises stops the run, as Ctrl-C does, and is raised. zshard.Error with the program's last line and exit code where that is not 0: 75 where the run was
    stopped. `program`: the program; None: ZSHARD_PROGRAM, or zshard in PATH."""
    program = os.fspath(program or _program())
    command = [program] if os.path.basename(program) == "train" else [program, "train"]
    keys = dict(set or {}) if launcher else {"comm.ranks": ranks, **(set or {})}
    settings = [word for one in _overrides(keys) for word in ("--set", one)]
    out, err, follower, folder = [], [], _Follower(on_metrics or (lambda line: None)), None
    with subprocess.Popen([*launcher, *command, os.fspath(config), *settings, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, text=True, errors="replace") as process:
        readers = [threading.Thread(target=_told, args=pair, daemon=True) for pair in ((process.stdout, out), (process.stderr, err))]
        for reader in readers:
            reader.start()
        try:
            ended = False
            while not ended:
                ended = process.poll() is not None
                for reader in readers if ended else ():
                    reader.join()
                folder = folder or _folder_told(out)
                # With its first step a run that goes on has cut off what was written behind its checkpoint.
                if folder and (ended or any(line.startswith("step ") for line in list(out))):
                    follower.look(folder / "metrics.jsonl")
                time.sleep(0 if ended else _POLL_S)
        except BaseException:
            _stop(process)
            raise
    if process.returncode != 0:
        last = next((line.strip() for line in reversed(err) if line.strip()), f"{program} ended with {process.returncode}, and said nothing")
        raise _error(last, process.returncode)
    if folder is None:
        raise ValueError(f"nothing was trained: with {list(arguments)} {program} writes to no folder")
    return Run(folder)


def _folder_told(lines):
    for line in list(lines):
        found = re.search(r"; writing to (.*)\n", line)
        if found:
            return pathlib.Path(found[1])
    return None
