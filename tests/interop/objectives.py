"""Training with preferences and rewards, against TRL: the numbers of tests/golden/objective are those of TRL, chassis makes
the same tokens of the same pairs, and ten steps of a tiny model give TRL's losses, metrics and weights. TRL runs in
float64 and, to show its own rounding, in float32.

--only takes a name of trl_runs.RUNS, or "golden" for the stored numbers."""

import json
import pathlib

from safetensors.torch import load_file

import trl_losses
import trl_runs
from suite import Suite, error, metrics

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "objective"
LR = 2e-4
# Of TRL's metrics those that chassis leaves out: they need the distribution over the vocabulary, or are no sums.
OTHERS = {"entropy", "mean_token_accuracy", "num_tokens", "epoch", "min_reward", "max_reward", "loss", "grad_norm"}


def largest_difference(one, other):
    """Between two files' values; the difference of numbers is relative above 1. Infinite if the structure differs."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((largest_difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((largest_difference(a, b) for a, b in zip(one, other)), default=0.0)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) / max(1.0, abs(other))
    return 0.0 if one == other else float("inf")


def compare_golden(suite):
    for method in trl_losses.METHODS:
        stored = json.loads((GOLDEN / f"{method}.json").read_text())
        suite.check(f"golden {method}: notes", stored["deviations"] == trl_losses.DEVIATIONS[method])
        cases = json.loads(json.dumps(trl_losses.cases(method)))
        suite.at_most(f"golden {method}: {len(cases)} cases are those of TRL", largest_difference(stored["cases"], cases), 1e-10)


def documents(preview):
    """(ids, number of masked tokens at the front, whether all others are trained) of each sequence that
    `chassis data preview --json` prints."""
    result = []
    for line in preview.decode().splitlines():
        pieces = json.loads(line)["pieces"]
        ids = [id for piece in pieces for id in piece["ids"]]
        trained = [piece["state"] == "trained" for piece in pieces for _ in piece["ids"]]
        prompt = trained.index(True) if True in trained else len(trained)
        result.append((ids, prompt, all(trained[prompt:])))
    return result


def relative(ours, theirs):
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, theirs, strict=True))


def compare_run(suite, name, spec, language, reward, tokenizer):
    model = suite.folder / ("reward" if spec.task == "reward" else "model")
    data = suite.folder / f"{spec.rows}.jsonl"
    trl_runs.write_rows(data, trl_runs.our_rows(spec.rows))

    def config(suffix="", **train):
        return suite.config(
            name + suffix, model, run={"max_steps": trl_runs.STEPS},
            data={"packing": "none", "shuffle": False, "cache_dir": str(suite.folder / "cache")},
            data__train=[{"path": str(data), "format": "labelled" if spec.rows == "labelled" else "preference"}],
            tokenizer={"plugin": "hf"}, objective=spec.objective,
            train={"task": spec.task, "seq_len": trl_runs.SEQ_LEN, "micro_batch_size": spec.batch, "global_batch_size": spec.batch,
                   **train},
            optimizer={"plugin": "adamw", "lr": LR, "weight_decay": 0.0, "max_grad_norm": 1.0, "eps": 1e-4, "betas": [0.9, 0.95]})

    single = trl_runs.train(name, suite.folder, language, reward, tokenizer, LR)
    theirs = trl_runs.train_in_float64(name, suite.folder, language, reward, tokenizer, LR)
    ours = documents(suite.run("data", "preview", config(), "--json", "--rows", len(trl_runs.PAIRS)))
    expected = theirs["sequences"]
    suite.check(f"{name} ids of {len(expected)} sequences", [ids for ids, _, _ in ours] == [ids for ids, _ in expected])
    if spec.task != "reward":
        suite.check(f"{name} trained tokens are the answers",
                    all(all_trained and begin == prompt for (_, begin, all_trained), (_, prompt) in zip(ours, expected)))

    steps, rounded = theirs["steps"], single["steps"]
    losses = [step["loss"] for step in steps]
    before = (reward if spec.task == "reward" else language).state_dict()
    exact, trained = theirs["model"].state_dict(), single["model"].state_dict()
    # One micro-batch, and as many as there are units.
    for suffix, train in (("", {}), ("-accumulated", {"micro_batch_size": 1})):
        suite.run("train", config(suffix, **train))
        run = suite.folder / (name + suffix + "-run")
        lines = metrics(run)
        suite.check(f"{name}{suffix} steps", len(lines) == len(steps) == trl_runs.STEPS, f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
        suite.at_most(f"{name}{suffix} losses", relative([line["loss"] for line in lines], losses), 2e-6,
                      f"TRL in float32: {relative([step['loss'] for step in rounded], losses):.1e}")
        suite.at_most(f"{name}{suffix} gradient norms", relative([line["grad_norm"] for line in lines],
                                                                 [step["grad_norm"] for step in steps]), 1e-5)
        wanted = [key for key in steps[0] if key not in OTHERS and not key.startswith("logits/")
                  and not (key == "nll_loss" and key not in lines[0])]
        missing = [key for key in wanted if key not in lines[0]]
        suite.check(f"{name}{suffix} has TRL's metrics", not missing, " ".join(missing or wanted))
        for key in wanted:
            if key not in missing:
                suite.at_most(f"{name}{suffix} {key}", relative([line[key] for line in lines], [step[key] for step in steps]), 1e-5,
                              f"TRL in float32: {relative([step[key] for step in rounded], [step[key] for step in steps]):.1e}")
        final = {key: value for file in (run / "final").glob("*.safetensors") for key, value in load_file(file).items()}
        suite.check(f"{name}{suffix} names of weights", final.keys() == exact.keys() - {"lm_head.weight"},
                    str(sorted(final.keys() ^ exact.keys())))
        both = final.keys() & exact.keys()
        suite.at_most(f"{name}{suffix} weights", max(error(final[key], exact[key]) for key in both), 2e-6,
                      f"TRL in float32: {max(error(trained[key], exact[key]) for key in both):.1e}")
    moved = min(((exact[key] - before[key].double()).norm() / before[key].double().norm()).item() for key in exact)
    suite.check(f"{name} every tensor moved", moved > 1e-4, f"{moved:.1e}")


def main():
    suite = Suite(__doc__)
    if suite.args.only in "golden":
        compare_golden(suite)
    chosen = [name for name in trl_runs.RUNS if suite.args.only in name]
    if chosen:
        tokenizer = trl_runs.make_tokenizer(suite.folder / "tokenizer")
        language, reward = trl_runs.make_models(suite.folder, tokenizer)
        for name in chosen:
            compare_run(suite, name, trl_runs.RUNS[name], language, reward, tokenizer)
    suite.close()


if __name__ == "__main__":
    main()
