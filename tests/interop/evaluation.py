"""`chassis eval`: the mean cross entropy over a whole set, against transformers document by document."""

import json

import numpy as np
import torch

import models
from suite import Suite

SEQ_LEN = 40
suite = Suite(__doc__)
model = models.make(seed=500, rope=models.LLAMA3)
folder = models.save(model, suite.folder / "model")
random = np.random.default_rng(1)
rows = []
for length in random.integers(2, SEQ_LEN + 1, 23):
    ids = random.integers(0, model.config.vocab_size, length).tolist()
    rows.append({"input_ids": ids, "labels": [id if random.random() < 0.6 else -100 for id in ids]})
data = suite.folder / "set.jsonl"
data.write_text("".join(json.dumps(row) + "\n" for row in rows))

loss_sum, count = 0.0, 0
for row in rows:
    with torch.no_grad():
        logits = model(torch.tensor([row["input_ids"]])).logits[0, :-1]
    labels = torch.tensor(row["labels"][1:])
    loss_sum += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
    count += (labels != -100).sum().item()
expected = loss_sum / count

for micro_batch_size in (1, 4, 64):
    config = suite.config(f"none-{micro_batch_size}", folder, data={"packing": "none", "cache_dir": str(suite.folder)},
                          data__eval=[{"path": str(data), "format": "tokens", "name": "valid"}],
                          train={"seq_len": SEQ_LEN, "micro_batch_size": micro_batch_size})
    words = suite.run("eval", config, "--from", folder).decode().split()
    result = dict(zip(words[1::2], words[2::2]))
    suite.check(f"micro-batches of {micro_batch_size}: trained tokens", int(result["tokens"]) == count)
    suite.at_most(f"micro-batches of {micro_batch_size}: loss", abs(float(result["loss"]) - expected) / expected, 2e-6,
                  result["loss"])
suite.close()
