#!/usr/bin/env python3
"""On a terminal a run prints one live line, with its share of the machine's product rate; with its output in a file it prints plain lines and
measures nothing. A chat answers what is typed, and what a file has. Usage: terminal_test.py TRAIN"""

import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness
import tiny_run


def run_on_terminal(command, folder):
    """(exit code, what the terminal saw)"""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=folder, env=harness.clean_env())
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the last writer is gone
            break
        if not part:
            break
        seen += part
    os.close(ours)
    return process.wait(60), seen.decode(errors="replace")


TEMPLATE = ("{% for m in messages %}{% if m['role'] == 'user' and 'forbidden' in m['content'] %}{{ raise_exception('not that') }}{% endif %}"
            "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
CHAT = """\
[model]
layers = 2
heads = 2
width = 48
context = 4096
[data]
train = "chats.jsonl"
format = "chat"
tokenizer = "tokenizer"
overlong = "truncate"
[train]
steps = 200
global_batch = 3
sequence = 96
lr = 1e-2
schedule = "constant"
seed = 3
[run]
dir = "out"
sample_tokens = 0
"""


def chat_model(train, folder):
    """Trains a model that knows three conversations, one of which has no end that it has seen."""
    (folder / "tokenizer").mkdir()
    shutil.copy(harness.ROOT / "tests" / "data" / "tokenizers" / "qwen2" / "tokenizer.json", folder / "tokenizer")
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"}))
    chats = [["hello", "good day"], ["hello", "good day", "who", "a model"], ["hello", "good day", "sing", "la " * 400]]
    lines = [json.dumps({"messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(chat)]}) for chat in chats]
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "chat.toml").write_text(CHAT)
    return harness.run([train, "chat.toml"], 120, cwd=folder, env={"OMP_NUM_THREADS": "1"})


def chat_from(command, folder, text):
    """A chat whose turns are the lines of a file."""
    (folder / "turns.txt").write_text(text)
    return harness.run(["sh", "-c", 'exec "$@" < turns.txt', "sh", *command], 60, cwd=folder)


def type_chat(command, folder, steps):
    """Types a text, or presses Ctrl-C, when the terminal has seen what a step waits for. (exit code, all that it has seen)"""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=harness.clean_env(), start_new_session=True)
    os.close(theirs)
    seen, at, limit = "", 0, time.monotonic() + 60
    while time.monotonic() < limit:
        if steps and (found := seen.find(steps[0][0], at)) >= 0:
            at = found + len(steps[0][0])
            _, typed = steps.pop(0)
            process.send_signal(signal.SIGINT) if typed is None else os.write(ours, typed.encode())
        if not select.select([ours], [], [], 0.05)[0]:
            continue
        try:
            seen += os.read(ours, 65536).decode(errors="replace").replace("\r\n", "\n")
        except OSError:
            break
    os.close(ours)
    if process.poll() is None and time.monotonic() >= limit:
        process.kill()
    return process.wait(60), seen


def chat_cases(train, report):
    with tempfile.TemporaryDirectory(prefix="chat.") as scratch:
        folder = pathlib.Path(scratch)
        trained = chat_model(train, folder)
        greedy = [train, "sample", "out", "--chat", "--temperature", "0"]
        for ranks in ([], ["--set", "comm.ranks=2"]):
            result = chat_from([*greedy, *ranks], folder, "hello\n\nwho\n")
            rates = re.findall(r"^\[(\d+) tokens, [\d.]+ tokens/s\]$", result.err, re.M)
            problems = [] if result.code == 0 and result.out == "good day\na model\n" and len(rates) == 2 else [f"code {result.code}, said {result.out!r}"]
            report.case(f"a chat from a file{', 2 ranks' if ranks else ''}", problems, f"{trained}\n{result}" if problems else "")
        result = chat_from([*greedy, "--tokens", "2"], folder, "hello\n/exit\nwho\n")
        problems = [] if result.code == 0 and re.fullmatch(r"\[2 tokens, .* cut at its limit\]\n", result.err) and result.out.count("\n") == 1 else [f"code {result.code}"]
        report.case("a chat ends by /exit, an answer at its limit", problems, result if problems else "")
        code, seen = type_chat([*map(str, greedy), "--tokens", "100000", "--set", "train.sequence=4096"], folder,
                               [("> ", "hello\n"), ("tokens/s]", "sing\n"), ("la la la la", None), ("interrupted]", "forbidden\n"), ("not that", None),
                                ("(/exit ends the chat)", "\x04")])
        problems = [] if code == 0 else [f"exit code {code}"]
        problems += [] if "good day\n[" in seen else ["no answer"]
        report.case("a chat on a terminal: Ctrl-C ends an answer, a refused turn is dropped, Ctrl-D ends", problems, seen[-1500:] if problems else "")
        (folder / "plain").mkdir()
        shutil.copy(folder / "tokenizer" / "tokenizer.json", folder / "plain")
        for name, words, code, said in (("a prompt", ["--prompt", "x"], 64, "--chat goes with no prompt"), ("no template", ["--set", "data.tokenizer=plain"], 67, "no chat template"),
                                        ("a refused system", ["--system", "x", "--set", "data.chat_template=refuses.jinja"], 65, "the chat template refuses")):
            (folder / "refuses.jinja").write_text("{{ raise_exception('no') }}")
            result = chat_from([*greedy, *words], folder, "hello\n")
            problems = [] if result.code == code and said in result.last_error_line() and not result.out else [f"code {result.code}, said {result.err!r}"]
            report.case(f"a chat with {name} is refused", problems, result if problems else "")
        result = harness.run([train, "sample", "out", "--system", "x"], 60, cwd=folder)
        report.case("a system message without a chat is refused", [] if result.code == 64 and "--system" in result.err else [f"code {result.code}"], result)
        result = chat_from(greedy, folder, "forbidden\nhello\n")
        report.case("a refused turn of a file ends the chat", [] if result.code == 65 and "not that" in result.err and not result.out else [f"code {result.code}"], result)

        for name, command in (("", greedy), (", 3 ranks", harness.launch(3, greedy))):
            result = chat_from(command, folder, "x" * (2 << 20))
            said = "a line is larger than 1 MiB (stdin"
            report.case(f"a line without an end is refused{name}", [] if result.code == 65 and said in result.last_error_line() else [f"code {result.code}"], result)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    for ranks in (None, 2):
        name = f"{ranks or 1} rank{'s' if ranks else ''}"
        with tempfile.TemporaryDirectory(prefix="terminal.") as folder:
            config = tiny_run.write_files(folder)
            command = harness.launch(ranks, [str(train), str(config), "--verify-data", *tiny_run.options(run__sample_tokens=0)])
            code, seen = run_on_terminal([str(part) for part in command], folder)
            lines = re.findall(r"\rstep \d/3 .*?\d+% of ceiling", seen.replace("\x1b[K", ""))
            problems = [] if code == 0 else [f"exit code {code}"]
            problems += [] if len(lines) >= 3 else [f"{len(lines)} live lines with a share of the ceiling, expected 3"]
            problems += [] if "\rverifying data: 0 %" in seen else ["no line while the data is verified"]
            report.case(f"{name}, on a terminal", problems, seen if problems else "")
        with tempfile.TemporaryDirectory(prefix="terminal.") as folder:
            config = tiny_run.write_files(folder)
            result = harness.run(harness.launch(ranks, [train, config, "--verify-data", *tiny_run.options(run__sample_tokens=0)]), 60, cwd=folder)
            problems = [] if result.code == 0 else [f"exit code {result.code}"]
            problems += ["plain output speaks of a ceiling, or redraws a line"] if "ceiling" in result.out or "verifying" in result.out or "\r" in result.out else []
            report.case(f"{name}, into a file", problems, result if problems else "")
    chat_cases(train, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
