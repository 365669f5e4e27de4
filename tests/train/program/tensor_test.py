#!/usr/bin/env python3
"""Products over ranks: what transformers has computed of a folder's model (huggingface_test.py) is what ranks that have parts of it compute, whatever else a
run does, and a run goes on with other parts. Usage: tensor_test.py TRAIN"""

import json
import re
import shutil
import sys

import harness
import tiny_run
from huggingface_test import CASES, CONFIG, compare, configure, read_all, refused, run, trains
from mixtures_test import floats


def step_cases(train, work, report):
    """Norm, losses and five steps are transformers'; so they are in whatever strategy, and wherever things lie."""
    trains(train, work, report, "gpt2", name="gpt2 over 2 ranks", comm__ranks=2, tensor__parallel=2)
    trains(train, work, report, "llama", 4, "llama over 2 ranks, twice, under mpirun", tensor__parallel=2, train__recompute='"block"')
    trains(train, work, report, "gpt2", name="gpt2 over 4 ranks, every unit whole", comm__ranks=4, tensor__parallel=4, shard__strategy="ddp")
    trains(train, work, report, "qwen3", name="qwen3 over 2 ranks, its norms of heads too", comm__ranks=2, tensor__parallel=2,
           shard__layout="per_parameter", train__recompute='"attention"')
    trains(train, work, report, "olmo2", name="olmo2 over 2 ranks, its norms of all heads too", comm__ranks=2, tensor__parallel=2, offload__moments="host")
    trains(train, work, report, "phi3", name="phi3 over 2 of 4 ranks, nested", comm__ranks=4, tensor__parallel=2, shard__strategy="nested", shard__group_size=2,
           train__micro_batch=2, train__loss_chunk=40)
    trains(train, work, report, "smollm3", name="smollm3 over 2 ranks, bf16", comm__ranks=2, tensor__parallel=2, precision__param="bf16")


def same_run(train, work, report, name, case, **sets):
    """One rank's metrics and validation, without parts and over 2 of 4 ranks."""
    seen, results = [], []
    for more in ({}, {"comm__ranks": 4, "tensor__parallel": 2}):
        shutil.rmtree(work / "out", ignore_errors=True)
        results.append(run([train, configure(work, CASES / case), *tiny_run.options(run__sample_tokens=0, **sets, **more)]))
        keys = ("loss", "grad_norm", "val_loss")
        seen.append([m[key] for m in harness.read_metrics(work / "out") for key in keys if key in m] if results[-1].code == 0 else [])
    far = [(a, b) for a, b in zip(*seen, strict=False) if not abs(a - b) <= 2e-5 * abs(a)]
    report.case(name, far if seen[0] and len(seen[0]) == len(seen[1]) else [f"metrics {seen}"], results[-1])


def beside_cases(train, work, report):
    same_run(train, work, report, "some weights frozen, and a validation", "qwen2", train__frozen='["blocks.0", "*.mlp", "token_embedding"]',
             run__validate_every=2, data__validation_fraction=0.2, train__steps=4, train__sequence=16)
    same_run(train, work, report, "norms and positions alone trained, and dropout of residuals", "gpt2",
             train__frozen='["*.attention", "*.mlp", "token_embedding"]', model__dropout=0.1, model__attention_dropout=0)
    same_run(train, work, report, "one unit, its weights on the host, updated there", "gpt2", shard__units="model", offload__weights="host",
             offload__moments="host", offload__gradients="host", offload__update="host")
    same_run(train, work, report, "averaged weights of SGD, saved beside steps", "gpt2", train__optimizer="sgd", train__average=0.9, train__lr="1e-2",
             checkpoint__every=2, checkpoint__background="true", run__lost_updates_every=1)


def text_case(train, work, report):
    """A validation, its tasks and the text at the end are those of one rank, too."""
    config = tiny_run.write_files(work)
    for name, lines in (("sun", [{"prompt": "the sun", "choices": [" rises", " falls", "zq"], "answer": i % 3} for i in range(5)]),
                        ("river", [{"prompt": "the river", "answer": "the", "max_tokens": 3}] * 3)):
        (work / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen, results = [], []
    for name, more in (("alone", {}), ("parts", {"comm__ranks": 4, "tensor__parallel": 2})):
        results.append(run([train, config, *tiny_run.options(run__dir=work / name, model__context=64, train__steps=4, run__validate_every=2,
                                                            run__evaluate='["sun.jsonl", "river.jsonl"]', run__sample_tokens=20, **more)]))
        metrics = harness.read_metrics(work / name) if results[-1].code == 0 else []
        seen.append(([{key: value for key, value in m.items() if key.startswith("task/") or key in ("loss", "grad_norm", "val_loss")} for m in metrics],
                     results[-1].out.partition("sample: ")[2]))
    (metrics, text), (others, other_text) = seen
    problems = [f"{key}: {m[key]} and {other.get(key)}" for m, other in zip(metrics, others, strict=False) for key in m
                if not abs(m[key] - other.get(key, 1e9)) <= 1e-4 * abs(m[key])]
    problems += [] if len(metrics) == len(others) == 4 and any("task/" in key for key in metrics[-1]) else [f"metrics {seen}"]
    report.case("tasks and a text of a model in parts", problems + ([] if text and text == other_text else [f"{text} and {other_text}"]), results[-1])


def resume_cases(train, work, report):
    """What 2 x 2 ranks have saved goes on with other parts, or none, and is exported as they export it themselves."""
    shutil.rmtree(work / "out", ignore_errors=True)
    config = configure(work, CASES / "gpt2")
    first = run([train, config, *tiny_run.options(train__steps=3, checkpoint__every=3, comm__ranks=4, tensor__parallel=2, run__export=work / "own")])
    if first.code == 0:
        shutil.copytree(work / "out", work / "begun")
    offline = run([train, "export", work / "begun" / "checkpoints" / "step-3", work / "offline"])
    same = offline.code == 0 and first.code == 0 and read_all(work / "own") == read_all(work / "offline")
    report.case("parts are exported as the whole, by the run and from its checkpoint", [] if same else ["they differ"], offline)
    for ranks, parallel in ((4, 1), (1, 1), (4, 4), (2, 2)):
        shutil.rmtree(work / "out", ignore_errors=True)
        if first.code == 0:
            shutil.copytree(work / "begun", work / "out")
        result = run([train, config, "--resume", "latest", *tiny_run.options(train__steps=5, comm__ranks=ranks, tensor__parallel=parallel,
                                                                           run__export=work / f"end-{ranks}-{parallel}")])
        report.case(f"2 of 4 ranks have parts, then {parallel} of {ranks}", compare(result, work / "out", "gpt2") if first.code == 0 else ["not begun"], result)
    one, other = (read_all(work / f"end-{name}") for name in ("1-1", "4-4"))
    far = max((abs(a - b) for name in one for a, b in zip(floats(one[name]), floats(other[name]), strict=True)), default=1)
    # AdamW divides the gradient of keys' biases, which is rounding alone, by itself.
    report.case("and the same model is exported", [] if one.keys() == other.keys() and far < 1e-4 else [f"largest difference {far}"])


def plan_cases(train, work, report):
    """The plan says what is cut, and is exact."""
    shutil.rmtree(work / "out", ignore_errors=True)
    sets = tiny_run.options(comm__ranks=4, tensor__parallel=2, train__recompute='"block"', run__sample_tokens=0)
    plan = run([train, "plan", configure(work, CASES / "llama"), *sets])
    # Of 64 tokens of 64 elements: of both blocks two sums in forward, one of them again, and two in backward; one of the embedding's rows and one of the
    # gradient of the head's input; three numbers of each token's loss. Hashes of ids and of targets.
    sent = ((2 * (2 + 1 + 2) + 2) * 64 * 64 + 3 * 64) * 4 + 2 * 16
    problems = [f"no {word!r}" for word in ("products cut over 2 ranks (tensor), which read the same samples: 2 of 4 heads, 1 of 2 of keys and 80 of 160 hidden elements on "
                                            "each; 2 shares of the data", f"a rank sends {sent} bytes (193 KiB) to the others of its group in a micro-batch",
                                            "2 micro-batches of 1 x 64 tokens a rank and step") if word not in plan.out]
    result = run([train, configure(work, CASES / "llama"), *sets])
    planned = [int(text) for text in re.findall(r"peak_bytes +(\d+)  ", plan.out)]
    counted = {m["peak_bytes"] for m in harness.read_metrics(work / "out")} if result.code == 0 else set()
    report.case("a plan says what is cut, and its bytes are those that are counted", problems + ([] if planned and counted == set(planned) else
                                                                                               [f"planned {planned}, counted {counted}"]), plan)


def refusal_cases(train, work, report):
    refused(train, work, report, "a mixture over ranks", CASES / "mixtral", ["tensor.parallel = 2 does not go with model.experts"], CONFIG, comm__ranks=2,
            tensor__parallel=2)
    refused(train, work, report, "one head of keys for two ranks", CASES / "llama3-rope", ["tensor.parallel = 2 does not divide model.kv_heads = 1"], CONFIG,
            comm__ranks=2, tensor__parallel=2)
    refused(train, work, report, "a quantized base", CASES / "llama", ["tensor.parallel = 2 does not go with precision.quantize"], CONFIG, comm__ranks=2,
            tensor__parallel=2, precision__quantize="nf4", train__frozen="blocks.*")
    refused(train, work, report, "2 of 3 ranks", CASES / "gpt2", ["tensor.parallel 2 does not divide the job's 3 ranks"], CONFIG, comm__ranks=3, tensor__parallel=2)
    result = run([train, "evaluate", CASES / "gpt2", CASES / "gpt2" / "tokens.bin", "--set", "train.sequence=64", "--set", "tensor.parallel=2"], 2)
    report.case("an evaluation says that it has no parts", [] if "tensor.parallel" in result.out + result.err else ["no word of it"], result)


if __name__ == "__main__":
    sys.exit(harness.run_parts(step_cases, beside_cases, text_case, resume_cases, plan_cases, refusal_cases))
