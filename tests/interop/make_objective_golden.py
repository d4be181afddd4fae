"""Writes tests/golden/objective, so that the default tests can compare objectives with TRL without Python: losses and
gradients of each method, a tiny model, and ten training steps of it. Run it by hand: make_objective_golden.py FOLDER."""

import json
import pathlib
import shutil
import sys

import torch
import transformers
import trl

import trl_losses
import trl_runs

GENERATOR = f"tests/interop/make_objective_golden.py with TRL {trl.__version__}, transformers {transformers.__version__}, " \
            f"torch {torch.__version__.split('+')[0]}"
# Small, since the files are part of the source tree.
MODEL = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
LR = 1e-3


def text_of(file):
    """JSON with a line for each key, and for each item of the lists of cases and sequences and of long objects."""
    short = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    lines = []
    for key, value in file.items():
        if key in ("cases", "sequences"):
            value = "[\n" + ",\n".join(short(item) for item in value) + "\n]"
        elif key in ("metrics", "weights"):
            value = "{\n" + ",\n".join(f" {short(name)}: {short(item)}" for name, item in value.items()) + "\n}"
        else:
            value = json.dumps(value, ensure_ascii=False)
        lines.append(f"{short(key)}: {value}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def losses(method):
    """The text of a file."""
    return text_of({"generator": GENERATOR, "deviations": trl_losses.DEVIATIONS[method], "cases": trl_losses.cases(method)})


def run(name, folder, language, reward, tokenizer):
    """(text of a file, sequences of the rows)"""
    exact = trl_runs.train_in_float64(name, folder, language, reward, tokenizer, LR)
    single = trl_runs.train(name, folder, language, reward, tokenizer, LR)
    before = (reward if trl_runs.RUNS[name].task == "reward" else language).state_dict()
    after = exact["model"].state_dict()
    short = lambda value: float(f"{value:.9g}")
    losses_of = lambda steps: torch.tensor([step["loss"] for step in steps], dtype=torch.float64)
    spec = trl_runs.RUNS[name]
    file = {
        "generator": GENERATOR, "model": "reward" if spec.task == "reward" else "model", "task": spec.task,
        "rows": f"{spec.rows}.jsonl", "objective": spec.objective,
        "steps": trl_runs.STEPS, "pairs_or_answers_per_step": spec.batch,
        "optimizer": {"plugin": "adamw", "lr": LR, "betas": [0.9, 0.95], "eps": 1e-4, "weight_decay": 0.0, "max_grad_norm": 1.0},
        # Numbers are of TRL in float64. This is how far TRL in float32 is from them.
        "float32_error": {
            "loss": short((losses_of(single["steps"]) - losses_of(exact["steps"])).abs().max().item()),
            "weights": short(max((value.double() - after[key]).abs().max().item()
                                 for key, value in single["model"].state_dict().items()))},
        "metrics": {key: [short(step[key]) for step in exact["steps"]] for key in exact["steps"][0] if compared(key)},
        "weights": {key: {"norm": short(value.norm().item()), "moved": short((value - before[key].double()).norm().item())}
                    for key, value in after.items() if key != "lm_head.weight"},
    }
    return text_of(file), exact["sequences"]


def compared(metric):
    """Others need the distribution over the vocabulary, or count what chassis counts in another way."""
    return not metric.startswith("logits/") and metric not in ("entropy", "mean_token_accuracy", "num_tokens", "epoch")


def write_model(folder):
    tokenizer = trl_runs.make_tokenizer(folder / "model")
    language, reward = trl_runs.make_models(folder, tokenizer, **MODEL)
    # The reward model has the language model's weights and a head in a file of its own.
    for path in list((folder / "reward").iterdir()):
        if path.name != "config.json":
            path.unlink()
    trl_runs.save_head(reward, folder / "reward" / "model-00002-of-00002.safetensors")
    names = {key: f"model-0000{1 + (key == 'score.weight')}-of-00002.safetensors" for key in reward.state_dict()}
    (folder / "reward" / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}, indent=1) + "\n")
    (folder / "model" / "generation_config.json").unlink()
    return language, reward, tokenizer


def main(folder):
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir(parents=True)
    for method in trl_losses.METHODS:
        (folder / f"{method}.json").write_text(losses(method))
    language, reward, tokenizer = write_model(runs)
    for kind in sorted({spec.rows for spec in trl_runs.RUNS.values()}):
        trl_runs.write_rows(runs / f"{kind}.jsonl", trl_runs.our_rows(kind))
    for name, spec in trl_runs.RUNS.items():
        text, sequences = run(name, runs, language, reward, tokenizer)
        (runs / f"{name}.json").write_text(text)
        # Token ids of each prompt with its answer, and the number of tokens of the prompt.
        ids = runs / f"{spec.rows}_ids.json"
        text = text_of({"generator": GENERATOR, "sequences": [{"ids": ids, "prompt": prompt} for ids, prompt in sequences]})
        assert not ids.exists() or ids.read_text() == text, "TRL's trainers agree on tokens"
        if spec.rows == "margins":
            pairs = json.loads((runs / "pairs_ids.json").read_text())["sequences"]
            assert [pair["ids"] for pair in pairs] == [ids for ids, _ in sequences], "the pairs have the same tokens"
        else:
            ids.write_text(text)
    for leftover in runs.glob("*-trl"):
        shutil.rmtree(leftover)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
