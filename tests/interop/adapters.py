"""A case of lora.py and lora_experts.py, and its comparison with peft: ten steps from the same adapter, in float32. Files go
both ways, and the merged models have the same logits."""

import copy
import dataclasses
import json

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import models
from loop import DECAY, MICRO, STEPS, WARMUP, documents, train
from suite import error, metrics


@dataclasses.dataclass
class Case:
    model: dict
    lora: dict
    ours: dict  # the same adapter as options of [adapter]
    packing: str = "concat_split"
    lengths: tuple = (3, 130)
    seq_len: int = 48
    global_batch: int = 8
    clip: float = 1.05
    lr: float = 2e-3

    def make_optimizer(self, groups):
        return torch.optim.AdamW(groups, lr=self.lr, eps=1e-4, betas=(0.9, 0.95))


def load(folder, **options):
    """With experts as a loop, since transformers' grouped products have no float64."""
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager", **options)


def write_documents(suite, name, seed, vocab, lengths):
    """The rows, and the set of [[data.train]] that has them."""
    rows, path = documents(seed, vocab, lengths, 70), suite.folder / (name + ".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows, [{"path": str(path), "format": "tokens"}]


def random_ids(seed, vocab, seq_len):
    return torch.randint(0, vocab, (2, seq_len), generator=torch.Generator().manual_seed(seed))


def largest_relative(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def shapes(tensors):
    """Without the copy of a head's weight, which peft writes beside a branch on the head."""
    return {key: value.shape for key, value in tensors.items() if not key.endswith(".base_layer.weight")}


def adapted(model, case, seed, filled):
    """The model with an adapter whose parameters of these names get random values, so that A has a gradient from the first
    step on."""
    out = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **case.lora))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in out.named_parameters():
            if filled in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return out


def compare(suite, name, case, number, first_seed, filled, weights_limit, **saving):
    """Checks a case; `filled`: see adapted(). `saving`: how the model is saved."""
    model = models.make(seed=first_seed + number, **case.model)
    source = models.save(model, suite.folder / name, **saving)
    peft = adapted(load(source).eval(), case, number, filled)
    theirs = suite.folder / (name + "-peft")
    peft.save_pretrained(theirs)
    rows, data = write_documents(suite, name, number, model.config.vocab_size, case.lengths)
    shared = dict(data={"packing": case.packing, "shuffle": False, "cache_dir": str(suite.folder)}, data__train=data,
                  train={"seq_len": case.seq_len, "micro_batch_size": MICRO, "global_batch_size": case.global_batch},
                  optimizer={"lr": case.lr, "weight_decay": DECAY, "max_grad_norm": case.clip, "eps": 1e-4, "betas": [0.9, 0.95]},
                  schedule={"name": "cosine", "warmup_steps": WARMUP, "min_lr_ratio": 0.1})
    two_rows = {"seq_len": case.seq_len, "micro_batch_size": 2}
    ids = random_ids(number, model.config.vocab_size, case.seq_len)

    # Their adapter, before training.
    loaded = suite.config(name + "-loaded", source, adapter={"plugin": "lora", "path": str(theirs)}, train=two_rows)
    with torch.no_grad():
        suite.at_most(f"{name} logits of their adapter", error(suite.logits(loaded, ids), peft.eval()(ids).logits), 1e-5)

    suite.run("train", suite.config(name, source, run={"max_steps": STEPS}, adapter={"plugin": "lora", "path": str(theirs)}, **shared))
    run = suite.folder / (name + "-run")
    exact, trained = copy.deepcopy(peft).double().train(), peft.train()
    exact_losses, _, _ = train(exact, rows, case)
    losses, norms, counts = train(trained, rows, case)
    print(f"     {name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, gradient norms {min(norms):.2f} … {max(norms):.2f}")
    suite.check(f"{name} clips some steps, trains unequal counts", min(norms) < case.clip < max(norms) and len(set(counts)) > 1,
                f"{min(norms):.3f} < {case.clip} < {max(norms):.3f}")
    ours = [line["loss"] for line in metrics(run)]
    suite.at_most(f"{name} losses", largest_relative(ours, losses), 2e-6,
                  f"to float64: ours {largest_relative(ours, exact_losses):.1e}, theirs {largest_relative(losses, exact_losses):.1e}")

    final = load_file(run / "final" / "adapter_model.safetensors")
    state = get_peft_model_state_dict(trained)
    suite.check(f"{name} adapter_model.safetensors has peft's names and shapes", shapes(final) == shapes(state),
                str(sorted(final.keys() ^ state.keys())[:6]))
    both = final.keys() & state.keys()
    suite.at_most(f"{name} adapter weights", max(error(final[key], state[key]) for key in both), weights_limit)
    before = load_file(theirs / "adapter_model.safetensors")
    suite.check(f"{name} every tensor moved", all(not torch.equal(before[key], final[key]) for key in both))

    # Our adapter in peft.
    trained.eval()
    again = PeftModel.from_pretrained(load(source), run / "final").eval()
    with torch.no_grad():
        expected = trained(ids).logits
        suite.at_most(f"{name} logits of our adapter in peft", error(again(ids).logits, expected), 2e-5)
    said = json.loads((run / "final" / "adapter_config.json").read_text())
    suite.check(f"{name} adapter_config.json", said["r"] == case.lora["r"] and said["lora_alpha"] == case.lora["lora_alpha"]
                and said["base_model_name_or_path"] == str(source))

    # Merged, by both.
    merged = suite.folder / (name + "-merged")
    suite.run("ckpt", "merge", run, "--out", merged)
    ours_merged, info = load(merged, output_loading_info=True)
    suite.check(f"{name} transformers loads the merged model", not any(info.values()), str({k: list(v)[:3] for k, v in info.items()}))
    with torch.no_grad():
        suite.at_most(f"{name} logits merged, to peft's merged", error(ours_merged.eval()(ids).logits,
                                                                       again.merge_and_unload()(ids).logits), 1e-5)
    suite.at_most(f"{name} logits merged, by chassis",
                  error(suite.logits(suite.config(name + "-merged-logits", merged, train=two_rows), ids), expected), 2e-5)

    # The same adapter from options: names, shapes and settings.
    suite.run("train", suite.config(name + "-own", source, run={"max_steps": WARMUP}, adapter={"plugin": "lora", **case.ours}, **shared))
    own = suite.folder / (name + "-own-run") / "final"
    fresh = load_file(own / "adapter_model.safetensors")
    suite.check(f"{name} options give the same tensors", shapes(fresh) == shapes(state), str(sorted(fresh.keys() ^ state.keys())[:6]))
    scales = {key: value for key, value in json.loads((own / "adapter_config.json").read_text()).items()
              if key in ("r", "lora_alpha", "use_rslora", "bias")}
    suite.check(f"{name} options give the same settings", all(case.lora.get(key, "none" if key == "bias" else False) == value
                                                              for key, value in scales.items()), str(scales))
