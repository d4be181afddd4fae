"""Losses, gradients and metrics of TRL's trainers for given log-probabilities and scores, in float64.

TRL's own functions run here, on a stand-in for the trainer and for its model: the model returns tensors whose gradients
are read afterwards. Log-probabilities of tokens are multiples of 1/64, so their sums are exact."""

import collections
import contextlib
import random
import types
from unittest import mock

import torch
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer

ANSWER, CHOSEN, REJECTED, MISMATCH = range(4)  # CHASSIS_SEQUENCE_…
PROMPT = 2  # tokens

# Differences that are intended. The cases avoid them, except where an entry says which number they hold.
DEVIATIONS = {
    "dpo": [
        "Terms are divided by counts over the global batch, and AOT sorts the global batch. TRL does so for each "
        "micro-batch, so each case is one micro-batch.",
        "TRL ignores label_smoothing with the loss 'sigmoid'. These cases hold what its CPOTrainer computes for the "
        "rewards of DPO, which is the conservative loss.",
        "logits/*, entropy and mean_token_accuracy need the distribution over the vocabulary and are left out.",
    ],
    "kto": [
        "The mean over mismatched sequences is over the global batch. TRL averages it over micro-batches and ranks.",
        "TRL has no rewards/accuracies here.",
    ],
    "orpo": [
        "The negative log-likelihood is over tokens of chosen answers. TRL includes the tokens of their prompts; its "
        "concatenated_forward is replaced by one that counts answers only.",
    ],
    "cpo": [
        "sft_weight is TRL's cpo_alpha. TRL's default is 1 also for loss 'simpo', where it must be 0 for SimPO.",
        "TRL computes exp(logp) ** -alpha, which overflows for improbable answers; the cases stay in its range.",
    ],
    "reward": ["min_reward and max_reward are no sums over the batch, and a plugin may leave them out."],
    "policy": [
        "Old log-probabilities come from the data. TRL computes them with the model where it can.",
        "The terms of all losses but 'dapo' and 'cispo' are divided by counts over the global batch. TRL does so for each "
        "micro-batch.",
        "CISPO clips ratios at 1 + clip_high; TRL's epsilon_high is that bound itself.",
    ],
}


class Accelerator:
    """One process on a CPU."""

    device = torch.device("cpu")
    num_processes, process_index = 1, 0
    sync_gradients = True

    def gather(self, value):
        return value

    gather_for_metrics = gather

    def reduce(self, value, reduction):
        return value

    def autocast(self):
        return contextlib.nullcontext()


class Model(torch.nn.Module):
    """Returns what it was made with."""

    is_gradient_checkpointing = False

    def __init__(self, **outputs):
        super().__init__()
        self.outputs = types.SimpleNamespace(**outputs)

    def forward(self, *arguments, **options):
        return self.outputs


@contextlib.contextmanager
def in_float64():
    """TRL narrows some values to float32; here it computes them in float64 too."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double), mock.patch.object(torch, "float32", torch.float64):
            yield
    finally:
        torch.set_default_dtype(default)


def trainer(**members):
    return types.SimpleNamespace(
        accelerator=Accelerator(), model=Model(), aux_loss_enabled=False, _metrics=collections.defaultdict(
            lambda: collections.defaultdict(list)), _total_train_tokens=0, _tp_size=1, _peft_has_been_casted_to_bf16=False,
        **members)


def logged(trainer, names):
    """The metrics with these names, or beginning with those that end with a slash."""
    return {name: values[-1] for name, values in sorted(trainer._metrics["train"].items())
            if any(name == wanted or wanted.endswith("/") and name.startswith(wanted) for wanted in names)}


class Tokens:
    """Log-probabilities of the tokens of sequences of these lengths, as one vector, and as TRL's rows."""

    def __init__(self, lengths, values):
        self.lengths = lengths
        self.leaf = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        width = PROMPT + max(lengths)
        self.completion_mask = torch.zeros(len(lengths), width, dtype=torch.long)
        for row, length in enumerate(lengths):
            self.completion_mask[row, PROMPT:PROMPT + length] = 1
        self.attention_mask = self.completion_mask.clone()
        self.attention_mask[:, :PROMPT] = 1

    def rows(self, order, width=None):
        """[sequences, positions], the sequences in this order, with gradients to the vector."""
        begins = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        width = width or self.completion_mask.size(1) - 1
        before = PROMPT - 1 if width == self.completion_mask.size(1) - 1 else 0
        made = []
        for i in order:
            tokens = self.leaf[begins[i]:begins[i] + self.lengths[i]]
            made.append(torch.nn.functional.pad(tokens, (before, width - before - self.lengths[i])))
        return torch.stack(made)

    def sums(self):
        return torch.stack([part.sum() for part in self.leaf.split(self.lengths)])

    def outputs(self, order):
        log_probs = self.rows(order)
        nothing = torch.zeros_like(log_probs)
        return Model(log_probs=log_probs, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())


class Batch:
    """Sequences in the order in which a plugin sees them."""

    def __init__(self, roles, units, lengths, seed, *, reference=False, old=False, offset=0.0, spread=1.0):
        source = random.Random(seed)
        dyadic = lambda value: round(value * 64) / 64
        def near(values, width):
            return [min(dyadic(value + source.uniform(-width, width)), 0.0) for value in values]
        policy = [-dyadic(offset + spread * source.expovariate(1.0)) for _ in range(sum(lengths))]
        self.roles, self.units, self.lengths = roles, units, lengths
        self.policy = Tokens(lengths, policy)
        self.reference = Tokens(lengths, near(policy, 0.8 * spread)) if reference else None
        self.old = Tokens(lengths, near(policy, 0.5)) if old else None
        self.targets, self.has_tokens = [], False

    def case(self, name, plugin, options, loss, metrics):
        """An entry of a golden file, after the backward pass."""
        self.policy.leaf.grad = None
        loss.backward()
        begins = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        tokens = self.policy.leaf.grad
        tokens = [0.0] * sum(self.lengths) if tokens is None else tokens.tolist()
        uniform = all(len(set(tokens[b:b + n])) == 1 for b, n in zip(begins, self.lengths))
        assert uniform or self.has_tokens, name
        sequences = {
            "role": self.roles, "unit": self.units, "length": self.lengths, "logp": self.policy.sums().tolist(),
            "reference_logp": self.reference.sums().tolist() if self.reference else [],
            "target": [[value] for value in self.targets]}
        if self.has_tokens:
            for key, values in (("", self.policy), ("reference_", self.reference), ("old_", self.old)):
                sequences[key + "token_logp"] = values.leaf.tolist() if values else []
        return entry(name, plugin, options, sequences, loss, metrics,
                     # The whole gradient of a token includes that of its sequence. How it is divided is not known.
                     grad_logp=[] if self.has_tokens else [tokens[b] for b in begins],
                     grad_token_logp=tokens if self.has_tokens else [])


def entry(name, plugin, options, sequences, loss, metrics, **gradients):
    """Without arrays that do not apply."""
    filled = lambda arrays: {key: values for key, values in arrays.items() if values}
    return {"name": name, "plugin": plugin, "options": options, "sequences": filled(sequences), "loss": loss.item(),
            **filled(gradients), "metrics": metrics}


# --- pairs --------------------------------------------------------------------------------------------------------


def pairs(seed, lengths=((4, 7), (9, 3), (1, 2), (5, 5)), **options):
    flat = [length for pair in lengths for length in pair]
    return Batch([CHOSEN, REJECTED] * len(lengths), [i // 2 for i in range(len(flat))], flat, seed, **options)


def chosen_then_rejected(batch):
    """The order of TRL's rows."""
    return [i for role in (CHOSEN, REJECTED) for i, r in enumerate(batch.roles) if r == role]


def dpo_loss(batch, loss, *, weights=None, beta=0.1, label_smoothing=0.0, f_divergence="reverse_kl", alpha=0.5,
             discopop_tau=0.05, ld_alpha=None):
    """(loss, metrics) of DPOTrainer. `loss` is a list of its loss types."""
    order = chosen_then_rejected(batch)
    made = trainer(
        ld_alpha=ld_alpha, precompute_ref_logps=False, ref_model=batch.reference.outputs(order),
        args=types.SimpleNamespace(gradient_checkpointing_kwargs=None, discopop_tau=discopop_tau),
        f_divergence_type=f_divergence, f_alpha_divergence_coef=alpha, loss_types=loss, loss_weights=weights or [1.0] * len(loss),
        beta=beta, label_smoothing=label_smoothing, use_weighting=False)
    inputs = {"input_ids": torch.zeros_like(batch.policy.completion_mask[order]),
              "attention_mask": batch.policy.attention_mask[order], "completion_mask": batch.policy.completion_mask[order]}
    value = DPOTrainer._compute_loss(made, batch.policy.outputs(order), inputs, False)
    return value, logged(made, ["rewards/", "logps/"])


def dpo_cases():
    epsilon = 0.15
    smoothed = {"exo_pair", "robust", "aot", "aot_unpaired"}
    losses = ["sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
              "apo_zero", "apo_down", "discopop", "sigmoid_norm"]
    for number, loss in enumerate(losses):
        for beta in (0.1, 0.75):
            batch = pairs(number, reference=True)
            options = {"loss": loss, "beta": beta}
            if loss in smoothed:
                options["label_smoothing"] = epsilon
            if loss == "discopop":
                options["discopop_tau"] = 0.05 if beta == 0.1 else 0.3
            value, metrics = dpo_loss(batch, [loss], beta=beta, label_smoothing=options.get("label_smoothing", 0.0),
                                      discopop_tau=options.get("discopop_tau", 0.05))
            yield batch.case(f"{loss} beta {beta}", "dpo", options, value, metrics)
    for loss in ("robust", "aot", "aot_unpaired"):  # without smoothing
        batch = pairs(40, reference=True)
        value, metrics = dpo_loss(batch, [loss], beta=0.3)
        yield batch.case(f"{loss} without label smoothing", "dpo", {"loss": loss, "beta": 0.3}, value, metrics)
    batch = pairs(41, reference=True)
    value = smoothed_sigmoid(batch, beta=0.4, label_smoothing=epsilon)
    _, metrics = dpo_loss(batch, ["sigmoid"], beta=0.4)
    yield batch.case("sigmoid with label smoothing", "dpo", {"loss": "sigmoid", "beta": 0.4, "label_smoothing": epsilon}, value,
                     metrics)
    batch = pairs(42, reference=True, spread=40.0)
    value, metrics = dpo_loss(batch, ["sigmoid"], beta=0.9)
    yield batch.case("sigmoid of improbable answers", "dpo", {"loss": "sigmoid", "beta": 0.9}, value, metrics)

    divergences = {"forward_kl": {}, "js_divergence": {}, "alpha_divergence": {"alpha": 0.5}}
    allowed = ["sigmoid", "hinge", "ipo", "exo_pair", "robust", "discopop", "sigmoid_norm"]
    for number, (divergence, extra) in enumerate(divergences.items()):
        for loss in allowed:
            batch = pairs(50 + number, reference=True, spread=0.3)
            options = {"loss": loss, "beta": 0.2, "f_divergence": divergence, **extra}
            if loss in smoothed:
                options["label_smoothing"] = epsilon
            value, metrics = dpo_loss(batch, [loss], beta=0.2, f_divergence=divergence,
                                      label_smoothing=options.get("label_smoothing", 0.0), **extra)
            yield batch.case(f"{loss} with {divergence}", "dpo", options, value, metrics)
    for alpha in (0.0, 1.0, 1.8):
        batch = pairs(55, reference=True, spread=0.5)
        value, metrics = dpo_loss(batch, ["sigmoid"], beta=0.2, f_divergence="alpha_divergence", alpha=alpha)
        yield batch.case(f"sigmoid with alpha_divergence {alpha}", "dpo",
                         {"loss": "sigmoid", "beta": 0.2, "f_divergence": "alpha_divergence", "alpha": alpha}, value, metrics)
    # The exponent reaches its bound of 80, where the gradient is 0.
    batch = pairs(56, reference=True, spread=60.0)
    value, metrics = dpo_loss(batch, ["sigmoid"], beta=1e-35, f_divergence="alpha_divergence", alpha=3.0)
    yield batch.case("sigmoid with alpha_divergence at its bound", "dpo",
                     {"loss": "sigmoid", "beta": 1e-35, "f_divergence": "alpha_divergence", "alpha": 3.0}, value, metrics)

    for loss, ld_alpha in (("sigmoid", 0.0), ("sigmoid", 0.4), ("ipo", 0.4), ("apo_zero", 0.7)):
        batch = pairs(60, reference=True)
        batch.has_tokens = True
        value, metrics = dpo_loss(batch, [loss], beta=0.3, ld_alpha=ld_alpha)
        yield batch.case(f"{loss} with ld_alpha {ld_alpha}", "dpo", {"loss": loss, "beta": 0.3, "ld_alpha": ld_alpha}, value,
                         metrics)

    batch = pairs(70, reference=True)
    value, metrics = dpo_loss(batch, ["sigmoid", "sft"], weights=[1.0, 0.25])
    yield batch.case("sigmoid with sft_weight", "dpo", {"loss": "sigmoid", "beta": 0.1, "sft_weight": 0.25}, value, metrics)
    batch = pairs(71, reference=True)
    value, metrics = dpo_loss(batch, ["ipo", "sft"], weights=[1.0, 2.0])
    yield batch.case("ipo with sft_weight", "dpo", {"loss": "ipo", "beta": 0.1, "sft_weight": 2.0}, value, metrics)
    batch = pairs(72, reference=True)
    value, metrics = dpo_loss(batch, ["sigmoid", "bco_pair", "sft"], weights=[0.8, 0.2, 1.0])
    yield batch.case("three losses with weights", "dpo",
                     {"loss": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0], "beta": 0.1}, value, metrics)
    batch = pairs(73, reference=True)
    value, metrics = dpo_loss(batch, ["hinge", "apo_down"], beta=0.5)
    yield batch.case("two losses without weights", "dpo", {"loss": ["hinge", "apo_down"], "beta": 0.5}, value, metrics)


def smoothed_sigmoid(batch, beta, label_smoothing):
    """The conservative loss: that of CPO for log-ratios."""
    ratios = batch.policy.sums() - batch.reference.sums().detach()
    made = trainer(loss_type="sigmoid", beta=beta, label_smoothing=label_smoothing, alpha=0.0)
    return CPOTrainer.cpo_loss(made, ratios[0::2], ratios[1::2])[0].mean()


def reference_free(batch, kind, made, average):
    """(loss, metrics) of the trainers of ORPO and CPO, whose forward pass is replaced."""
    sums, lengths = batch.policy.sums(), torch.tensor(batch.lengths, dtype=torch.float64)
    values = sums / lengths if average else sums
    nll = -sums[0::2].sum() / lengths[0::2].sum()
    logits = torch.zeros(1)
    made.concatenated_forward = lambda model, rows: (values[0::2], values[1::2], logits, logits, nll)
    for name in ("cpo_loss", "odds_ratio_loss"):
        if hasattr(kind, name):
            setattr(made, name, types.MethodType(getattr(kind, name), made))
    value, metrics = kind.get_batch_loss_metrics(made, None, {})
    return value, {name: number for name, number in metrics.items() if not name.startswith("logits/")}


def orpo_cases():
    for number, beta in enumerate((0.1, 1.3)):
        batch = pairs(100 + number, offset=0.01)
        value, metrics = reference_free(batch, ORPOTrainer, trainer(beta=beta), average=True)
        yield batch.case(f"beta {beta}", "orpo", {"beta": beta}, value, metrics)
    # Probable answers, where 1 - exp(a) cancels.
    batch = pairs(102, spread=0.02, offset=0.001)
    value, metrics = reference_free(batch, ORPOTrainer, trainer(beta=0.5), average=True)
    yield batch.case("probable answers", "orpo", {"beta": 0.5}, value, metrics)


def cpo_cases():
    def make(name, seed, options, trl, spread=1.0):
        batch = pairs(seed, spread=spread)
        made = trainer(**{"alpha": 0.0, "label_smoothing": 0.0, **trl})
        value, metrics = reference_free(batch, CPOTrainer, made, average=trl["loss_type"] in ("ipo", "simpo"))
        if made.cpo_alpha == 0:
            del metrics["nll_loss"]  # TRL does not compute it
        return batch.case(name, "cpo", options, value, metrics)

    for number, loss in enumerate(("sigmoid", "hinge", "ipo")):
        for beta, sft_weight in ((0.1, 1.0), (0.6, 0.0)):
            yield make(f"{loss} beta {beta}", 110 + number, {"loss": loss, "beta": beta, "sft_weight": sft_weight},
                       dict(loss_type=loss, beta=beta, cpo_alpha=sft_weight))
    yield make("sigmoid with label smoothing", 115, {"loss": "sigmoid", "beta": 0.3, "label_smoothing": 0.2, "sft_weight": 0.5},
               dict(loss_type="sigmoid", beta=0.3, label_smoothing=0.2, cpo_alpha=0.5))
    for number, (beta, gamma, smoothing, weight) in enumerate(((2.0, 1.0, 0.0, 0.0), (2.5, 1.375, 0.0, 0.0), (2.0, 0.5, 0.1, 0.7))):
        options = {"loss": "simpo", "beta": beta, "gamma": gamma, "sft_weight": weight}
        if smoothing:
            options["label_smoothing"] = smoothing
        yield make(f"simpo beta {beta} gamma {gamma}", 120 + number, options,
                   dict(loss_type="simpo", beta=beta, simpo_gamma=gamma, label_smoothing=smoothing, cpo_alpha=weight))
    for number, alpha in enumerate((0.25, -0.5, 1.5)):
        yield make(f"alphapo alpha {alpha}", 125 + number,
                   {"loss": "alphapo", "beta": 2.5, "gamma": 0.3, "alpha": alpha, "sft_weight": 0.0},
                   dict(loss_type="simpo", beta=2.5, simpo_gamma=0.3, alpha=alpha, cpo_alpha=0.0))


# --- rewards ------------------------------------------------------------------------------------------------------


def reward_cases():
    def make(name, seed, centring=None, margin=False, spread=1.5):
        source = random.Random(seed)
        scores = torch.tensor([[source.gauss(0.3, spread)] for _ in range(10)], dtype=torch.float64, requires_grad=True)
        margins = [source.uniform(0.0, 2.0) if margin else 0.0 for _ in range(5)]
        made = trainer(args=types.SimpleNamespace(center_rewards_coefficient=centring))
        order = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
        inputs = {"attention_mask": torch.ones(10, 3)}
        if margin:
            inputs["margin"] = torch.tensor(margins)
        loss = RewardTrainer.compute_loss(made, lambda **_: types.SimpleNamespace(logits=scores[order]), inputs)
        loss.backward()
        metrics = {name: values[-1] for name, values in sorted(made._metrics["train"].items()) if name != "num_tokens"}
        sequences = {"role": [CHOSEN, REJECTED] * 5, "unit": [i // 2 for i in range(10)],
                     "margin": [margins[i // 2] for i in range(10)] if margin else [], "score": scores.tolist()}
        return entry(name, "reward", {} if centring is None else {"center_coefficient": centring}, sequences, loss, metrics,
                     grad_score=scores.grad.tolist())

    yield make("plain", 200)
    yield make("margins", 201, margin=True)
    yield make("centring", 202, centring=0.01)
    yield make("margins and centring", 203, centring=0.3, margin=True)
    yield make("large scores", 204, centring=0.05, margin=True, spread=60.0)


# --- labelled answers ---------------------------------------------------------------------------------------------


def labelled(seed, labels, lengths, spread=1.0):
    """Each answer is followed by its prompt with the answer before it, the last for the first; so does TRL."""
    count = len(labels)
    flat = [length for i in range(count) for length in (lengths[i], lengths[i - 1])]
    batch = Batch([ANSWER, MISMATCH] * count, [i // 2 for i in range(2 * count)], flat, seed, reference=True, spread=spread)
    batch.targets = [float(labels[i // 2]) for i in range(2 * count)]
    return batch


def kto_cases():
    def make(name, seed, options, labels=(1, 0, 1, 1, 0), spread=1.0, lower_reference=0.0):
        batch = labelled(seed, labels, [4, 9, 2, 6, 5][:len(labels)], spread)
        if lower_reference:  # of mismatches, by this for each token
            begins = [sum(batch.lengths[:i]) for i in range(len(batch.lengths))]
            with torch.no_grad():
                for begin, length, role in zip(begins, batch.lengths, batch.roles):
                    if role == MISMATCH:
                        batch.reference.leaf[begin:begin + length] -= lower_reference
        with_kl = options["loss"] == "kto"
        made = trainer(
            calculate_KL=with_kl, precompute_ref_logps=False, args=types.SimpleNamespace(gradient_checkpointing_kwargs=None),
            loss_type=options["loss"], beta=options["beta"], desirable_weight=options.get("desirable_weight", 1.0),
            undesirable_weight=options.get("undesirable_weight", 1.0))
        answers = [i for i, role in enumerate(batch.roles) if role == ANSWER]
        mismatches = [i for i, role in enumerate(batch.roles) if role == MISMATCH]
        models = {}
        for tokens in (batch.policy, batch.reference):
            models[tokens] = TwoAnswers(tokens.outputs(answers), tokens.outputs(mismatches))
        made.ref_model = models[batch.reference]
        made._compute_kl_logps = lambda model, rows: KTOTrainer._compute_kl_logps(made, model, rows)
        inputs = {"label": torch.tensor(labels).bool()}
        for prefix, order in (("", answers), ("KL_", mismatches)):
            # The first id tells the models which rows they get.
            inputs[prefix + "input_ids"] = torch.full_like(batch.policy.completion_mask[order], len(prefix))
            inputs[prefix + "attention_mask"] = batch.policy.attention_mask[order]
            inputs[prefix + "completion_mask"] = batch.policy.completion_mask[order]
        value = KTOTrainer._compute_loss(made, models[batch.policy], inputs, False)
        metrics = logged(made, ["rewards/", "logps/"] + ["kl"] * with_kl)
        made_case = batch.case(name, "kto", options, value, metrics)
        return made_case if with_kl else without_mismatches(made_case)

    yield make("kto", 300, {"loss": "kto", "beta": 0.1})
    yield make("kto with a mean below 0", 307, {"loss": "kto", "beta": 0.3}, lower_reference=-0.5)
    yield make("kto with a mean above 0", 301, {"loss": "kto", "beta": 0.4}, lower_reference=0.75)
    yield make("kto with weights", 302, {"loss": "kto", "beta": 0.3, "desirable_weight": 1.25, "undesirable_weight": 0.8},
               lower_reference=0.25)
    yield make("kto with one class", 303, {"loss": "kto", "beta": 0.2}, labels=(1, 1, 1, 1))
    yield make("kto of improbable answers", 304, {"loss": "kto", "beta": 0.5}, spread=30.0, lower_reference=3.0)
    yield make("apo_zero_unpaired", 305, {"loss": "apo_zero_unpaired", "beta": 0.1})
    yield make("apo_zero_unpaired with weights", 306,
               {"loss": "apo_zero_unpaired", "beta": 0.5, "desirable_weight": 0.5, "undesirable_weight": 2.0})


class TwoAnswers(torch.nn.Module):
    """A model for two batches, told apart by the first id."""

    is_gradient_checkpointing = False

    def __init__(self, answers, mismatches):
        super().__init__()
        self.both = [answers, mismatches]

    def forward(self, input_ids, **options):
        return self.both[int(input_ids[0, 0] != 0)](input_ids)


def without_mismatches(case):
    """Without the sequences that this loss does not need."""
    keep = [i for i, role in enumerate(case["sequences"]["role"]) if role == ANSWER]
    for name, values in case["sequences"].items():
        case["sequences"][name] = [values[i] for i in keep]
    case["grad_logp"] = [case["grad_logp"][i] for i in keep]
    return case


# --- policy gradients ---------------------------------------------------------------------------------------------


def policy_cases():
    def make(name, seed, options, rewards=((1.0, 0.0, 0.0), (0.25, 2.0, -1.0)), lengths=(4, 7, 3, 6, 1, 5)):
        groups, size = len(rewards), len(rewards[0])
        batch = Batch([ANSWER] * len(lengths), [i // size for i in range(len(lengths))], list(lengths), seed, reference=True,
                      old=True)
        batch.has_tokens = True
        batch.targets = [reward for group in rewards for reward in group]
        width, order = max(lengths), range(len(lengths))
        rows = {"policy": batch.policy.rows(order, width), "reference": batch.reference.rows(order, width).detach(),
                "old": batch.old.rows(order, width).detach()}
        nothing = torch.zeros(len(lengths), width)
        made = trainer(
            args=types.SimpleNamespace(
                per_device_train_batch_size=len(lengths), steps_per_generation=1, gradient_accumulation_steps=1, delta=None,
                gradient_checkpointing_kwargs=None, use_bias_correction_kl=False,
                sapo_temperature_pos=options.get("sapo_temperature_pos", 1.0),
                sapo_temperature_neg=options.get("sapo_temperature_neg", 1.05)),
            # Without alignment of generation and training, TRL computes old log-probabilities with the model.
            num_iterations=2, environment_factories=None, environments=None, tools=[], pad_to_multiple_of=None,
            _tokenizer=types.SimpleNamespace(pad_token_id=0), mask_truncated_completions=False, use_vllm=False,
            vllm_importance_sampling_correction=False, beta=options.get("kl_beta", 0.0), num_generations=size,
            multi_objective_aggregation="sum_then_normalize", reward_weights=torch.ones(1), reward_funcs=["reward"],
            reward_func_names=["reward"], scale_rewards=options.get("scale_rewards", "group"),
            _logs=collections.defaultdict(lambda: collections.defaultdict(list)), _pending_extra_logs={}, _pending_metrics={},
            log_multimodal=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level=options.get("ratio", "token"),
            loss_type=options["loss"], epsilon_low=options.get("clip_low", 0.2),
            # TRL's bound of CISPO is that of the ratio itself.
            epsilon_high=options.get("clip_high", 0.2) + (1 if options["loss"] == "cispo" else 0),
            current_gradient_accumulation_steps=1, max_completion_length=options.get("max_completion_length"), _entropy_bonus_enabled=False)
        for key in ("prompt", "completion", "advantages"):
            made._logs[key] = []
        old, made.ref_model = made.model, Model()
        made._get_per_token_logps_and_entropies = lambda model, *_, **__: (
            rows["old" if model is old else "reference" if model is made.ref_model else "policy"], nothing, None)
        made._calculate_rewards = lambda *_: torch.tensor(batch.targets)[:, None]
        made._generate = lambda prompts: ([[1] * PROMPT for _ in lengths], [[1] * n for n in lengths], None, [""] * len(lengths),
                                          None, {}, None, None)
        inputs = GRPOTrainer._generate_and_score_completions(made, [{"prompt": ""} for _ in lengths])
        assert ("old_per_token_logps" in inputs) and ("ref_per_token_logps" in inputs) == ("kl_beta" in options)
        value = GRPOTrainer._compute_loss(made, Model(), inputs)
        metrics = logged(made, ["kl", "clip_ratio/", "cispo_clip_ratio", "reward", "reward_std", "frac_reward_zero_std"])
        if "kl_beta" not in options:
            batch.reference = None
        return batch.case(name, "policy", options, value, metrics)

    for number, loss in enumerate(("grpo", "bnpo", "dapo", "dr_grpo")):
        extra = {"max_completion_length": 16} if loss == "dr_grpo" else {}
        yield make(loss, 400 + number, {"loss": loss, **extra})
        yield make(f"{loss} with a reference and two bounds", 410 + number,
                   {"loss": loss, "clip_low": 0.1, "clip_high": 0.28, "kl_beta": 0.04, **extra})
        yield make(f"{loss} without scaling of rewards", 420 + number, {"loss": loss, "scale_rewards": "none", **extra})
    yield make("grpo scaled by the batch", 430, {"loss": "grpo", "scale_rewards": "batch"})
    for number, loss in enumerate(("grpo", "dapo", "dr_grpo")):
        options = {"loss": loss, "ratio": "sequence", "clip_low": 0.05, "clip_high": 0.05}
        if loss == "dr_grpo":
            options["max_completion_length"] = 16
        if loss != "dapo":
            options["kl_beta"] = 0.1
        yield make(f"{loss} with ratios of sequences", 440 + number, options)
    yield make("cispo", 450, {"loss": "cispo"})
    yield make("cispo with a reference and a bound", 451, {"loss": "cispo", "clip_high": 0.05, "kl_beta": 0.1})
    yield make("sapo", 452, {"loss": "sapo"})
    yield make("sapo with a reference and two temperatures", 453,
               {"loss": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0, "kl_beta": 0.1})
    yield make("sapo with ratios of sequences", 454, {"loss": "sapo", "ratio": "sequence"})
    yield make("luspo", 455, {"loss": "luspo", "ratio": "sequence", "clip_low": 0.05, "clip_high": 0.05})
    yield make("luspo with a reference", 456, {"loss": "luspo", "ratio": "sequence", "kl_beta": 0.1})
    yield make("dapo with a group of equal rewards", 431, {"loss": "dapo", "kl_beta": 0.1}, rewards=((1.0, 1.0, 1.0), (0.0, 1.0, 0.0)))


METHODS = {"dpo": dpo_cases, "kto": kto_cases, "orpo": orpo_cases, "cpo": cpo_cases, "reward": reward_cases, "policy": policy_cases}


def rounded(value):
    """To 13 digits."""
    if isinstance(value, float):
        return float(f"{value:.13g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def cases(method):
    with in_float64():
        return [rounded(case) for case in METHODS[method]()]
