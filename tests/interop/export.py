"""A model directory that chassis trains with a learning rate of zero and exports is unchanged: every tensor bit for
bit, names, dtype, configuration and the other files; transformers reads it without a missing or unexpected key."""

import json

import torch
from safetensors.torch import load_file, safe_open
from transformers import AutoModelForCausalLM

import models
from suite import Suite, error

CASES = {
    "plain": (dict(), {}),
    "tied": (dict(tie_word_embeddings=True), {}),
    "biases": (dict(attention_bias=True, mlp_bias=True, head_dim=10), models.SHARDED),
    "llama3_v4": (dict(rope=models.LLAMA3), dict(old_spelling=True)),
    "linear_v4_sharded": (dict(rope=models.LINEAR), dict(old_spelling=True, **models.SHARDED)),
    "bfloat16": (dict(), dict(dtype=torch.bfloat16)),
    "float16_v4": (dict(), dict(dtype=torch.float16, old_spelling=True)),
    "mistral": (dict(family="mistral"), {}),
    "mistral_window_v4": (dict(family="mistral", sliding_window=5), dict(old_spelling=True)),
    "qwen2_tied": (dict(family="qwen2", tie_word_embeddings=True), models.SHARDED),
    "qwen2_window_v4": (dict(family="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1),
                        dict(old_spelling=True)),
    "qwen3": (dict(family="qwen3"), dict(dtype=torch.bfloat16)),
    "qwen3_window": (dict(family="qwen3", use_sliding_window=True, sliding_window=9, max_window_layers=1), models.SHARDED),
    "gemma2": (dict(family="gemma2"), dict(dtype=torch.bfloat16)),
    "gemma3": (dict(family="gemma3_text", rope=models.LOCAL), {}),
    "gemma3_v4": (dict(family="gemma3_text", rope=models.LOCAL), dict(old_spelling=True, **models.SHARDED)),
    "phi3": (dict(family="phi3"), models.SHARDED),
    "phi3_long": (dict(family="phi3", rope=models.LONG, hidden_size=80, original_max_position_embeddings=64), {}),
    "gpt2": (dict(family="gpt2"), {}),
    "gpt2_untied": (dict(family="gpt2", tie_word_embeddings=False), models.SHARDED),
    **{f"{family}_joined": (dict(family=family), dict(models.JOINED))
       for family in ("deepseek_v2", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")},
}


def configuration(model):
    """config.json as transformers reads it, without the old rope type that it keeps beside the new one."""
    keys = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    keys.pop("partial_rotary_factor", None)   # exports have it at the top too, where transformers 4 reads it
    rope = keys.get("rope_parameters") or {}
    for table in [rope, *(table for table in rope.values() if isinstance(table, dict))]:
        table.pop("type", None)
    return keys


suite = Suite(__doc__)
data = suite.folder / "tokens.jsonl"
data.write_text(json.dumps({"input_ids": [number % 100 for number in range(100)]}) + "\n")
for number, (name, (changes, saved)) in enumerate(CASES.items()):
    if suite.args.only not in name:
        continue
    dtype = saved.pop("dtype", torch.float32)
    model = models.make(seed=200 + number, **changes).to(dtype)
    source = models.save(model, suite.folder / name, **saved)
    (source / "tokenizer_config.json").write_text('{"model_max_length": 256}')
    suite.run("train", suite.config(name, source, optimizer={"lr": 0.0}, data={"cache_dir": str(suite.folder)}))
    final = suite.folder / (name + "-run") / "final"

    before = {key: value for file in source.glob("*.safetensors") for key, value in load_file(file).items()}
    after = {key: value for file in final.glob("*.safetensors") for key, value in load_file(file).items()}
    suite.check(f"{name}: names", before.keys() == after.keys(), f"{len(after)} of {len(before)}")
    changed = [key for key in before.keys() & after.keys()
               if before[key].dtype != after[key].dtype or not torch.equal(before[key], after[key])]
    suite.check(f"{name}: every tensor bit for bit, {dtype}", not changed, " ".join(changed))
    suite.check(f"{name}: metadata of the files has format pt",
                all(safe_open(file, "pt").metadata().get("format") == "pt" for file in final.glob("*.safetensors")))
    for file in ("generation_config.json", "tokenizer_config.json"):
        suite.check(f"{name}: {file}", (final / file).read_bytes() == (source / file).read_bytes())

    reloaded, info = AutoModelForCausalLM.from_pretrained(final, output_loading_info=True, attn_implementation="eager",
                                                      dtype="auto")
    suite.check(f"{name}: no missing or unexpected key", not any(info.values()), str({k: v for k, v in info.items() if v}))
    original = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", dtype="auto")
    ours, theirs = configuration(reloaded), configuration(original)
    different = {key: (ours.get(key), theirs.get(key)) for key in ours.keys() | theirs.keys()
                 if ours.get(key) != theirs.get(key)}
    suite.check(f"{name}: config.json", not different, str(different))
    ids = torch.randint(0, model.config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        suite.at_most(f"{name}: logits", error(reloaded.eval()(ids).logits, original.eval()(ids).logits), 1e-6)
suite.close()
