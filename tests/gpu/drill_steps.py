"""The steps of tests/gpu/drill: each runs what the archive's plan says of it, and returns (outcome, detail). An outcome is "passed", "FAILED",
"skipped" or "not finished"."""

import html
import os
import pathlib
import re
import time

import bench_rows
import drill_machine
import drill_tools
import losses_test
import train_test

SKIPPED = 77
ALONE = 6  # cases that are run again beside each other


def outcome_of(rc):
    return {0: "passed", SKIPPED: "skipped", "timeout": "not finished"}.get(rc, "FAILED")


def last_line(log):
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:100] if lines else ""


class Steps:
    def __init__(self, root, logs, work, env, plan, failed_before=None):
        """failed_before: {program: names of cases} that have not passed in part a. `failed` are those of now."""
        self.root, self.logs, self.work, self.env, self.plan = root, logs, work, env, plan
        self.failed_before, self.failed, self.background, self.was_skipped = failed_before or {}, {}, None, False

    def log_of(self, step, what=""):
        return self.logs / (re.sub(r"\W+", "_", f"{step['name']} {what}".strip())[:100] + ".txt")

    def start(self, words, log):
        return drill_machine.Program([self.root / "programs" / words[0], *words[1:]], log, self.env, self.work)

    def run(self, step, ends):
        return getattr(self, step["kind"])(step, ends)

    def end_background(self):
        if self.background is not None and not self.background.has_ended():
            self.background.kill()
        self.background = None

    def peer(self, step, ends):
        log = self.log_of(step)
        self.end_background()
        program = drill_tools.start_peer(step, log, self.work)
        if step["in_background"]:
            self.background = program
            return "passed", "goes on in the background"
        drill_machine.finish([program], ends)
        return self.figures_of(program, log)

    def sanitizer(self, step, ends):
        return drill_tools.sanitize(self, step, ends, self.failed_before)

    def counters(self, step, ends):
        return drill_tools.count(self, step, ends)

    def figures(self, step, ends):
        log = self.log_of(step)
        self.end_background()
        program = self.start([step["program"], *step["args"]], log)
        drill_machine.finish([program], ends)
        return self.figures_of(program, log)

    @staticmethod
    def figures_of(program, log):
        text = log.read_text(errors="replace")
        missing = re.search(r"(no cuDNN here|no CUDA runtime here|cuDNN .* is too old|attention by cuDNN is not in this build).*", text)
        if program.rc != 0 and missing:
            return "skipped", missing.group(0)[:100]
        lines = bench_rows.lines_of(text)
        if program.rc == 0 and not lines:
            return "FAILED", "it has printed no report"
        return outcome_of(program.rc), lines[0][:100] if lines else f"{program.rc}: {last_line(log)}"

    def losses(self, step, ends):
        reference, log, data = self.plan["references"][step["reference"]], self.log_of(step), self.root / "data"
        out = self.work / re.sub(r"\W+", "_", step["name"])
        command = losses_test.command(step["program"], data / reference["config"], out, data / reference["corpus"], reference["dtype"], "cuda",
                                      reference["steps"])
        words = [self.root / "programs" / step["program"], *command[1:], *step["args"]]
        if step["transport"]:
            mpirun = train_test.two_ranks(step["transport"], words)
            env = {**self.env, **train_test.NCCL_ON_ONE_GPU} if step["transport"] == "nccl" else self.env
            program = drill_machine.Program([self.root / "usr/bin" / mpirun[0], *mpirun[1:]], log, env, self.work)
        else:
            program = drill_machine.Program(words, log, self.env, self.work)
        drill_machine.finish([program], ends)
        missing = re.search(r"no NCCL here.*", log.read_text(errors="replace"))
        if program.rc != 0 and step["transport"] == "nccl" and missing:
            return "skipped", missing.group(0)[:100]
        if program.rc != 0:
            return outcome_of(program.rc), f"{program.rc}: {last_line(log)}"
        bound, expected, found = losses_test.BOUNDS[reference["dtype"]], reference["losses"], losses_test.losses(out)
        problems = losses_test.differences(found, expected, bound, reference["steps"])
        if problems:
            return "FAILED", problems[0]
        apart = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
        return "passed", f"{len(found)} losses at most {apart:.1e} apart, {bound:.0e} allowed"

    def cases(self, step, ends):
        """Which cases have passed is read off each process's report; the others are run again, each by itself, since an error of the GPU ends all
        that its process still has to do."""
        log = self.log_of(step, "list")
        listing = self.start([step["program"], *step["args"], "--list-test-names-only"], log)
        drill_machine.finish([listing], ends)
        names = [name for name in log.read_text(errors="replace").splitlines()[1:] if name]
        if not names or not isinstance(listing.rc, int) or listing.rc < 0:  # else the exit code is their number
            return "FAILED", f"it lists no cases: {listing.rc}: {last_line(log)}"
        groups = [group for group in (names[i :: step["processes"]] for i in range(step["processes"])) if group]
        passed = self.run_groups(step, groups, ends)
        again = [name for name in names if name not in passed]
        for i in range(0, len(again), ALONE):
            if time.monotonic() < ends:
                passed |= self.run_groups(step, [[name] for name in again[i : i + ALONE]], ends, f"again {i // ALONE}")
        failed = [name for name in names if name not in passed]
        if not failed and self.was_skipped:
            return "skipped", f"{len(names)} cases, none of which can be run here"
        if not failed:
            return "passed", f"{len(names)} cases" + (f", {len(again)} of them not before they ran by themselves" if again else "")
        (self.logs / self.log_of(step, "failed").name).write_text("\n".join(failed) + "\n")
        self.failed.setdefault(step["program"], []).extend(failed)
        outcome = "not finished" if time.monotonic() >= ends else "FAILED"
        return outcome, f"{len(failed)} of {len(names)} cases did not pass: {failed[0]}"[:100]

    @staticmethod
    def write_names(listing, names):
        listing.write_text("".join(f"{spelled(name)}\n" for name in names))

    def run_groups(self, step, groups, ends, what=""):
        """The names of those cases that passed."""
        programs, reports = [], []
        for i, group in enumerate(groups):
            listing = self.work / f"cases-{os.getpid()}-{i}.txt"
            self.write_names(listing, group)
            reports.append(self.work / f"cases-{os.getpid()}-{i}.xml")
            reports[-1].unlink(missing_ok=True)
            log = self.log_of(step, f"{what} {i}")
            programs.append(self.start([step["program"], "-f", listing, "-r", "xml", "-o", reports[-1]], log))
        drill_machine.finish(programs, ends)
        self.was_skipped = all(program.rc == SKIPPED for program in programs)
        passed_by_group = []
        for program, report in zip(programs, reports):
            text = report.read_text(errors="replace") if report.is_file() else ""
            with open(program.log, "a") as log:
                log.write(f"{text[-200000:]}\nended with {program.rc}\n")
            of_this = passed_cases(text)
            if program.rc not in (0, SKIPPED) and of_this.issuperset(groups[len(passed_by_group)]):
                of_this = set()  # it broke when all seemed to be done
            passed_by_group.append(of_this)
        return set().union(*passed_by_group)


def spelled(name):
    """As Catch2 wants it in a list of names, each of which it puts in quotes: a comma would end it there too."""
    return re.sub(r'([\\,"])', r"\\\1", name)


def passed_cases(report):
    """The names of those cases in Catch2's report, which may be cut off anywhere, that ran to their end without a failure."""
    passed = set()
    for part in report.split("<TestCase ")[1:]:
        name = re.match(r'name="([^"]*)"', part)
        result = re.search(r"<OverallResult success=\"(true|false)\"", part)
        if name and result and result.group(1) == "true":
            passed.add(html.unescape(name.group(1)))
    return passed
