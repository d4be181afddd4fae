"""Ten training steps of tiny models: chassis against a plain PyTorch loop over the same batches, in float32."""

import copy
import dataclasses
import json
import re

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import models
from loop import DECAY, MICRO, STEPS, WARMUP, documents, learning_rate, train
from suite import Suite, error, metrics, relative_l2


@dataclasses.dataclass
class Case:
    model: dict
    packing: str = "concat_split"
    lengths: tuple = (3, 130)     # document lengths
    seq_len: int = 48
    global_batch: int = 8
    clip: float = 2.1
    lr: float = 2e-3
    frozen: str = ""              # a regular expression
    optimizer: dict = dataclasses.field(default_factory=lambda: {"plugin": "adamw", "eps": 1e-4, "betas": [0.9, 0.95]})

    def make_optimizer(self, groups):
        options = {key: value for key, value in self.optimizer.items() if key != "plugin"}
        if self.optimizer["plugin"] == "sgd":
            return torch.optim.SGD(groups, lr=self.lr, **options)
        return torch.optim.AdamW(groups, lr=self.lr, **options)


# Large enough to move routers as much as the cross entropy does.
AUX = dict(output_router_logits=True, router_aux_loss_coef=0.1)
CASES = {
    "none": Case(dict(attention_bias=True, mlp_bias=True), packing="none", lengths=(5, 49)),
    "concat_split": Case(dict(rope=models.LLAMA3, head_dim=20)),
    "tied": Case(dict(tie_word_embeddings=True, num_key_value_heads=1), lengths=(3, 70)),
    "frozen": Case(dict(tie_word_embeddings=True), frozen=r"layers\.[01]\.|embed_tokens", clip=0.68),
    "sgd": Case(dict(), lr=0.05, optimizer={"plugin": "sgd", "momentum": 0.9}),
    "larger": Case(dict(vocab_size=517, hidden_size=160, intermediate_size=330, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.05), lengths=(20, 500), seq_len=150, global_batch=4,
                   clip=2.3),
    "mistral": Case(dict(family="mistral")),
    "mistral_window": Case(dict(family="mistral", sliding_window=7, num_key_value_heads=1)),
    "mistral_none": Case(dict(family="mistral", sliding_window=11, head_dim=36, tie_word_embeddings=True), packing="none",
                         lengths=(5, 49)),
    "qwen2": Case(dict(family="qwen2")),
    "qwen2_tied": Case(dict(family="qwen2", tie_word_embeddings=True, num_key_value_heads=1), lengths=(3, 70)),
    "qwen2_window": Case(dict(family="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1)),
    "qwen3": Case(dict(family="qwen3")),
    "qwen3_tied": Case(dict(family="qwen3", tie_word_embeddings=True, num_key_value_heads=1, head_dim=10), clip=2.5, lengths=(3, 70)),
    "qwen3_biases": Case(dict(family="qwen3", attention_bias=True, use_sliding_window=True, sliding_window=9,
                              max_window_layers=2), packing="none", lengths=(5, 49)),
    "gemma2": Case(dict(family="gemma2", sliding_window=11), clip=1.8),
    "gemma2_untied": Case(dict(family="gemma2", tie_word_embeddings=False, num_key_value_heads=1), clip=1.8, lengths=(3, 70)),
    "gemma2_none": Case(dict(family="gemma2", attention_bias=True, head_dim=10), clip=1.6, packing="none", lengths=(5, 49)),
    "gemma3": Case(dict(family="gemma3_text", sliding_window=11), clip=2.0),
    "gemma3_untied": Case(dict(family="gemma3_text", rope=models.LOCAL, tie_word_embeddings=False), clip=1.9, lengths=(3, 70)),
    "gemma3_none": Case(dict(family="gemma3_text", final_logit_softcapping=4.0, num_key_value_heads=1), clip=2.6, packing="none",
                        lengths=(5, 49)),
    "phi3": Case(dict(family="phi3"), clip=2.2),
    "phi3_long": Case(dict(family="phi3", rope={**models.LONG, "original_max_position_embeddings": 32}, hidden_size=80,
                           original_max_position_embeddings=32, sliding_window=21), clip=2.8),
    "phi3_none": Case(dict(family="phi3", num_key_value_heads=1, tie_word_embeddings=True,
                           rope=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)), clip=3.5, packing="none",
                      lengths=(5, 49)),
    "deepseek_v2": Case(dict(family="deepseek_v2", rope=models.YARN)),
    "deepseek_v2_none": Case(dict(family="deepseek_v2", q_lora_rank=None), clip=3.0, packing="none", lengths=(5, 49)),
    # transformers scales queries by their position in the row, not in the document, so packed rows do not reach floor_scale.
    "llama4": Case(dict(family="llama4_text", interleave_moe_layer_step=2, attention_chunk_size=9), clip=1.85),
    "llama4_none": Case(dict(family="llama4_text", floor_scale=4, attn_scale=0.4, num_experts_per_tok=2, attention_chunk_size=7),
                        clip=2.9, packing="none", lengths=(5, 49)),
    "olmoe": Case(dict(family="olmoe", clip_qkv=1.1), clip=1.5),
    "olmoe_none": Case(dict(family="olmoe", norm_topk_prob=True, num_key_value_heads=4), clip=2.6, packing="none", lengths=(5, 49)),
    "mixtral": Case(dict(family="mixtral")),
    "mixtral_none": Case(dict(family="mixtral", sliding_window=11, tie_word_embeddings=True), clip=2.8, packing="none", lengths=(5, 49)),
    "qwen2_moe": Case(dict(family="qwen2_moe", mlp_only_layers=[1]), clip=1.4),
    "qwen3_moe": Case(dict(family="qwen3_moe", norm_topk_prob=True)),
    "qwen3_moe_none": Case(dict(family="qwen3_moe", decoder_sparse_step=2), clip=3.0, packing="none", lengths=(5, 49)),
    "gpt2": Case(dict(family="gpt2"), clip=1.2),
    "gpt2_odd": Case(dict(family="gpt2", hidden_size=35, num_attention_heads=5, tie_word_embeddings=False), clip=1.0, lengths=(3, 70)),
    "gpt2_none": Case(dict(family="gpt2", n_inner=50), packing="none", lengths=(5, 49)),
    "aux_mixtral": Case(dict(family="mixtral", **AUX)),
    "aux_qwen2_moe": Case(dict(family="qwen2_moe", mlp_only_layers=[1], **AUX), clip=1.5),
    "aux_qwen3_moe_none": Case(dict(family="qwen3_moe", norm_topk_prob=True, **AUX), clip=2.6, packing="none",
                               lengths=(5, 49)),
    "aux_olmoe": Case(dict(family="olmoe", **AUX)),
}


def freeze_and_train(model, rows, case):
    model = model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (case.frozen and re.search(case.frozen, name)))
    return train(model, rows, case)


def value_of(model, key):
    return getattr(model.config, key, None)


def largest_relative(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


suite = Suite(__doc__)
for number, (name, case) in enumerate(CASES.items()):
    if suite.args.only not in name:
        continue
    model = models.make(seed=100 + number, **case.model)
    source = models.save(model, suite.folder / name, max_shard_size="100KB")
    rows = documents(number, model.config.vocab_size, case.lengths, 70)
    data = suite.folder / (name + ".jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = suite.config(
        name, source, run={"max_steps": STEPS}, data={"packing": case.packing, "shuffle": False, "cache_dir": str(suite.folder)},
        data__train=[{"path": str(data), "format": "tokens"}],
        train={"seq_len": case.seq_len, "micro_batch_size": MICRO, "global_batch_size": case.global_batch},
        optimizer={"lr": case.lr, "weight_decay": DECAY, "max_grad_norm": case.clip, **case.optimizer},
        freeze={"patterns": [case.frozen] if case.frozen else []},
        schedule={"name": "cosine", "warmup_steps": WARMUP, "min_lr_ratio": 0.1})
    suite.run("train", config)
    run = suite.folder / (name + "-run")
    lines = metrics(run)

    exact = copy.deepcopy(model).double()
    exact_losses, _, _ = freeze_and_train(exact, rows, case)
    trained = copy.deepcopy(model)
    losses, norms, counts = freeze_and_train(trained, rows, case)
    print(f"     {name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, gradient norms {min(norms):.2f} … {max(norms):.2f}, "
          f"trained tokens {min(counts)} … {max(counts)}")
    suite.check(f"{name} clips some steps, trains unequal counts", min(norms) < case.clip < max(norms) and len(set(counts)) > 1)
    suite.check(f"{name} trained tokens", [line["trained_tokens"] for line in lines] == counts)
    ours = [line["loss"] for line in lines]
    suite.at_most(f"{name} losses", largest_relative(ours, losses), 2e-6,
                  f"to float64: ours {largest_relative(ours, exact_losses):.1e}, "
                  f"theirs {largest_relative(losses, exact_losses):.1e}")
    suite.at_most(f"{name} gradient norms", largest_relative([line["grad_norm"] for line in lines], norms), 1e-5)
    suite.at_most(f"{name} learning rates", largest_relative([line["lr"] for line in lines],
                                                             [learning_rate(case, step + 1) for step in range(STEPS)]), 1e-12)

    final = {key: value for file in (run / "final").glob("*.safetensors") for key, value in load_file(file).items()}
    before = {key: value for file in source.glob("*.safetensors") for key, value in load_file(file).items()}
    has_experts = "experts_per_tok" in str(model.config)
    theirs, truth = trained.state_dict(), exact.state_dict()
    if has_experts:
        theirs, truth = (models.tensors(each, suite.folder / f"{name}-{kind}") for each, kind in ((trained, "trained"), (exact, "exact")))
    suite.check(f"{name} export has the names and shapes of its source",
                {k: v.shape for k, v in final.items()} == {k: v.shape for k, v in before.items()})
    suite.at_most(f"{name} weights", max(error(final[key], theirs[key]) for key in final), 2e-6,
                  f"to float64: ours {max(error(final[key], truth[key]) for key in final):.1e}, "
                  f"theirs {max(error(theirs[key], truth[key]) for key in final):.1e}")
    suite.at_most(f"{name} weights, relative L2", max(relative_l2(final[key], theirs[key]) for key in final), 2e-6)
    frozen = {key for key in final if case.frozen and re.search(case.frozen, key)}
    moved = min(relative_l2(before[key], theirs[key]) for key in final.keys() - frozen)
    suite.check(f"{name} every trained tensor moved", moved > 1e-3, f"{moved:.1e}")
    suite.check(f"{name} no frozen tensor moved", all(torch.equal(before[key], final[key]) for key in frozen), f"{len(frozen)}")

    reloaded, info = AutoModelForCausalLM.from_pretrained(run / "final", output_loading_info=True, attn_implementation="eager")
    suite.check(f"{name} transformers reloads the export", not any(info.values()), str({k: len(v) for k, v in info.items()}))
    suite.check(f"{name} the export is {reloaded.dtype}", reloaded.dtype == torch.float32)
    ids = torch.randint(0, model.config.vocab_size, (2, case.seq_len), generator=torch.Generator().manual_seed(number))
    trained.eval()
    same = copy.deepcopy(trained)
    if has_experts:
        same = reloaded
    else:
        same.load_state_dict(final, strict=not model.config.tie_word_embeddings)
    with torch.no_grad():
        expected, again = same(ids).logits, reloaded.eval()(ids).logits
    suite.at_most(f"{name} logits of the reloaded export", error(again, expected), 1e-6)
    logits = suite.logits(suite.config(name + "-final", run / "final", train={"seq_len": case.seq_len, "micro_batch_size": 2}), ids)
    suite.at_most(f"{name} logits by chassis of its export", error(logits, expected), 1e-5)
    keys = ("hidden_size", "num_key_value_heads", "head_dim", "rope_parameters", "tie_word_embeddings", "attention_bias",
            "mlp_bias", "rms_norm_eps", "sliding_window", "layer_types", "vocab_size", "bos_token_id", "eos_token_id", "max_position_embeddings")
    suite.check(f"{name} config.json", all(value_of(reloaded, k) == value_of(model, k) for k in keys),
                str({k: (value_of(reloaded, k), value_of(model, k)) for k in keys
                     if value_of(reloaded, k) != value_of(model, k)}))
suite.close()
