"""What tools/bench --preference and --moe share: runs of chassis and of a peer, beside each other.

tokens/s are from the ends of steps behind the first. Memory is the largest resident set while steps run, counted anew
from the end of the first one, since loading may need more; "above" is without parameters, gradients, optimizer states
and a reference, which the method needs. A peer prints `FACTS {…}` once, with the bytes of these and the tokens of a
step.
"""
import dataclasses
import json
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


class Failure(Exception):
    pass


def peak_of(pid: int) -> int:
    """The largest resident set of a process, in bytes; 0 if it has ended."""
    try:
        found = re.search(r"VmHWM:\s*([0-9]+)", Path(f"/proc/{pid}/status").read_text())
    except (OSError, ProcessLookupError):
        return 0
    return int(found.group(1)) << 10 if found else 0


def forget_peak(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:  # not permitted: the peak is that of the whole process
        pass


def run(command, environment: dict) -> dict:
    """Seconds of a step, and peaks: `peak` while steps run, `whole` of the process."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ends, tail, facts, peak, whole = [], [], {}, 0, 0
    for line in process.stdout:
        tail = (tail + [line])[-20:]
        if line.startswith("FACTS "):
            facts = json.loads(line[6:])
        if not re.match(r"(?:STEP|step) +[0-9]+", line):
            continue
        ends.append(time.time())
        if len(ends) == 1:
            whole = peak_of(process.pid)
            forget_peak(process.pid)
        else:
            peak = max(peak, peak_of(process.pid))
    if process.wait() or len(ends) < 3 or peak == 0:
        raise Failure(f"{command[0]} failed with {process.returncode}:\n{''.join(tail)}")
    return dict(seconds=(ends[-1] - ends[0]) / (len(ends) - 1), peak=peak, whole=max(whole, peak), **facts)


def run_of_chassis(command, environment: dict, run_directory: Path) -> dict:
    """As run(), with the facts of the last step of metrics.jsonl, which counts a reference as parameters."""
    try:
        measured = run(command, environment)
    except Failure as failure:
        raise SystemExit(f"tools/bench: {failure}")
    line = json.loads((run_directory / "metrics.jsonl").read_text().splitlines()[-1])
    return measured | dict(tokens=line["tokens"], answers=line["trained_tokens"], reference=0,
                           **{name: line[f"memory/{name}_bytes"] for name in ("parameters", "gradients", "optimizer")})


def rate(r: dict) -> float:
    return r["tokens"] / r["seconds"]


def above(r: dict) -> float:
    """Bytes of the peak without those that the method needs."""
    return r["peak"] - sum(r[name] for name in ("parameters", "gradients", "optimizer", "reference"))


@dataclasses.dataclass
class Case:
    """A row of the table."""
    name: str
    peer: str  # its name
    kinds: tuple  # of the peer; the first one chooses its threads and wait policy
    tokens: int  # of a step
    run_ours: Callable[[], dict]
    run_peer: Callable[[tuple, int], dict]  # of (kind, threads, wait policy) and a number of steps
    light: Callable[[dict, dict], float]  # percent of light of a run of chassis, by the limits of the machine
    counts: tuple = ("tokens",)  # which facts must be equal


def best_peer(args, case: Case, policies) -> tuple | None:
    """(kind, threads, wait policy): first the policy and the number of threads are chosen, then the kind. A kind that
    fails is left out."""
    rates = {}

    def attempt(kind: str, threads: int, policy: str) -> None:
        try:
            rates[kind, threads, policy] = 1 / case.run_peer((kind, threads, policy), min(args.steps, 4))["seconds"]
            print(f"{case.name} {case.peer} {kind}, {threads} threads, waits by {policy}: "
                  f"{case.tokens * rates[kind, threads, policy]:.0f} tok/s", flush=True)
        except Failure as failure:
            print(f"{failure}\n{case.name} {case.peer} {kind} is left out", flush=True)

    for policy in policies:
        attempt(case.kinds[0], args.threads, policy)
    if not rates:
        return None
    policy = max(rates, key=rates.get)[2]
    if args.threads > 1:
        attempt(case.kinds[0], args.threads // 2, policy)
    threads, policy = max(rates, key=rates.get)[1:]
    for kind in case.kinds[1:]:
        attempt(kind, threads, policy)
    return max(rates, key=rates.get)


def measure(args, case: Case, policies, limits: dict) -> dict:
    """Rounds of chassis and of the best peer, in turn: a row for print_table()."""
    chosen = best_peer(args, case, policies)
    rounds = []
    for number in range(args.rounds):
        rounds.append((case.run_ours(), case.run_peer(chosen, args.steps) if chosen else None))
        print(f"{case.name} round {number + 1} " + ", ".join(
            f"{name} {rate(r):.0f} tok/s, {above(r) / 2**20:.0f} of {r['peak'] / 2**20:.0f} MiB"
            for name, r in zip(("chassis", case.peer), rounds[-1]) if r), flush=True)
    for count in case.counts if chosen else ():
        ours, theirs = (r[count] for r in rounds[0])
        if ours != theirs:
            raise SystemExit(f"tools/bench: a step of chassis has {ours} {count}, one of {case.peer} {theirs}")
    middle = lambda of: statistics.median(of(a) for a, _ in rounds)
    theirs = lambda of: statistics.median(of(b) for _, b in rounds) if chosen else float("nan")
    ratio = lambda of: statistics.median(of(a) / of(b) for a, b in rounds) if chosen else float("nan")
    peak, whole = (lambda r: r["peak"]), (lambda r: r["whole"])
    return dict(name=case.name, ours=middle(rate), theirs=theirs(rate), ratio=ratio(rate),
                light=middle(lambda r: case.light(r, limits)), product=limits["product"],
                settings=f"{chosen[0]}, {chosen[1]} threads, {chosen[2]}" if chosen else "none",
                above=middle(above), above_theirs=theirs(above), above_ratio=ratio(above), peak=middle(peak),
                peak_theirs=theirs(peak), peak_ratio=ratio(peak), whole_ratio=ratio(whole))


def print_table(title: str, peer: str, rows: list) -> None:
    print(f"\n{title}\n")
    print(f"| | chassis, tok/s | {peer}, tok/s | ratio | percent of light | MiB above: chassis | {peer} | ratio | "
          f"peak of steps, MiB: chassis | {peer} | ratio | peak with loading, ratio |\n{'|---' * 12}|")
    mib = lambda value: f"{value / 2**20:.0f}"
    for row in rows:
        print(f"| {row['name']} | {row['ours']:.0f} | {row['theirs']:.0f} ({row['settings']}) | {row['ratio']:.2f} x | "
              f"{row['light']:.0f} % of {row['product']:.0f} GFLOP/s | {mib(row['above'])} | "
              f"{mib(row['above_theirs'])} | {row['above_ratio']:.2f} x | {mib(row['peak'])} | "
              f"{mib(row['peak_theirs'])} | {row['peak_ratio']:.2f} x | {row['whole_ratio']:.2f} x |")
