#!/usr/bin/env python3
"""What a run shows of itself: report.html, written while it runs and by --report, opened in headless Chromium where there is one; and
TensorBoard's file of events.
Usage: report_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import json
import os
import pathlib
import re
import signal
import struct
import sys

import chromium
import harness
import tfevents
from resume_test import CANNOT_CREATE, DATASET, LIMIT_S, Folder, after_lines, expect

USAGE, NON_FINITE = 64, 76
CURVES = {"loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "tokens_per_s": "tokens_per_s", "peak_bytes": "peak_bytes"}
TAGS = {"loss/train": "loss", "train/learning_rate": "lr", "train/gradient_norm": "grad_norm", "speed/tokens_per_s": "tokens_per_s",
        "speed/step_ms": "step_ms", "memory/peak_bytes": "peak_bytes"}
EVENTS = "events.out.tfevents.zshard"


def data_of(page):
    """The numbers in a report."""
    text = pathlib.Path(page).read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))


def is_near(a, b):
    return a is None and b is None or a is not None and b is not None and abs(a - b) <= 1e-5 * abs(b)


def curve_problems(data, metrics):
    problems = []
    for name, key in CURVES.items():
        curve = data["curves"][name]
        if curve["step"] != [line["step"] for line in metrics]:
            problems.append(f"{name}: steps {curve['step']}")
        elif not all(is_near(a, line[key]) for a, line in zip(curve["mean"], metrics)):
            problems.append(f"{name}: {curve['mean']} of {[line[key] for line in metrics]}")
    validated = [line for line in metrics if "val_loss" in line]
    curve = data["curves"]["validation"]
    if curve["step"] != [line["step"] for line in validated] or not all(is_near(a, b["val_loss"]) for a, b in zip(curve["mean"], validated)):
        problems.append(f"validation: {curve} of {validated}")
    return problems


def event_problems(path, metrics):
    scalars, problems = tfevents.read(path), []
    as_f32 = lambda value: struct.unpack("<f", struct.pack("<f", value))[0]
    for tag, key in TAGS.items():
        wanted = {line["step"]: as_f32(line[key]) for line in metrics}
        problems += [] if scalars.get(tag) == wanted else [f"{tag}: {scalars.get(tag)}, not {wanted}"]
    wanted = {line["step"]: as_f32(line["val_loss"]) for line in metrics if "val_loss" in line}
    return problems + ([] if scalars.get("loss/validation", {}) == wanted else [f"loss/validation: {scalars.get('loss/validation')}, not {wanted}"])


def view_problems(browser, page, points, shot=None):
    """Opens the page on a phone and on a screen, light and dark: curves have their points, nothing scrolls sideways, the console is quiet."""
    problems = []
    for width, dark in ((390, False), (1280, True)):
        with chromium.Page(browser, width, dark=dark) as view:
            view.open(pathlib.Path(page).resolve().as_uri())
            drawn = dict(view.evaluate("[...document.querySelectorAll('[data-curve]')].map(p => [p.dataset.curve, Number(p.dataset.points)])"))
            commands = dict(view.evaluate("[...document.querySelectorAll('[data-curve]')].map(p => [p.dataset.curve, p.getAttribute('d').split(/[ML]/).length - 1])"))
            wide = view.evaluate("document.documentElement.scrollWidth")
            outside = view.evaluate("[...document.querySelectorAll('main *')].filter(e => !e.closest('pre') && e.getBoundingClientRect().right > innerWidth + 1)"
                                    ".map(e => e.tagName)")
            problems += [] if drawn == points and commands == points else [f"{width}: curves {drawn}, drawn {commands}, not {points}"]
            problems += [] if wide <= width and not outside else [f"{width}: {wide} wide, outside are {outside}"]
            problems += [f"{width}: {error}" for error in view.errors]
            view.evaluate("document.querySelector('.plot').dispatchEvent(new PointerEvent('pointermove', {clientX: 200, clientY: 300}))")
            tip = view.evaluate("document.querySelector('.tip').innerText")
            problems += [] if "step" in tip and "loss" in tip else [f"{width}: the pointer shows {tip!r}"]
            background = view.evaluate("getComputedStyle(document.body).backgroundColor")
            problems += [] if (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == dark else [f"{width}: dark is {dark}, the page {background}"]
            if shot:
                view.screenshot(f"{shot}-{width}.png")
    return problems


def written(train):
    """A run leaves a report with its numbers, state and memory, and events with the same numbers; --report makes the same one again."""
    with Folder(train) as folder:
        result = folder.start(ranks=2, run__validate_every=4, checkpoint__every=4)
        out = folder.path / "out"
        metrics, data = harness.read_metrics(out), data_of(out / "report.html")
        problems = [] if result.code == 0 else [str(result)]
        problems += curve_problems(data, metrics) + event_problems(out / EVENTS, metrics)
        problems += [] if data["state"] == "finished" and data["steps"] == 8 and data["last"]["step"] == 8 else [f"state {data['state']}"]
        problems += [] if data["kinds"] == metrics[0]["peak_by_kind"] and sum(data["kinds"].values()) == metrics[0]["peak_bytes"] else [f"{data['kinds']}"]
        problems += [] if data["config"] == (out / "config.toml").read_text() else ["not the configuration"]
        again = harness.run([train, "--report", out], LIMIT_S)
        problems += [] if again.code == 0 and str(out / "report.html") in again.out else [str(again)]
        remade = data_of(out / "report.html")
        problems += [f"{key}: {remade[key]}, was {data[key]}" for key in data if key != "written" and remade[key] != data[key]]
        problems += [f"then --overwrite: {r}" for r in [folder.start("--overwrite", run__tensorboard=False)] if r.code != 0]
        problems += [] if (out / "report.html").exists() and not (out / EVENTS).exists() else ["run.tensorboard=false leaves events"]
        return problems


def extras(train):
    """What a run is asked to count is in its report too: lost updates by group, the host's memory, and waits for data; on a phone as well."""
    with Folder(train) as folder:
        keys = {"run__lost_updates_every": 3, "train__groups": '["*.bias: decay=0", "position_embedding*: lr=0"]', "checkpoint__background": True, "checkpoint__every": 4,
                "precision__param": "bf16"}
        result = folder.start(ranks=2, **keys)
        out = folder.path / "out"
        metrics, data = harness.read_metrics(out), data_of(out / "report.html")
        counted = {line["step"]: line["lost_updates"] for line in metrics if "lost_updates" in line}
        problems = [] if result.code == 0 and sorted(counted) == [1, 3, 6] else [f"counted in {sorted(counted)}: {result}"]
        for step, groups in counted.items():
            problems += [] if list(groups) == ["*.bias", "position_embedding*", "others"] else [f"step {step}: groups {list(groups)}"]
            frozen = groups["position_embedding*"]  # their rate is 0
            problems += [] if frozen["f32"] == frozen["bf16"] == 1 else [f"step {step}: {frozen}"]
            problems += [] if 0 <= groups["others"]["f32"] < groups["others"]["bf16"] < 1 else [f"step {step}: {groups['others']}"]
        problems += [] if {g["group"]: [g["elements"], g["f32"], g["bf16"]] for g in data["lost_updates"]}.keys() == counted[6].keys() else ["not the latest"]
        problems += [] if data["curves"]["lost_masters"]["step"] == [1, 3, 6] else [f"curve {data['curves']['lost_masters']}"]
        problems += [] if data["curves"]["host_bytes"]["mean"] == [line["host_bytes"] for line in metrics] else ["not the host's memory"]
        problems += [] if data["waits"]["steps"] == sum("data_wait_ms" in line for line in metrics) else [f"waits {data['waits']}"]
        later = [line["allocations"] for line in metrics[1:]]
        problems += [] if sum(later) == 0 else [f"memory beside what was planned: {later}"]
        if browser := chromium.find():
            points = {name: 8 for name in ("loss", "learning rate", "gradient norm", "tokens/s", "peak", "host")}
            points.update({"f32 weights": 3, "bf16 weights": 3}, **({"wait": 8} if data["waits"]["steps"] else {}))
            shots = os.environ.get("REPORT_SHOTS")
            problems += view_problems(browser, out / "report.html", points, shots and shots + "-extras")
        plain = folder.start(run__dir="plain", **{**keys, "run__lost_updates_every": 0})
        return problems + ([] if harness.weights_hash(plain.out) == harness.weights_hash(result.out) else ["counting changes the weights"])


def mixtures_and_tasks(train):
    """Loads of experts and figures of tasks have curves."""
    with Folder(train) as folder:
        task = folder.path / "sun.jsonl"
        task.write_text("".join(json.dumps({"prompt": "the sun", "choices": [" rises", " falls"], "answer": i}) + "\n" for i in (0, 1)))
        result = folder.start(ranks=2, model__family="mixtral", model__kv_heads=1, model__hidden=16, model__experts=4, model__experts_per_token=2, model__balance_loss=0.01,
                              run__validate_every=4, run__evaluate=f'["{task}"]')
        metrics, data = harness.read_metrics(folder.path / "out"), data_of(folder.path / "out" / "report.html")
        problems = [] if result.code == 0 else [str(result)]
        for curve, worst in (("load_max", max), ("load_min", min), ("load_entropy", min)):
            wanted = [worst(line["experts"][curve]) for line in metrics]
            problems += [] if all(is_near(a, b) for a, b in zip(data["curves"][curve]["mean"], wanted)) else [f"{curve}: {data['curves'][curve]}, not {wanted}"]
        problems += [] if data["tasks"] == {"sun": ["acc", "acc_norm"]} and data["curves"]["task/sun/acc"]["mean"] == [0.5, 0.5] else [f"tasks {data['tasks']}"]
        scalars = tfevents.read(folder.path / "out" / EVENTS)
        problems += [] if scalars.get("task/sun/acc") == {4: 0.5, 8: 0.5} else [f"events of tasks: {scalars.get('task/sun/acc')}"]
        if browser := chromium.find():
            points = {name: 8 for name in ("loss", "learning rate", "gradient norm", "tokens/s", "peak", "most", "least", "least of a mixture", "balance loss")}
            shots = os.environ.get("REPORT_SHOTS")
            problems += view_problems(browser, folder.path / "out" / "report.html", {**points, "validation": 2, "acc": 2, "acc_norm": 2}, shots and shots + "-tasks")
        return problems


def goes_on(train):
    """A run that was killed and goes on has each step once, in report and events, though the file of events was torn; until then its report says that it runs."""
    with Folder(train) as folder:
        out, problems = folder.path / "out", []
        on_start = after_lines(out / "metrics.jsonl", 7, lambda process: process.send_signal(signal.SIGKILL))
        folder.start(on_start=on_start, train__steps=10**6, train__lr="1e-6", checkpoint__every=3, run__validate_every=3)
        while_running = data_of(out / "report.html")
        problems += [] if while_running["state"] == "running" and while_running["curves"]["loss"]["step"] else [f"while it ran: {while_running['state']}"]
        remade = harness.run([train, "--report", out, "--out", folder.path / "r.html"], LIMIT_S)
        broken = data_of(folder.path / "r.html")
        problems += [] if remade.code == 0 and broken["state"] == "broken off" and "--resume latest" in broken["detail"] else [f"after its end: {broken['state']}"]
        seen = tfevents.read(out / EVENTS)["loss/train"]
        with open(out / EVENTS, "ab") as events:
            events.write(b"\x90\x01\0\0\0\0\0\0torn")
        saved = max(int(p.name[5:]) for p in (out / "checkpoints").glob("step-*") if p.name[5:].isdigit())
        result = folder.start("--resume", "latest", train__steps=saved + 2, train__lr="1e-6", checkpoint__every=3, run__validate_every=3)
        metrics = harness.read_metrics(out)
        problems += [] if result.code == 0 and max(seen) >= saved else [str(result)]
        return problems + curve_problems(data_of(out / "report.html"), metrics) + event_problems(out / EVENTS, metrics)


def states(train):
    """A run that is stopped, or whose loss is not finite, says so in its report."""
    with Folder(train) as folder:
        out = folder.path / "out"
        on_start = after_lines(out / "metrics.jsonl", 3, lambda process: process.send_signal(signal.SIGTERM))
        folder.start(on_start=on_start, train__steps=10**6, train__lr="1e-6")
        data = data_of(out / "report.html")
        problems = [] if data["state"] == "stopped" and "on request" in data["detail"] else [f"{data['state']} {data['detail']}"]
        harness.run([train, "--report", out], LIMIT_S)
        problems += [] if data_of(out / "report.html")["state"] == "stopped" else ["--report does not see that it was stopped"]
        result = folder.start(run__dir="wild", train__lr="1e12", train__warmup=0, train__clip=0, train__steps=400)
        data = data_of(folder.path / "wild/report.html")
        wanted = data["state"] == "failed" and "76" in data["detail"] and data["curves"]["loss"]["step"]
        problems += [] if result.code == NON_FINITE and wanted else [f"{result}: {data['state']} {data['detail']}"]
        harness.run([train, "--report", folder.path / "wild"], LIMIT_S)
        data = data_of(folder.path / "wild/report.html")
        return problems + ([] if data["state"] == "failed" and "not finite" in data["detail"] else [f"--report: {data['state']} {data['detail']}"])


def commands(train):
    """--report says in one line what is wrong: no run, a damaged line, no permission, what is in the way, other options; and nothing is lost."""
    with Folder(train) as folder:
        folder.start(run__validate_every=4)
        out, problems = folder.path / "out", []

        def report(*arguments):
            return harness.run([train, "--report", *arguments], LIMIT_S, cwd=folder.path)

        (folder.path / "empty").mkdir()
        for run, words in (("nowhere", ["no such folder", "nowhere"]), ("empty", ["no run's directory", "empty"]), ("tiny.toml", ["no folder", "tiny.toml"])):
            problems += [f"{run}: {p}" for p in expect(report(run), DATASET, *words)]
        for arguments, word in ((["out", "--resume", "latest"], "--resume"), (["out", "tiny.toml"], "tiny.toml"), (["out", "--sample", "out"], "--sample"),
                                (["out", "--export", "x"], "--export")):
            problems += [f"{arguments}: {p}" for p in expect(report(*arguments), USAGE, "--report" if "toml" not in word else "expected", word)]
        problems += expect(harness.run([train, folder.config, "--out", "x.html"], LIMIT_S, cwd=folder.path), USAGE, "--out")
        whole = (out / "metrics.jsonl").read_text()
        lines = whole.splitlines(keepends=True)
        for damage, line in (("{\"step\": 3, \"los\n", 3), ("precious\n", 3), (lines[1], 3), ("\0" * 40 + "\n", 3), ('{"step": 3}\n', 3)):
            (out / "metrics.jsonl").write_text("".join([*lines[:2], damage, *lines[3:]]))
            problems += [f"{damage!r}: {p}" for p in expect(report("out"), DATASET, f"line {line}", "metrics.jsonl", "is written")]
            data = data_of(out / "report.html")
            problems += [] if data["curves"]["loss"]["step"] == [1, 2, 4, 5, 6, 7, 8] and data["damaged"] == [3] else [f"{damage!r}: {data['damaged']}"]
        (out / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:20])  # a line that is being written
        problems += [] if report("out").code == 0 and data_of(out / "report.html")["curves"]["loss"]["step"] == list(range(1, 8)) else ["a torn last line"]
        (out / "metrics.jsonl").unlink()
        problems += [f"no metrics: {p}" for p in expect(report("out"), DATASET, "metrics.jsonl")]
        (out / "metrics.jsonl").write_text(whole)
        (out / "report.html").write_text("precious\n")
        problems += [f"foreign: {p}" for p in expect(report("out"), CANNOT_CREATE, "report.html", "--out")]
        problems += [f"foreign, --overwrite: {p}" for p in expect(folder.start("--overwrite"), CANNOT_CREATE, "report.html")]
        (folder.path / "notes.html").write_text("precious\n")
        problems += [f"--out: {p}" for p in expect(report("out", "--out", "notes.html"), CANNOT_CREATE, "notes.html")]
        problems += [f"--out twice: {r}" for r in (report("out", "--out", "r.html"), report("out", "--out", "r.html")) if r.code != 0]
        problems += [] if {p.read_text() for p in (out / "report.html", folder.path / "notes.html")} == {"precious\n"} else ["something was overwritten"]
        (out / "report.html").unlink()
        os.chmod(out, 0o555)
        result = report("out")
        if os.geteuid() != 0:  # whom no mode stops
            problems += expect(result, CANNOT_CREATE, "report.html", "--out")
        os.chmod(out, 0o755)
        (out / "report.html").unlink(missing_ok=True)
        (out / "report.html").mkdir()
        return problems + expect(report("out"), CANNOT_CREATE, "report.html")


def in_the_way(train):
    """A run goes on without a report or events where something of somebody else's has their names, says so, and keeps it."""
    with Folder(train) as folder:
        folder.start(train__steps=2, checkpoint__every=2)
        out = folder.path / "out"
        for name in ("report.html", EVENTS):
            (out / name).unlink()
            (out / name).symlink_to(folder.path / "tiny.toml")
        before = folder.config.read_bytes()
        result = folder.start("--resume", "latest", train__steps=4)
        problems = [] if result.code == 0 and all(f"/{name} is not as this run wrote it" in result.err for name in ("report.html", EVENTS)) else [str(result)]
        problems += [] if folder.config.read_bytes() == before and (out / "report.html").is_symlink() else ["what a link leads to was changed"]
        with Folder(train) as fresh:
            (fresh.path / "out").mkdir()
            (fresh.path / "out/report.html").write_text("precious\n")
            problems += expect(fresh.start(), CANNOT_CREATE, "report.html")
        return problems


def long_run(train):
    """However long a run was, its report is small, and each point stands for as many steps."""
    with Folder(train) as folder:
        folder.start(train__steps=2)
        out, steps = folder.path / "out", 20000
        line = ('{{"step": {0}, "loss": {1}, "grad_norm": 1, "lr": 0.001, "tokens": {0}, "tokens_per_s": 5, "step_ms": 1, "peak_bytes": 7, "allocations": 0'
                '{2}}}\n')
        (out / "metrics.jsonl").write_text("".join(line.format(s, 100 if s == 777 else s % 2, ', "val_loss": 2' if s % 100 == 0 else "") for s in range(1, steps + 1)))
        result = harness.run([train, "--report", out], LIMIT_S)
        data = data_of(out / "report.html")
        loss = data["curves"]["loss"]
        problems = [] if result.code == 0 and 600 <= len(loss["step"]) <= 1200 and loss["samples"] * len(loss["step"]) >= steps else [str(result)]
        problems += [] if max(loss["high"]) == 100 and min(loss["low"]) == 0 and loss["step"][-1] == steps else ["extremes or the end are lost"]
        problems += [] if len(data["curves"]["validation"]["step"]) == 200 else ["validations are thinned out"]
        problems += [] if (out / "report.html").stat().st_size < 500_000 else ["the report is large"]
        if browser := chromium.find():
            size = {name: len(loss["step"]) for name in ("loss", "learning rate", "gradient norm", "tokens/s", "peak")}
            problems += view_problems(browser, out / "report.html", {**size, "validation": 200}, os.environ.get("REPORT_SHOTS"))
        return problems


def main():
    harness.begin()
    code = harness.run_cases((written, extras, mixtures_and_tasks, goes_on, states, commands, in_the_way, long_run))
    if not chromium.find():
        print("skipped: no Chromium here, so the page was not opened (apt-get install chromium, or ZSHARD_CHROMIUM)")
    return code


if __name__ == "__main__":
    sys.exit(main())
