"""Ten training steps of a tiny model by TRL's trainers, on pairs of conversations, in float32."""

import copy
import dataclasses
import json
import pathlib

import torch
import trl
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models as token_models, pre_tokenizers, trainers
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast, PrinterCallback
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

import models
from trl_losses import in_float64

STEPS, SEQ_LEN = 10, 384
EOS, PAD, BOS = "<|eot_id|>", "<pad>", "<|begin_of_text|>"
SPECIAL = [EOS, PAD, BOS, "<|start_header_id|>", "<|end_header_id|>"]
TEMPLATE = pathlib.Path(trl.__file__).parent / "chat_templates" / "llama3_training.jinja"

PAIRS = [
    ("Name a fruit.", "An apple.", "A chair is a fruit, too.", 0.5),
    ("2 + 3?", "It is 5.", "6", 1.25),
    ("Translate: größere Häuser", "bigger houses", "a large dog that sleeps in Tokyo", 0.0),
    ("Why is the sky blue?", "Air scatters blue light more than red light.", "Because.", 2.0),
    ("Say nothing.", "…", "No, I say a lot of things here instead.", 0.25),
    ("def f(x):\n    return", "x * 2\n\nprint(f(21))  # ok", "pass", 0.75),
    ("Capital of Japan?", "東京, Tokyo.", "Kyoto, of course: the old one.", 1.5),
    ("List two words.", "fox\ndog", "fox", 0.1),
]


def message(role, text):
    return {"role": role, "content": text}


def prompt(number, question):
    """Some have a system message, some have an earlier turn."""
    before = [message("system", "Be brief.")] if number % 3 == 0 else []
    if number % 4 == 1:
        before += [message("user", "Hello!"), message("assistant", "Hello, what can I do?")]
    return before + [message("user", question)]


def pair_rows(margins=False):
    rows = []
    for number, (question, better, worse, margin) in enumerate(PAIRS):
        rows.append({"prompt": prompt(number, question), "chosen": [message("assistant", better)],
                     "rejected": [message("assistant", worse)], **({"margin": margin} if margins else {})})
    return rows


def labelled_rows():
    """All prompts differ. Most answers are good."""
    return [{"prompt": prompt(number, question), "completion": [message("assistant", worse if number % 3 == 1 else better)],
             "label": number % 3 != 1} for number, (question, better, worse, _) in enumerate(PAIRS)]


def make_tokenizer(folder, vocab_size=300):
    tokenizer = Tokenizer(token_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text for pair in PAIRS for text in pair[:3]], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, bos_token=BOS)
    fast.chat_template = TEMPLATE.read_text()
    fast.save_pretrained(folder)
    return fast


def make_models(folder, tokenizer, seed=700, **changes):
    """(language model, model with a head of one score), which have all other weights in common and are saved in the
    folders `model` and `reward`."""
    shape = dict(vocab_size=len(tokenizer), num_hidden_layers=2, tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id,
                 eos_token_id=tokenizer.eos_token_id, max_position_embeddings=512)
    shape.update(changes)
    language = models.make(seed=seed, **shape)
    reward = models.make(seed=seed, head=AutoModelForSequenceClassification, num_labels=1, pad_token_id=tokenizer.pad_token_id,
                         **shape)
    reward.model.load_state_dict(language.model.state_dict())
    for name, model in (("model", language), ("reward", reward)):
        models.save(model, folder / name)
        tokenizer.save_pretrained(folder / name)
        model.config.name_or_path = str(folder / name)
    return language, reward


class Recording:
    """Keeps losses and metrics of every step in full precision."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        result = super().compute_loss(model, inputs, *args, **kwargs)
        metrics = self._metrics["train"] if hasattr(self, "_metrics") else self._stored_metrics["train"]
        step = {name: float(values[-1]) for name, values in metrics.items()}
        step["loss"] = (result[0] if isinstance(result, tuple) else result).item()
        self.__dict__.setdefault("steps", []).append(step)
        return result


class DPO(Recording, trl.DPOTrainer):
    pass


class KTO(Recording, trl.KTOTrainer):
    pass


class Reward(Recording, trl.RewardTrainer):
    pass


class CPO(Recording, CPOTrainer):
    pass


class ORPO(Recording, ORPOTrainer):
    """The negative log-likelihood is over the answers alone."""

    def concatenated_forward(self, model, batch):
        result = super().concatenated_forward(model, batch)
        chosen_logits, labels = result[2], batch["chosen_labels"][:, 1:]
        logits = chosen_logits[:, :labels.size(1)]
        nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return *result[:4], nll


@dataclasses.dataclass
class Run:
    trainer: type
    config: type
    options: dict     # of TRL
    objective: dict   # of chassis
    task: str = "preference"
    rows: str = "pairs"
    batch: int = 4


RUNS = {
    "dpo": Run(DPO, trl.DPOConfig, dict(beta=0.5), dict(plugin="dpo", loss=["sigmoid"], beta=0.5)),
    "dpo_sft": Run(DPO, trl.DPOConfig, dict(beta=0.3, loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.2]),
                   dict(plugin="dpo", loss=["sigmoid"], beta=0.3, sft_weight=0.2)),
    "dpo_ipo": Run(DPO, trl.DPOConfig, dict(beta=0.5, loss_type=["ipo"]), dict(plugin="dpo", loss=["ipo"], beta=0.5)),
    "dpo_ld": Run(DPO, trl.DPOConfig, dict(beta=0.5, ld_alpha=0.4), dict(plugin="dpo", loss=["sigmoid"], beta=0.5, ld_alpha=0.4)),
    # A step has all rows: TRL takes the other answer from the batch, chassis from the file.
    "kto": Run(KTO, trl.KTOConfig, dict(beta=0.5, desirable_weight=0.75, undesirable_weight=1.25),
               dict(plugin="kto", loss="kto", beta=0.5, desirable_weight=0.75, undesirable_weight=1.25), rows="labelled",
               batch=len(PAIRS)),
    "orpo": Run(ORPO, ORPOConfig, dict(beta=0.4), dict(plugin="orpo", beta=0.4)),
    "cpo": Run(CPO, CPOConfig, dict(beta=0.3, cpo_alpha=0.5), dict(plugin="cpo", loss="sigmoid", beta=0.3, sft_weight=0.5)),
    "simpo": Run(CPO, CPOConfig, dict(beta=2.0, loss_type="simpo", simpo_gamma=1.0, cpo_alpha=0.0),
                 dict(plugin="cpo", loss="simpo", beta=2.0, gamma=1.0)),
    "reward": Run(Reward, trl.RewardConfig, dict(center_rewards_coefficient=0.02),
                  dict(plugin="reward", center_coefficient=0.02), task="reward", rows="margins"),
}


def trl_rows(kind):
    return labelled_rows() if kind == "labelled" else pair_rows(margins=kind == "margins")


def our_rows(kind):
    """The rows for chassis. It joins a prompt with the answer after it, TRL with the one before it."""
    return trl_rows(kind)[::-1] if kind == "labelled" else trl_rows(kind)


def sequences(trainer):
    """(ids, number of tokens of the prompt) of each sequence, in the order of our rows; a reward model needs no prompt."""
    result = []
    for row in trainer.train_dataset:
        if "completion_ids" in row:
            result.append((row["prompt_ids"] + row["completion_ids"], len(row["prompt_ids"])))
        elif "chosen_labels" in row:
            for name in ("chosen", "rejected"):
                result.append((row[name + "_input_ids"], row[name + "_labels"].count(-100)))
        elif "prompt_ids" in row:
            result += [(row["prompt_ids"] + row[name + "_ids"], len(row["prompt_ids"])) for name in ("chosen", "rejected")]
        else:
            result += [(row[name + "_ids"], None) for name in ("chosen", "rejected")]
    return result


def train(name, folder, language, reward, tokenizer, lr):
    """{"steps": metrics of each step, "sequences", "model": the trained model}"""
    run = RUNS[name]
    arguments = run.config(
        output_dir=str(folder / (name + "-trl")), use_cpu=True, report_to="none", save_strategy="no", bf16=False,
        gradient_checkpointing=False, max_length=SEQ_LEN, max_steps=STEPS, per_device_train_batch_size=run.batch,
        train_sampling_strategy="sequential", lr_scheduler_type="constant", learning_rate=lr, optim="adamw_torch",
        adam_epsilon=1e-4, adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, logging_steps=1,
        disable_tqdm=True, **run.options)
    model = copy.deepcopy(reward if run.task == "reward" else language)
    # Otherwise TRL reads the reference from name_or_path.
    reference = {"ref_model": copy.deepcopy(model)} if run.trainer in (DPO, KTO) else {}
    trainer = run.trainer(model=model, args=arguments, train_dataset=Dataset.from_list(trl_rows(run.rows)),
                          processing_class=tokenizer, **reference)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    for step, norm in zip(trainer.steps, norms, strict=True):
        step["grad_norm"] = float(norm)
    result = sequences(trainer)
    return {"steps": trainer.steps, "sequences": result[::-1] if run.rows == "labelled" else result, "model": trainer.model}


def train_in_float64(name, folder, language, reward, tokenizer, lr):
    wide = [copy.deepcopy(model).to(torch.float64) for model in (language, reward)]
    with in_float64():
        return train(name, folder, *wide, tokenizer, lr)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def save_head(reward, path):
    save_file({"score.weight": reward.score.weight.detach().contiguous()}, path)
