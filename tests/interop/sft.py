"""Supervised fine-tuning on conversations, against TRL: the same ids and labels for the same chat file, ten training steps
on them, and packed rows whose losses are those of the rows alone.

TRL masks by the {% generation %} blocks of its training templates. Where a family's own template has none, chassis finds
the same bytes by other means; those are compared with TRL's training template of the family. Two rules differ, and are kept
out: TRL trains the white space behind the token that ends a turn where a block has it, and a token that lies partly in a
block, such as one of the header's newline and an answer's first space.
"""

import collections
import json
import pathlib

import torch
import trl
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models as token_models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import models
from suite import Suite, error, metrics

STEPS, MICRO, ACCUMULATION, SEQ_LEN = 10, 2, 2, 256
TEMPLATES = pathlib.Path(trl.__file__).parent / "chat_templates"

# Family: token that ends a turn, special tokens, whether it takes system messages, and the templates that chassis reads
# in addition to TRL's training template: TRL's others by file, and slot templates of chassis by name.
FAMILIES = {
    "qwen3": ("<|im_end|>", ["<|im_start|>"], True, []),
    "llama3": ("<|eot_id|>", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"], True, ["llama3.jinja", "llama3"]),
    "phi3": ("<|end|>", ["<|user|>", "<|assistant|>", "<|system|>", "<|endoftext|>"], True, []),
    "gemma3": ("<end_of_turn>", ["<bos>", "<start_of_turn>"], True, ["gemma3.jinja", "gemma"]),
    "gemma": ("<end_of_turn>", ["<bos>", "<start_of_turn>"], False, ["gemma.jinja", "gemma"]),
    "qwen3_instruct_2507": ("<|im_end|>", ["<|im_start|>"], True, ["qwen3_instruct_2507.jinja", "chatml"]),
}
BOS = {"llama3": "<|begin_of_text|>", "gemma3": "<bos>", "gemma": "<bos>"}


def conversations(with_system):
    """Rows of several turns, with text that is not ASCII, code, white space and empty lines inside."""
    words = ("the quick brown fox jumps over a lazy dog while größere Häuser stehen und 東京 sleeps; "
             "def f(x):\n    return x * 2\n\nprint(f(21)) # ok").split(" ")
    rows, state = [], 7
    for number in range(48):
        def text(most):
            nonlocal state
            picked = []
            for _ in range(1 + state % most):
                state = (state * 1103515245 + 12345) % 2**31
                picked.append(words[(state >> 8) % len(words)])
            return " ".join(picked).strip()
        messages = [{"role": "system", "content": text(6)}] if with_system and number % 3 == 0 else []
        for _ in range(1 + number % 3):
            messages += [{"role": "user", "content": text(9)}, {"role": "assistant", "content": text(14)}]
        rows.append({"messages": messages})
    return rows


def make_tokenizer(folder, family):
    end, specials, _, _ = FAMILIES[family]
    tokenizer = Tokenizer(token_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=[end, "<pad>", *specials], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([m["content"] for row in conversations(True) for m in row["messages"]], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in [end, "<pad>", *specials]])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token="<pad>", bos_token=BOS.get(family))
    fast.chat_template = (TEMPLATES / f"{family}_training.jinja").read_text()
    fast.save_pretrained(folder)
    return fast


class RecordingTrainer(trl.SFTTrainer):
    """Keeps the loss of every micro-batch in full precision."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        result = super().compute_loss(model, inputs, *args, **kwargs)
        loss = result[0] if isinstance(result, tuple) else result
        self.__dict__.setdefault("losses", []).append(loss.item())
        return result


def trl_trainer(folder, model, tokenizer, rows, **options):
    arguments = trl.SFTConfig(
        output_dir=str(folder), use_cpu=True, report_to="none", save_strategy="no", bf16=False, gradient_checkpointing=False,
        assistant_only_loss=True, loss_type="nll", max_length=SEQ_LEN, max_steps=STEPS, per_device_train_batch_size=MICRO,
        gradient_accumulation_steps=ACCUMULATION, train_sampling_strategy="sequential", lr_scheduler_type="constant",
        learning_rate=1e-3, optim="adamw_torch", adam_epsilon=1e-4, adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.0,
        max_grad_norm=1.0, logging_steps=1, disable_tqdm=True, **options)
    return RecordingTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)


def documents(preview):
    """(ids, labels) of each row that `chassis data preview --json` prints."""
    result = []
    for line in preview.decode().splitlines():
        row = json.loads(line)
        ids, labels = [], []
        for piece in row["pieces"]:
            ids += piece["ids"]
            labels += piece["ids"] if piece["state"] == "trained" else [-100] * len(piece["ids"])
        result.append((tuple(ids), tuple(labels)))
    return result


def to_end_of_turn(ids, labels, end):
    """Without the labels behind a token that ends a turn."""
    return tuple(-100 if i > 0 and ids[i - 1] == end and label != end else label for i, label in enumerate(labels))


suite = Suite(__doc__)
for number, family in enumerate(FAMILIES):
    if suite.args.only not in family:
        continue
    _, _, with_system, own_templates = FAMILIES[family]
    rows = conversations(with_system)
    folder = suite.folder / family
    model = models.make(seed=300 + number, vocab_size=512, max_position_embeddings=256)
    models.save(model, folder)
    tokenizer = make_tokenizer(folder, family)
    data = suite.folder / (family + ".jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def config(name, template="auto", packing="none", steps=STEPS):
        return suite.config(
            name, folder, run={"max_steps": steps},
            data={"packing": packing, "shuffle": False, "cache_dir": str(suite.folder / "cache"), "template": template},
            data__train=[{"path": str(data), "format": "messages"}], tokenizer={"plugin": "hf"},
            train={"task": "sft", "seq_len": SEQ_LEN, "micro_batch_size": MICRO, "global_batch_size": MICRO * ACCUMULATION},
            optimizer={"lr": 1e-3, "weight_decay": 0.0, "max_grad_norm": 1.0, "plugin": "adamw", "eps": 1e-4,
                       "betas": [0.9, 0.95]})

    theirs = trl_trainer(suite.folder / (family + "-trl"), model, tokenizer, rows)
    expected = [(tuple(row["input_ids"]), tuple(row["labels"])) for row in theirs.train_dataset]
    ours = documents(suite.run("data", "preview", config(family), "--json", "--rows", len(rows)))
    suite.check(f"{family} ids of {len(rows)} rows", [ids for ids, _ in ours] == [ids for ids, _ in expected])
    suite.check(f"{family} labels", ours == expected,
                f"{sum(label != -100 for _, labels in ours for label in labels)} trained tokens")
    for name in own_templates:
        template = str(TEMPLATES / name) if name.endswith(".jinja") else name
        again = documents(suite.run("data", "preview", config(f"{family}-own", template), "--json", "--rows", len(rows)))
        turns = [(ids, to_end_of_turn(ids, labels, tokenizer.eos_token_id)) for ids, labels in expected]
        suite.check(f"{family} ids and labels by {name}", again == turns,
                    f"{sum(a == b for a, b in zip(again, turns))} of {len(turns)} rows")

    packed = trl_trainer(suite.folder / (family + "-packed"), model, tokenizer, rows, packing=True, packing_strategy="bfd")
    pieces = collections.Counter()
    for row in packed.train_dataset:
        begin = 0
        for length in row["seq_lengths"]:
            pieces[tuple(row["input_ids"][begin:begin + length]), tuple(row["labels"][begin:begin + length])] += 1
            begin += length
    suite.check(f"{family} packed by TRL: the same rows", pieces == collections.Counter(ours), f"{len(packed.train_dataset)} rows")

    # Ten steps of TRL's trainer, and of ours.
    before = {key: value.clone() for key, value in model.state_dict().items()}
    theirs.train()
    suite.run("train", config(family))
    run = suite.folder / (family + "-run")
    lines = metrics(run)
    losses = [sum(theirs.losses[i:i + ACCUMULATION]) for i in range(0, len(theirs.losses), ACCUMULATION)]
    largest = max(abs(line["loss"] - loss) / abs(loss) for line, loss in zip(lines, losses))
    suite.check(f"{family} steps", len(lines) == len(losses) == STEPS, f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    suite.at_most(f"{family} losses", largest, 2e-6)
    final = {key: value for file in (run / "final").glob("*.safetensors") for key, value in load_file(file).items()}
    trained = theirs.model.state_dict()
    suite.at_most(f"{family} weights", max(error(final[key], trained[key]) for key in final), 2e-6)
    suite.check(f"{family} weights moved", max(error(final[key], before[key]) for key in final) > 1e-3)

    # Several documents in a row give the losses that each gives alone.
    with torch.no_grad():
        chosen = [ours[0], ours[1], ours[2], ours[4]]
        total = sum(len(ids) for ids, _ in chosen)
        ids = [i for document, _ in chosen for i in document]
        positions = [p for document, _ in chosen for p in range(len(document))]
        numbers = [n for n, (document, _) in enumerate(chosen) for _ in document]
        logits = suite.logits(config(family + "-packed", packing="best_fit"), [ids], positions=[positions],
                              document_ids=[numbers])[0]
        begin, worst = 0, 0.0
        for document, labels in chosen:
            alone = suite.logits(config(family + "-alone"), [list(document)])[0]
            def loss(scores):
                return torch.nn.functional.cross_entropy(scores[:-1].double(), torch.tensor(labels[1:]), ignore_index=-100)
            packed_loss, loss_alone = loss(logits[begin:begin + len(document)]), loss(alone)
            worst = max(worst, abs((packed_loss - loss_alone) / loss_alone).item())
            begin += len(document)
    suite.at_most(f"{family} losses of packed rows, {len(chosen)} documents of {total} tokens", worst, 2e-6)
suite.close()
