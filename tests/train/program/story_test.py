#!/usr/bin/env python3
"""What the README says about fine-tuning on one's own documents, word for word but for the model's folder and how long and fast it trains: its
configuration and its commands, on a small model that is its own tokenizer's, and what they leave.
Usage: story_test.py TRAIN"""

import json
import pathlib
import re
import shlex
import sys
import tempfile

import harness
from huggingface_test import read_tensors
from report_test import data_of

LIMIT_S = 60
SECTION = "### Fine-tuning on your documents"
MODEL = harness.ROOT / "tests" / "data" / "huggingface" / "gpt2"
PEOPLE, THINGS = ("Ann", "Ben", "Cid", "Dan", "Eve", "Fay"), ("the sea", "a field", "the sun", "a river")
SMALLER = {"epochs = 3": "steps = 40", "lr = 1e-3": "lr = 1e-2\nsequence = 64", 'tokenizer = "~/models/gpt2"\n': ""}  # the model's tokens are bytes


def blocks_of(readme):
    """The indented blocks of the section, without their indent."""
    section = readme.partition(SECTION + "\n")[2].partition("\n#")[0]
    return [re.sub("^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n)+", section, re.M)]


def write_inputs(folder, toml):
    """The configuration and its documents; what was not there to be replaced."""
    missing = [text for text in SMALLER if text not in toml]
    for text, instead in SMALLER.items():
        toml = toml.replace(text, instead)
    (folder / "tune.toml").write_text(toml.replace("~/models/gpt2", str(MODEL)))
    lines = [{"question": f"Who saw {thing}?", "answer": f" {person} saw {thing}."} for person in PEOPLE for thing in THINGS]
    (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [f"the README has no {text!r}" for text in missing]


def run_commands(train, folder, commands):
    """The last result, or that of what failed."""
    result = None
    for line in commands.splitlines():
        words = [str(train) if word == "build/train" else word for word in shlex.split(line, comments=True)]
        command = harness.mpirun(words[3], words[4:]) if words[0] == "mpirun" else words
        result = harness.run(command, LIMIT_S, cwd=folder)
        if result.code != 0:
            return result
    return result


def report_problems(run):
    data, metrics = data_of(run / "report.html"), harness.read_metrics(run)
    loss = data["curves"]["loss"]["mean"]
    problems = [] if data["state"] == "finished" and len(loss) == len(metrics) == 40 else [f"the report is of {len(loss)} steps, {data['state']}"]
    problems += [] if loss[-1] < 0.7 * loss[0] else [f"the loss falls from {loss[0]} to {loss[-1]} only"]
    return problems + ([] if "rank = 16" in data["config"] else ["the report has another configuration"])


def export_problems(train, folder):
    adapter = read_tensors(folder / "my-adapter" / "adapter_model.safetensors")
    kinds = {re.sub(r".*\.(c_\w+)\.lora_([AB])\.weight", r"\1 \2", name) for name in adapter}
    problems = [] if kinds == {"c_attn A", "c_attn B", "c_fc A", "c_fc B"} else [f"the adapter has {sorted(adapter)}"]
    tuned, model = (read_tensors(path / "model.safetensors") for path in (folder / "tuned", MODEL))
    changed = {name for name in model if tuned.get(name) != model[name]}
    problems += [] if set(tuned) == set(model) else [f"tensors of the export differ: {sorted(set(tuned) ^ set(model))}"]
    problems += [] if changed and all(re.search(r"(c_attn|c_fc)\.weight$", name) for name in changed) else [f"changed are {sorted(changed)}"]
    losses = []
    for what in ("runs/tune-1", "tuned"):
        keys = ["data.kind=text", "data.format=jsonl", "data.prompt_field=question", "data.field=answer", "train.sequence=64"]
        result = harness.run([train, "--evaluate", what, "answers.jsonl", *sum((["--set", key] for key in keys), [])], LIMIT_S, cwd=folder)
        found = re.match(r"loss (\S+) ", result.out)
        losses.append(float(found[1]) if found else float("nan"))
    return problems + ([] if abs(losses[0] - losses[1]) <= 1e-5 else [f"loss of run and export: {losses}; {result}"])


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    report = harness.Report()
    blocks = blocks_of((harness.ROOT / "README.md").read_text())
    with tempfile.TemporaryDirectory(prefix="story.") as place:
        folder = pathlib.Path(place)
        problems = [] if len(blocks) == 2 else [f"{len(blocks)} blocks, not a configuration and commands"]
        problems = problems or write_inputs(folder, blocks[0])
        report.case("the README has a configuration and its commands", problems)
        if not problems:
            result = run_commands(train, folder, blocks[1])
            report.case("every command ends well", [] if result and result.code == 0 else ["it failed"], result)
            if result and result.code == 0:
                report.case("the report shows the run, which learns", report_problems(folder / "runs" / "tune-1"))
                report.case("the exports are the run's", export_problems(train, folder))
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
