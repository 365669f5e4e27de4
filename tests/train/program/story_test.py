#!/usr/bin/env python3
"""What the README says about fine-tuning on one's own documents, word for word but for the model's folder and how it trains: its commands, on a
small model that is its own tokenizer's, and what they leave.
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
RUN = "tune-gpt2-1"
# Faster, for longer, and in f32, in which adapters beside the weights and in them are the same model.
TRAINED = {"~/models/gpt2": str(MODEL), "--set train.epochs=3": "--set train.epochs=20 --set train.lr=1e-2 --set precision.param=f32"}
MOST_COMMANDS = 5


def blocks_of(readme):
    """The indented blocks of the section, without their indent."""
    section = readme.partition(SECTION + "\n")[2].partition("\n#")[0]
    return [re.sub("^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n)+", section, re.M)]


def commands_of(block):
    """The block's commands as the test gives them; what was not there to be replaced."""
    missing = [text for text in TRAINED if text not in block]
    for text, instead in TRAINED.items():
        block = block.replace(text, instead)
    commands = block.splitlines()
    problems = [f"the README has no {text!r}" for text in missing]
    return commands, problems + ([] if len(commands) <= MOST_COMMANDS else [f"{len(commands)} commands"])


def write_documents(folder):
    lines = [{"question": f"Who saw {thing}?", "answer": f" {person} saw {thing}."} for person in PEOPLE for thing in THINGS]
    (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def run_commands(train, folder, commands):
    """The last result, or that of what failed."""
    result = None
    for line in commands:
        words = [str(train) if word == "build/train" else word for word in shlex.split(line, comments=True)]
        result = harness.run(words, LIMIT_S, cwd=folder)
        if result.code != 0:
            return result
    return result


def report_problems(run):
    data, metrics = data_of(run / "report.html"), harness.read_metrics(run)
    loss = data["curves"]["loss"]["mean"]
    problems = [] if data["state"] == "finished" and len(loss) == len(metrics) == 30 else [f"the report is of {len(loss)} steps, {data['state']}"]
    problems += [] if loss[-1] < 0.7 * loss[0] else [f"the loss falls from {loss[0]} to {loss[-1]} only"]
    return problems + ([] if 'rank = 16' in data["config"] else ["the report has another configuration"])


def export_problems(train, folder):
    adapter = read_tensors(folder / "my-adapter" / "adapter_model.safetensors")
    kinds = {re.sub(r".*\.(c_\w+)\.lora_([AB])\.weight", r"\1 \2", name) for name in adapter}
    problems = [] if kinds == {f"{name} {half}" for name in ("c_attn", "c_fc", "c_proj") for half in "AB"} else [f"the adapter has {sorted(adapter)}"]
    tuned, model = (read_tensors(path / "model.safetensors") for path in (folder / "tuned", MODEL))
    changed = {name for name in model if tuned.get(name) != model[name]}
    problems += [] if set(tuned) == set(model) else [f"tensors of the export differ: {sorted(set(tuned) ^ set(model))}"]
    problems += [] if changed and all(re.search(r"(c_attn|c_fc|c_proj)\.weight$", name) for name in changed) else [f"changed are {sorted(changed)}"]
    losses = []
    for what in (f"runs/{RUN}", "tuned"):
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
        commands, problems = commands_of(blocks[0]) if len(blocks) == 1 else ([], [f"{len(blocks)} blocks, not one of commands"])
        report.case("the README has its commands", problems)
        write_documents(folder)
        if not problems:
            result = run_commands(train, folder, commands)
            report.case("every command ends well", [] if result and result.code == 0 else ["it failed"], result)
            if result and result.code == 0:
                report.case("the report shows the run, which learns", report_problems(folder / "runs" / RUN))
                report.case("the exports are the run's", export_problems(train, folder))
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
