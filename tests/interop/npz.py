"""The formats of sdk/examples: NumPy reads what two processes write with them, and zipfile confirms the checksums; a
run resumes from such a checkpoint; a file that NumPy wrote is a base model."""

import json
import shutil
import zipfile

import numpy as np
from safetensors.torch import load_file

import models
from suite import Suite

suite = Suite(__doc__)
(suite.folder / "tokens.jsonl").write_text("".join(json.dumps({"input_ids": [(7 * row + i) % 100 for i in range(32)]}) + "\n" for row in range(8)))
source = models.save(models.make(seed=600, hidden_size=36, intermediate_size=57, num_attention_heads=6), suite.folder / "source")
before = load_file(source / "model.safetensors")


def changed(found):
    return [key for key in before.keys() | found.keys() if key not in before or key not in found or
            not np.array_equal(before[key].numpy(), np.asarray(found[key]))]


common = dict(optimizer={"lr": 0.0}, train={"micro_batch_size": 1, "global_batch_size": 4}, data={"cache_dir": str(suite.folder)})
for language in ("format_c", "format_cpp"):
    config = suite.config(language, source, parallel=[{"plugin": "fsdp2"}], export={"plugin": language}, checkpoint={"plugin": "format_cpp"}, **common)
    suite.run("train", config, "--nproc", 2)
    run = suite.folder / (language + "-run")
    file = run / "final" / "model.npz"
    suite.check(f"{language}: zipfile confirms every checksum", zipfile.ZipFile(file).testzip() is None)
    with np.load(file) as arrays:
        suite.check(f"{language}: every tensor bit for bit", not changed(dict(arrays)), f"{len(arrays)} arrays")

checkpoint = run / "checkpoints" / "step-000001" / "model.npz"
suite.check("checkpoint: zipfile confirms every checksum", zipfile.ZipFile(checkpoint).testzip() is None)
with np.load(checkpoint) as arrays:
    moments = [key for key in arrays if key.endswith(".exp_avg") and arrays[key].any()]
    suite.check("checkpoint: with moments", len(moments) == len(before), f"{len(moments)} of {len(before)}")
suite.run("train", config, "run.max_steps=2")
suite.check("checkpoint: resumed on one process", "resumed from" in (run / "log.txt").read_text())

from_numpy = suite.folder / "from_numpy"
from_numpy.mkdir()
shutil.copy(source / "config.json", from_numpy)
np.savez(from_numpy / "model.npz", **{key: value.numpy() for key, value in before.items()})
suite.run("train", suite.config("from_numpy", from_numpy, export={"plugin": "format_cpp"}, **common))
with np.load(suite.folder / "from_numpy-run" / "final" / "model.npz") as arrays:
    suite.check("a file that NumPy wrote is a base model", not changed(dict(arrays)), f"{len(arrays)} tensors")
suite.close()
