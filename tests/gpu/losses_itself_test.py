#!/usr/bin/env python3
"""losses_test.py tells losses that agree from losses that do not; with a made-up `train` instead of one that has a GPU."""

import array
import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import losses_test  # noqa: E402, beside this file

TRAIN = """\
#!{python}
import json, pathlib, sys
said = dict(word.split("=", 1) for flag, word in zip(sys.argv[2:], sys.argv[3:]) if flag == "--set")
made = json.loads(pathlib.Path({made!r}).read_text())
with open({calls!r}, "a") as calls:
    tokens = pathlib.Path(said["data.train"]).read_bytes().hex() if said["data.train"].endswith(".bin") else ""
    calls.write(json.dumps([pathlib.Path(sys.argv[1]).read_text(), said, tokens]) + "\\n")
one = made[said["device"]]
out = pathlib.Path(said["run.dir"])
out.mkdir()
(out / "metrics.jsonl").write_text("".join(json.dumps(dict(loss=loss)) + "\\n" for loss in one["losses"]))
sys.exit(one["code"])
"""
FALLING = [6 - 0.02 * step for step in range(losses_test.STEPS)]


def expect(condition, what):
    if not condition:
        sys.exit(f"losses_itself_test: {what}")


class Made:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.train = self.folder / "train"
        self.train.write_text(TRAIN.format(python=sys.executable, made=str(self.folder / "made.json"), calls=str(self.folder / "calls")))
        self.train.chmod(0o755)
        (self.folder / "kjv-tiny.toml").write_text('name = "kjv-tiny"\n')

    def run(self, gpu, what="kjv-tiny", dtype="f32", cpu=None, code=0):
        """(exit code, what was said) with these losses on either device."""
        made = {"cpu": {"losses": FALLING if cpu is None else cpu, "code": 0}, "cuda": {"losses": gpu, "code": code}}
        (self.folder / "made.json").write_text(json.dumps(made))
        (self.folder / "calls").write_text("")
        command = [sys.executable, losses_test.__file__, self.train, self.folder / "kjv-tiny.toml", self.folder, what, dtype]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def calls(self):
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


def off(step, by):
    return [loss * (1 + by) if i + 1 == step else loss for i, loss in enumerate(FALLING)]


def losses_within_the_bound_of_their_dtype_agree(made):
    for dtype, by in (("f32", 9e-4), ("f32", -9e-4), ("bf16", 1.9e-2)):
        code, said = made.run(off(40, by), dtype=dtype)
        expect(code == 0 and "losses of 50 steps at most" in said, f"{dtype}, {by}: {code}, {said}")


def a_single_step_beyond_it_is_named(made):
    for dtype, by in (("f32", 1.1e-3), ("f32", -1.1e-3), ("bf16", 2.1e-2)):
        code, said = made.run(off(40, by), dtype=dtype)
        expect(code == 1 and "step 40: a loss of" in said, f"{dtype}, {by}: {code}, {said}")


def what_is_no_loss_does_not_agree(made):
    for gpu, words in ((off(7, float("nan")), "step 7: a loss of nan"), ([*FALLING[:49], None], "step 50: a loss of None"), (FALLING[:49], "losses of 49 and 50 steps"), ([], "losses of 0")):
        code, said = made.run(gpu)
        expect(code == 1 and words in said, f"{words}: {code}, {said}")
    code, said = made.run(FALLING, code=70)
    expect(code == 1 and "exit code 70" in said, f"a run that failed: {code}, {said}")


def losses_that_do_not_fall_show_nothing(made):
    code, said = made.run([5.0] * 50, cpu=[5.0] * 50)
    expect(code == 1 and "it does not learn" in said, f"{code}, {said}")


def both_devices_train_the_same(made):
    for what, dtype in (("kjv-tiny", "f32"), ("124M", "bf16")):
        code, said = made.run(FALLING, what, dtype)
        expect(code == 0, f"{what}: {said}")
        (config, cpu, tokens), (other_config, cuda, other_tokens) = made.calls()
        expect(config == other_config and tokens == other_tokens, f"{what}: other data or another configuration")
        expect(cpu["device"] == "cpu" and cuda["device"] == "cuda", f"{what}: {cpu}, {cuda}")
        differing = {key for key in cpu if cpu[key] != cuda[key]}
        expect(differing == {"device", "run.dir"}, f"{what}: the runs differ in {differing}")
        expect(cuda["train.steps"] == "50" and cuda["precision.param"] == dtype, f"{what}: {cuda}")
        expect(("124M" in config) == (what == "124M"), f"{what}: {config}")
        if what == "124M":
            ids = array.array("H", bytes.fromhex(tokens))
            expect(len(ids) > 200 and 5 < len(set(ids)) and max(ids) < 50257, f"{len(ids)} tokens, up to {max(ids)}")


def main():
    for case in (losses_within_the_bound_of_their_dtype_agree, a_single_step_beyond_it_is_named, what_is_no_loss_does_not_agree,
                 losses_that_do_not_fall_show_nothing, both_devices_train_the_same):
        with tempfile.TemporaryDirectory() as folder:
            case(Made(folder))


if __name__ == "__main__":
    main()
