"""The family of sdk/examples/model_cpp, an OLMo 2: logits and exports against transformers, in float32."""

import copy

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import models
from suite import Suite, error

suite = Suite(__doc__)
data = suite.folder / "tokens.jsonl"
data.write_text('{"input_ids": ' + str(list(range(100))) + '}\n')
for number, (name, changes) in enumerate(models.EXAMPLES.items()):
    model = models.make(seed=600 + number, **changes)
    folder = models.save(model, suite.folder / name)
    ids = torch.randint(0, model.config.vocab_size, (3, 97), generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        expected = model(ids).logits
        exact = copy.deepcopy(model).double()(ids).logits
    logits = suite.logits(suite.config(name, folder, train={"seq_len": 97, "micro_batch_size": 3}), ids)
    suite.at_most(f"{name} logits", error(logits, expected), 1e-5,
                  f"to float64: ours {error(logits, exact):.1e}, theirs {error(expected, exact):.1e}")
    suite.run("train", suite.config(name, folder, optimizer={"lr": 0.0}, data={"cache_dir": str(suite.folder)}))
    final = suite.folder / (name + "-run") / "final"
    before, after = load_file(folder / "model.safetensors"), load_file(final / "model.safetensors")
    suite.check(f"{name} export: every name, bit for bit", before.keys() == after.keys()
                and all(torch.equal(before[key], after[key]) for key in before), f"{len(after)} tensors")
    reloaded, info = AutoModelForCausalLM.from_pretrained(final, output_loading_info=True, attn_implementation="eager")
    suite.check(f"{name} transformers reloads the export", not any(info.values()), str(info))
    with torch.no_grad():
        suite.at_most(f"{name} logits of the reloaded export", error(reloaded.eval()(ids).logits, expected), 1e-6)
suite.close()
