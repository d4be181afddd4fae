"""Writes tests/golden/objective/distill.json: losses and gradients of distillation by PyTorch's autograd in float64.

    tests/interop/make_distill_golden.py [FILE]

The formulas are those of the papers, with sums over whole distributions: of the vocabulary ("vocabulary"), of the
teacher's tokens ("top_k"), or of these and one for all others ("rest")."""

import json
import random
import sys
from pathlib import Path

import torch

VOCAB, TOP_K = 7, 3
LENGTHS = [3, 1, 4]


def kl(a, b):
    """The divergence of b from a; terms without probability in a are 0."""
    return torch.where(a > 0, a * (torch.log(a.clamp_min(1e-300)) - torch.log(b.clamp_min(1e-300))), 0.0).sum()


def divergence(q, p, options):
    kind, beta = options.get("divergence", "forward_kl"), options.get("beta", 0.5)
    if kind == "forward_kl":
        return kl(q, p)
    if kind == "reverse_kl":
        return kl(p, q)
    mixture = beta * q + (1 - beta) * p
    return beta * kl(q, mixture) + (1 - beta) * kl(p, mixture)


def probabilities(teacher, model, options):
    """Of one position, from the log-probabilities of the teacher's tokens at the temperature of the data, and those of
    the model at its temperature."""
    temperature = options.get("temperature", 1.0)
    support = options.get("support", "vocabulary")
    q, p = torch.softmax(teacher * options.get("teacher_temperature", 1.0) / temperature, 0), model.exp()
    if support == "top_k":
        return q, p / p.sum()
    if support == "vocabulary":
        return torch.cat([q, q.new_zeros(1)]), torch.cat([p, 1 - p.sum(0, keepdim=True)])
    q = teacher.exp()
    return torch.cat([q, 1 - q.sum(0, keepdim=True)]), torch.cat([p, 1 - p.sum(0, keepdim=True)])


def case(name, options, seed):
    torch.manual_seed(seed)
    random.seed(seed)
    num_tokens = sum(LENGTHS)
    temperature = options.get("temperature", 1.0)
    ids = [random.sample(range(VOCAB), TOP_K if t % 3 else TOP_K - 1) for t in range(num_tokens)]
    ids[2] = []
    teacher = torch.log_softmax(torch.randn(num_tokens, VOCAB, dtype=torch.float64) * 2, -1)
    logits = torch.randn(num_tokens, VOCAB, dtype=torch.float64) * 2
    labels = [random.randrange(VOCAB) for _ in range(num_tokens)]
    top = torch.log_softmax(logits / temperature, -1)
    model = [top[t, ids[t]].clone().requires_grad_(True) for t in range(num_tokens)]
    given = [teacher[t, ids[t]] for t in range(num_tokens)]
    logps = torch.log_softmax(logits, -1)[range(num_tokens), labels].clone().requires_grad_(True)
    used = [t for t in range(num_tokens) if ids[t]]
    parts = [divergence(*probabilities(given[t], model[t], options), options) for t in used]
    loss = options.get("kd_weight", 1.0) * temperature**2 * sum(parts) / num_tokens
    loss = loss - options.get("ce_weight", 0.0) * logps.sum() / num_tokens
    loss.backward()
    first = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
    padded = lambda values: values.tolist() + [0.0] * (TOP_K - len(values))
    gradient = logps.grad if logps.grad is not None else torch.zeros(num_tokens)
    agree = [float(given[t].argmax() == model[t].argmax()) for t in used]
    return {
        "name": name,
        "plugin": "distill",
        "options": {"top_k": TOP_K, **options},
        "sequences": {
            "role": [0] * len(LENGTHS),
            "unit": list(range(len(LENGTHS))),
            "length": LENGTHS,
            "logp": [logps[b:b + n].sum().item() for b, n in zip(first, LENGTHS)],
            "token_logp": logps.tolist(),
            "teacher_count": [len(i) for i in ids],
            "teacher_logp": [padded(values) for values in given],
            "top_logp": [padded(values.detach()) for values in model],
        },
        "loss": loss.item(),
        "grad_token_logp": gradient.tolist(),
        "grad_top_logp": [padded(model[t].grad if ids[t] else model[t].detach()) for t in range(num_tokens)],
        "metrics": {
            "divergence": (sum(parts) / len(used)).item(),
            "top1_agreement": sum(agree) / len(used),
            "teacher_mass": sum(given[t].exp().sum().item() for t in used) / len(used),
            "student_mass": sum(model[t].exp().sum().item() for t in used) / len(used),
            "nll_loss": -logps.mean().item(),
        },
    }


CASES = {
    "forward": {},
    "forward, both losses": {"temperature": 2.0, "kd_weight": 0.7, "ce_weight": 0.3},
    "forward of a teacher at another temperature": {"temperature": 1.5, "teacher_temperature": 0.8},
    "forward over the top tokens": {"support": "top_k", "temperature": 0.9},
    "forward with the rest": {"support": "rest"},
    "reverse over the top tokens": {"divergence": "reverse_kl", "support": "top_k", "ce_weight": 1.5},
    "reverse with the rest": {"divergence": "reverse_kl", "support": "rest"},
    "jsd": {"divergence": "jsd", "temperature": 0.9},
    "jsd over the top tokens": {"divergence": "jsd", "beta": 0.1, "support": "top_k", "temperature": 3.0},
    "jsd with the rest": {"divergence": "jsd", "beta": 0.8, "support": "rest"},
}


def main():
    path = Path(sys.argv[1] if len(sys.argv) > 1
                else Path(__file__).resolve().parents[1] / "golden/objective/distill.json")
    made = [case(name, options, seed) for seed, (name, options) in enumerate(CASES.items(), 1)]
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in made)
    path.write_text('{\n"generator": "tests/interop/make_distill_golden.py with torch '
                    f'{torch.__version__.split("+")[0]}",\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
