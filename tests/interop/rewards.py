"""Reward models that eight processes trained under tensor parallelism, in transformers: it loads the exported directory
without a missing, unexpected or wrongly shaped tensor, and scores padded batches as chassis scores the rows, with the
vocabulary of Llama 3 and with one that eight does not divide.

--only takes a size of the vocabulary."""

import json
import random

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models as token_models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

import models
from suite import Suite, error, metrics

VOCABULARIES, PROCESSES, STEPS, SEQ_LEN = (1031, 128256), 8, 2, 128
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def make_tokenizer(vocab_size, folder):
    """A word for each id, so that rows reach the share of every process."""
    vocab = {word: id for id, word in enumerate(SPECIAL + [f"w{id}" for id in range(len(SPECIAL), vocab_size)])}
    tokenizer = Tokenizer(token_models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    fast.save_pretrained(folder)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def sequences(preview):
    """The ids of each answer with its prompt, of the data that are trained."""
    lines = [json.loads(line) for line in preview.decode().splitlines()]
    return [[id for piece in line["pieces"] for id in piece["ids"]] for line in lines if line["set"].startswith("data.train")]


def scores_in_transformers(model, ids):
    """Of all sequences as one batch that is padded on the right; the model finds the last token of each."""
    longest, pad = max(map(len, ids)), model.config.pad_token_id
    batch = torch.tensor([row + [pad] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    with torch.no_grad():
        return model(input_ids=batch, attention_mask=mask).logits[:, 0]


def compare(suite, vocab_size):
    name = f"vocab {vocab_size}"
    base = suite.folder / f"base-{vocab_size}"
    models.save(models.make(seed=900, vocab_size=vocab_size, hidden_size=64, intermediate_size=88, num_hidden_layers=2,
                            num_attention_heads=16, num_key_value_heads=8, bos_token_id=None, eos_token_id=1), base)
    make_tokenizer(vocab_size, base)
    generator = random.Random(5)
    words = lambda count: " ".join(f"w{generator.randrange(len(SPECIAL), vocab_size)}" for _ in range(count))
    pairs = [{"prompt": words(6), "chosen": words(3 + row % 5), "rejected": words(2 + row % 3)} for row in range(16)]
    data, answers = suite.folder / f"pairs-{vocab_size}.jsonl", suite.folder / f"answers-{vocab_size}.jsonl"
    write(data, pairs)
    write(answers, [{"prompt": pair["prompt"], "completion": pair[side]} for pair in pairs for side in ("chosen", "rejected")])

    def config(suffix, model, **tables):
        rows = [{"path": str(data), "format": "preference"}]
        return suite.config(f"rewards-{vocab_size}{suffix}", model, data__train=rows, data__eval=rows, tokenizer={"plugin": "hf"},
                            data={"cache_dir": str(suite.folder / "cache"), "template": "plain", "packing": "none", "shuffle": False},
                            objective={"plugin": "reward"},
                            train={"task": "reward", "seq_len": SEQ_LEN, "micro_batch_size": 2, "global_batch_size": 4},
                            run={"max_steps": STEPS, "threads": 1}, export={"dtype": "fp32"}, **tables)

    divided = config("", base, mesh={"tp": PROCESSES}, parallel=[{"plugin": "tensor"}])
    suite.run("train", divided, "--nproc", PROCESSES)
    run = suite.folder / f"rewards-{vocab_size}-run"
    suite.check(f"{name}: steps", len(metrics(run)) == STEPS)

    model, info = AutoModelForSequenceClassification.from_pretrained(run / "final", output_loading_info=True,
                                                                     attn_implementation="eager", dtype="auto")
    suite.check(f"{name}: no missing, unexpected or wrongly shaped tensor", not any(info.values()), str(info))
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    saved = load_file(run / "final" / "model.safetensors")
    suite.check(f"{name}: shapes", {key: tuple(value.shape) for key, value in saved.items()} == expected)
    before = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    rows = -(-vocab_size // PROCESSES)
    shares = [(saved["model.embed_tokens.weight"] - before)[at:at + rows].abs().max().item() for at in range(0, vocab_size, rows)]
    suite.check(f"{name}: every process trained its embeddings", len(shares) == PROCESSES and min(shares) > 1e-4, f"{min(shares):.1e}")

    ids = sequences(suite.run("data", "preview", divided, "--json", "--rows", len(pairs)))
    suite.check(f"{name}: sequences", len(ids) == 2 * len(pairs) and all(row[-1] == 1 for row in ids))
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    chat = lambda pair, side: [dict(role="user", content=pair["prompt"]), dict(role="assistant", content=pair[side])]
    again = [tokenizer.apply_chat_template(chat(pair, side))["input_ids"] for pair in pairs for side in ("chosen", "rejected")]
    suite.check(f"{name}: the exported tokenizer makes the same ids", ids == again)
    theirs = scores_in_transformers(model.eval(), ids)
    suite.check(f"{name}: scores differ", theirs.std().item() > 1e-2, f"{theirs.std().item():.2f}")
    for suffix, arguments in {"": ("--nproc", PROCESSES), "-exported": ()}.items():
        chosen = divided if not suffix else config(suffix, run / "final")
        lines = suite.run("score", chosen, "--rows", answers, *arguments).decode().splitlines()
        ours = torch.tensor([json.loads(line)["score"] for line in lines if line.startswith("{")])
        suite.check(f"{name}{suffix}: number of scores", len(ours) == len(ids))
        suite.at_most(f"{name}{suffix}: scores", error(ours, theirs), 1e-5)


def main():
    suite = Suite(__doc__)
    for vocab_size in VOCABULARIES:
        if suite.args.only in str(vocab_size):
            compare(suite, vocab_size)
    suite.close()


if __name__ == "__main__":
    main()
