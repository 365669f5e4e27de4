#!/usr/bin/env python3
"""What lm-evaluation-harness makes of the tasks beside it, of the models that tests/train/program/tasks_test.py writes: figures, standard errors, sums of
log-probabilities and texts, into expected.json. Usage: make_values.py   (needs lm_eval, torch, transformers)"""

import json
import os
import pathlib
import sys
import tempfile

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "train" / "program"))

import lm_eval
import torch
import transformers
from importlib.metadata import version
from lm_eval.models.huggingface import HFLM

import tasks_test


def config_of(name):
    lines = [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(HERE / f"{name}.jsonl")}}, "test_split": "test",
            "doc_to_text": "prompt", "doc_to_target": "answer", "num_fewshot": 0}
    if "choices" in lines[0]:
        return {**task, "output_type": "multiple_choice", "doc_to_choice": "choices", "target_delimiter": lines[0].get("delimiter", " "),
                "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
    until = lines[0]["until"]
    return {**task, "output_type": "generate_until", "metric_list": [{"metric": "exact_match"}],
            "generation_kwargs": {"until": until if isinstance(until, list) else [until], "max_gen_toks": lines[0]["max_tokens"], "do_sample": False}}


def line_of(sample):
    if "exact_match" in sample:
        return {"text": sample["filtered_resps"][0], "exact_match": int(sample["exact_match"])}
    return {"log_probs": [float(one[0]) for one in sample["filtered_resps"]], "acc": int(sample["acc"]), "acc_norm": int(sample["acc_norm"])}


def values_of(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=128, device="cpu")
    result = lm_eval.simple_evaluate(model=harness, tasks=[config_of(name) for name in tasks_test.NAMES], log_samples=True, bootstrap_iters=1000)
    values = {}
    for name in tasks_test.NAMES:
        samples = sorted(result["samples"][name], key=lambda sample: sample["doc_id"])
        metrics = [metric for metric in ("acc", "acc_norm", "exact_match") if f"{metric},none" in result["results"][name]]
        figures = {metric: [float(result["results"][name][f"{metric}{part},none"]) for part in ("", "_stderr")] for metric in metrics}
        values[name] = {"figures": figures, "lines": [line_of(sample) for sample in samples]}
    return values


def main():
    torch.set_num_threads(1)
    models = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in tasks_test.MODELS:
            folder = pathlib.Path(scratch) / name
            tasks_test.write_model(name, folder)
            models[name] = values_of(folder)
    versions = {"lm_eval": version("lm_eval"), "transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "expected.json").write_text(json.dumps({"made with": versions, "models": models}, indent=1, ensure_ascii=False) + "\n")


main()
