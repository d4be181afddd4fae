"""The report of tools/gpu-check: stages with their rows, written to a file after every row, and the commands that
stages run. A command has a deadline; at the deadline its whole process group is killed."""
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque, namedtuple
from pathlib import Path

SCHEMA = "chassis.gpu_check/1"
STATES = ("passed", "failed", "measured", "missing", "cut off")
Done = namedtuple("Done", "code text seconds cut_off")  # text: the last lines of both outputs
MAX_LINES = 20000


class Missing(Exception):
    """A tool, file or library that this machine does not have."""


def run(command, seconds: float, environment=None, each_line=None) -> Done:
    """Runs a command for at most these seconds. `each_line` gets every line of the output; True ends the command."""
    if seconds <= 0:
        return Done(None, "no time was left", 0.0, True)
    begin = time.monotonic()
    try:
        process = subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace",
                                   start_new_session=True)
    except OSError as error:
        raise Missing(f"{command[0]}: {error.strerror}") from error

    def kill():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    expired = threading.Event()
    timer = threading.Timer(seconds, lambda: (expired.set(), kill()))
    timer.start()
    lines, is_enough = deque(maxlen=MAX_LINES), False
    for line in process.stdout:
        lines.append(line)
        if not is_enough and each_line and each_line(line):
            is_enough = True
            kill()
    process.wait()
    timer.cancel()
    kill()  # what it started
    code = 0 if is_enough else process.returncode
    return Done(code, "".join(lines), time.monotonic() - begin, expired.is_set())


def document_in(text: str) -> dict:
    """The JSON document that a command has printed, with messages before or after it. Throws ValueError."""
    return json.JSONDecoder().raw_decode(text[text.index("{"):])[0]


def last_line(text: str) -> str:
    """The last line that says something, for a row's reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


class Report:
    """What was found, in the order in which it was found."""

    def __init__(self, path, facts: dict):
        self.path = Path(path) if path else None
        self.json = {"schema": SCHEMA, **facts, "stages": {}}
        self.save()

    def save(self) -> None:
        if self.path is None:
            return
        draft = self.path.with_name(self.path.name + ".draft")
        draft.write_text(json.dumps(self.json, indent=1) + "\n")
        os.replace(draft, self.path)

    def stage(self, name: str, seconds: float, rows) -> None:
        """Runs a stage: `rows` is called with the seconds that it may take, and yields (name, state, figures). An
        exception ends the stage with a row, and never the report."""
        begin = time.monotonic()
        entry = self.json["stages"][name] = {"state": "running", "limit_s": round(seconds, 1), "rows": []}
        self.save()
        print(f"{name}, at most {seconds:.0f} s", flush=True)
        try:
            if seconds < 1:
                self.add(entry, "time", "cut off", {"reason": "earlier stages took the time"})
            else:
                for row in rows(Deadline(seconds)):
                    self.add(entry, *row)
        except Missing as missing:
            self.add(entry, "needs", "missing", {"reason": str(missing)})
        except Exception as error:  # a defect of this tool must not hide what other stages find
            self.add(entry, "stage", "failed", {"reason": f"{type(error).__name__}: {error}"[:500]})
        entry["seconds"] = round(time.monotonic() - begin, 1)
        entry["state"] = state_of(entry["rows"])
        self.save()

    def add(self, entry: dict, name: str, state: str, figures: dict) -> None:
        assert state in STATES, state
        entry["rows"].append({"name": name, "state": state, **figures})
        self.save()
        shown = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                          for key, value in figures.items() if not isinstance(value, (list, dict)))
        print(f"  {state:8} {name}{': ' if shown else ''}{shown}", flush=True)

    def failed(self) -> bool:
        return any(stage["state"] == "failed" for stage in self.json["stages"].values())


def state_of(rows) -> str:
    """A stage is as good as its worst row."""
    states = {row["state"] for row in rows}
    for state in ("failed", "cut off", "passed", "measured", "missing"):
        if state in states:
            return state
    return "missing"


class Deadline:
    """The time that is left to a stage."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    def left(self, most: float = 1e9) -> float:
        return min(most, self.end - time.monotonic())
