"""Logits of tiny models saved by transformers, and scores of classifiers: chassis against transformers, in float32."""

import copy

import torch

import models
from suite import Suite, error

suite = Suite(__doc__)
worst = {"ours": 0.0, "theirs": 0.0}
for number, (name, (changes, saved)) in enumerate(models.CASES.items()):
    if suite.args.only not in name:
        continue
    model = models.make(seed=number, **changes)
    folder = models.save(model, suite.folder / name, **saved)
    ids = torch.randint(0, model.config.vocab_size, (3, 97), generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        expected = model(ids).logits
        exact = copy.deepcopy(model).double()(ids).logits
    config = suite.config(name, folder, train={"seq_len": 97, "micro_batch_size": 3})
    logits = suite.logits(config, ids)
    ours, theirs = error(logits, exact), error(expected, exact)
    worst = {"ours": max(worst["ours"], ours), "theirs": max(worst["theirs"], theirs)}
    suite.at_most(f"{name} logits", error(logits, expected), 1e-5,
                  f"to float64: ours {ours:.1e}, theirs {theirs:.1e}, largest {expected.abs().max():.1f}")
    if "shard" in name or name == "everything":
        suite.check(f"{name} has several files", len(list(folder.glob("model-*.safetensors"))) > 1)
for number, (name, changes) in enumerate(models.CLASSIFIERS.items()):
    if suite.args.only not in name:
        continue
    model = models.make(seed=500 + number, **{"pad_token_id": None, **changes})
    folder = models.save(model, suite.folder / f"{name}-classifier")
    ids = torch.randint(0, model.config.vocab_size, (1, 97), generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        expected = model(ids).logits
    config = suite.config(f"{name}-classifier", folder, train={"seq_len": 97, "micro_batch_size": 1})
    scores = suite.logits(config, ids)
    suite.check(f"{name} classifier: labels", scores.shape == expected.shape, f"{tuple(scores.shape)}")
    suite.at_most(f"{name} classifier: scores", error(scores, expected), 1e-5, f"largest {expected.abs().max():.1f}")
print(f"largest distance to float64: ours {worst['ours']:.1e}, theirs {worst['theirs']:.1e}")
suite.close()
