"""Sinks as their readers see them, against metrics.jsonl: tensorboard's own reader, csv, and the parser of Prometheus'
client; a run that goes on from an earlier step."""

import csv
import json
import math
import re
import subprocess
import time
import urllib.request

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import models
from suite import Suite

suite = Suite(__doc__)
folder = models.save(models.make(seed=7), suite.folder / "model")
random = np.random.default_rng(3)
rows = [{"input_ids": random.integers(0, 96, 40).tolist()} for _ in range(24)]
(suite.folder / "tokens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def configuration(max_steps, directory, sinks):
    return suite.config("sinks", folder, run={"max_steps": max_steps, "name": "sinks",
                                              "output_dir": str(directory), "device": suite.args.device},
                        data__eval=[{"path": str(suite.folder / "tokens.jsonl"), "format": "tokens", "name": "all"}],
                        data={"cache_dir": str(suite.folder)}, eval={"every_steps": 2},
                        train={"seq_len": 40, "micro_batch_size": 2, "global_batch_size": 2},
                        checkpoint={"every_steps": 3}, log={"sinks": ["console", "jsonl", *sinks]})


def train(max_steps):
    suite.run("train", configuration(max_steps, suite.folder / "run", ["csv", "tensorboard"]))


def scrape():
    """The exposition of a run while it trains, and metrics.jsonl."""
    directory = suite.folder / "live"
    command = [suite.args.chassis, "train", configuration(100000, directory, ["prometheus"]), "log.prometheus.port=0"]
    for plugin_path in suite.args.plugin_path:
        command += ["--plugin-path", plugin_path]
    with open(suite.folder / "live.txt", "w+") as output:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=output)
        try:
            for _ in range(600):
                time.sleep(0.1)
                text = (suite.folder / "live.txt").read_text()
                address = re.search("http://[0-9.:]+/metrics", text)
                if address and "step 3/" in text:
                    break
            exposition = urllib.request.urlopen(address.group(), timeout=10).read().decode()
        finally:
            process.kill()
            process.wait()
    return exposition, [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()[:-1]]


def is_equal(a, b):
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-30)  # tensorboard keeps fp32


train(5)
train(8)
lines = [json.loads(line) for line in open(suite.folder / "run/metrics.jsonl")]
steps = {line["step"]: line for line in lines if "grad_norm" in line}
evals = {line["step"]: line for line in lines if "eval_loss" in line}
suite.check("metrics.jsonl has 8 steps", sorted(steps) == list(range(1, 9)))

reader = EventAccumulator(str(suite.folder / "run/tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
reader.Reload()
tags = reader.Tags()
num_equal = 0
for tag in tags["scalars"]:
    for event in reader.Scalars(tag):
        expected = evals[event.step]["eval_loss"] if tag == "eval/all/loss" else steps[event.step].get(tag)
        if expected is None:
            continue
        if not is_equal(event.value, expected):
            suite.check(f"tensorboard: {tag} of step {event.step}", False, f"{event.value} is not {expected}")
        num_equal += 1
suite.check("tensorboard: every scalar", num_equal >= 8 * 15 + len(evals), f"{len(tags['scalars'])} tags, {num_equal} values")
suite.check("tensorboard: losses of all steps", [event.step for event in reader.Scalars("loss")] == list(range(1, 9)))
suite.check("tensorboard: texts", "checkpoint" in tags["tensors"], str(tags["tensors"]))

with open(suite.folder / "run/metrics.csv", newline="") as file:
    table = list(csv.DictReader(file))
of_steps = [row for row in table if row["loss"]]
suite.check("csv: steps", [int(row["step"]) for row in of_steps] == list(range(1, 9)))
suite.check("csv: values", all(is_equal(float(row[name]), steps[int(row["step"])][name]) for row in of_steps
                               for name in ("loss", "grad_norm", "lr", "tokens_per_s")))
of_evals = [row for row in table if row["eval/all/loss"]]
suite.check("csv: evaluations", [float(row["eval/all/loss"]) for row in of_evals] ==
            [evals[step]["eval_loss"] for step in sorted(evals)])

exposition, live = scrape()
families = {family.name: family for family in text_string_to_metric_families(exposition)}
step = families["chassis_step"].samples[0].value
of_step = next((line for line in live if line["step"] == step and "grad_norm" in line), {})
suite.check("prometheus: every value of a step", len(of_step) > 15 and all(
    families["chassis_" + re.sub("[^a-zA-Z0-9_]", "_", name)].samples[0].value == value
    for name, value in of_step.items() if name != "step"), f"step {step:.0f}, {len(families)} gauges")
suite.check("prometheus: all are gauges of the run", all(family.type == "gauge" and
            family.samples[0].labels == {"run": "sinks"} for family in families.values()))
suite.close()
