"""Greedy continuation: chassis with its key-value cache, without it, and transformers' generate give the same bytes."""

import torch

import models
from suite import Suite

BOS, EOS, PAD, VOCAB = 256, 257, 258, 259   # for the tokenizer "bytes"
CASES = {
    "gqa": dict(),
    "mqa_tied": dict(num_key_value_heads=1, tie_word_embeddings=True),
    "mistral_window": dict(family="mistral", sliding_window=9),
    "mistral": dict(family="mistral", num_key_value_heads=4),
    "qwen2_tied": dict(family="qwen2", tie_word_embeddings=True),
    "qwen2_window": dict(family="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": dict(family="qwen3"),
    "qwen3_tied": dict(family="qwen3", tie_word_embeddings=True, num_key_value_heads=1),
    "gemma2": dict(family="gemma2", sliding_window=9),
    "gemma2_uncapped": dict(family="gemma2", sliding_window=9, attn_logit_softcapping=None, final_logit_softcapping=None,
                            tie_word_embeddings=False, num_key_value_heads=1),
    "gemma3": dict(family="gemma3_text", sliding_window=9),
    "gemma3_ropes": dict(family="gemma3_text", sliding_window=9, rope=models.LOCAL, tie_word_embeddings=False),
    "phi3_window": dict(family="phi3", sliding_window=9, tie_word_embeddings=True, num_key_value_heads=1),
    "phi3_long": dict(family="phi3", rope={**models.LONG, "original_max_position_embeddings": 128}, hidden_size=80,
                      original_max_position_embeddings=128),
    "phi3": dict(family="phi3", rope=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
    "gpt2": dict(family="gpt2"),
    "gpt2_odd": dict(family="gpt2", hidden_size=35, num_attention_heads=5, tie_word_embeddings=False),
    "llama3_biases": dict(rope=models.LLAMA3, attention_bias=True, mlp_bias=True, head_dim=20),
}
PROMPTS = ["The quick brown fox", "x", "Grüße: ∀x"]
NEW = 60

suite = Suite(__doc__)
for number, (name, changes) in enumerate(CASES.items()):
    if suite.args.only not in name:
        continue
    model = models.make(seed=300 + number, vocab_size=VOCAB, initializer_range=0.25, bos_token_id=BOS, eos_token_id=EOS,
                        pad_token_id=PAD, **changes)
    folder = models.save(model, suite.folder / name)
    config = suite.config(name, folder, tokenizer={"plugin": "bytes"}, generate={"max_new_tokens": NEW})
    for prompt in PROMPTS:
        ids = torch.tensor([[BOS, *prompt.encode()]])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False,
                             return_dict_in_generate=True, output_scores=True)
        fresh = out.sequences[0, ids.shape[1]:].tolist()
        top = torch.stack(out.scores).topk(2).values
        margin = (top[..., 0] - top[..., 1]).min().item()
        expected = prompt.encode() + bytes(id for id in fresh if id < BOS) + b"\n"
        cached = suite.run("generate", config, "--prompt", prompt, "--from", folder)
        plain = suite.run("generate", config, "--prompt", prompt, "--from", folder, "--no-cache")
        detail = f"{len(fresh)} tokens, {len(set(fresh))} different, smallest margin {margin:.1e}"
        suite.check(f"{name} '{prompt}': cached equals transformers", cached == expected, detail)
        suite.check(f"{name} '{prompt}': cached equals uncached", cached == plain)
        for seed in (1, 2):
            sampled = [suite.run("generate", config, "--prompt", prompt, "--from", folder, *how, "generate.temperature=0.8",
                                 "generate.top_p=0.9", f"run.seed={seed}") for how in ((), ("--no-cache",))]
            suite.check(f"{name} '{prompt}': sampled with seed {seed}, cached equals uncached", sampled[0] == sampled[1])
suite.close()
