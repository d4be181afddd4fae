"""The package `chassis` of a wheel: the command `chassis`, which runs the program with LibTorch of the installed torch.

The folder of this file is a prefix: bin/, lib/, include/ and share/. torch is found, but not imported."""
import importlib.util
import os
import re
import sys
from pathlib import Path

PREFIX = Path(__file__).resolve().parent
TORCH = "@TORCH_MINOR@"  # the minor of torch that the program was built with
EXIT_CONFIG = 2  # of the program, for what the user must mend


def refuse(problem):
    """Ends with a message that says what to install."""
    print(f"chassis: {problem}\n  this wheel runs with torch {TORCH}: pip install 'torch=={TORCH}.*', or the wheel of "
          "chassis for your torch", file=sys.stderr)
    sys.exit(EXIT_CONFIG)


def torch_libraries():
    """The folder of LibTorch's libraries in this environment."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        refuse("torch is not installed in this environment")
    folder = Path(spec.origin).resolve().parent
    version = re.search(r"^__version__ = '([^']*)'", (folder / "version.py").read_text(), re.MULTILINE)
    if version is None or not version[1].startswith(TORCH + "."):
        refuse(f"{folder} is torch {version[1] if version else 'of an unknown version'}")
    return folder / "lib"


def main():
    libraries = torch_libraries()
    # The program itself looks only beside this package.
    if libraries.parent != PREFIX.parent / "torch":
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH")]))
    # The program replaces this process, so signals and exit codes are its own.
    os.execv(PREFIX / "bin" / "chassis", sys.argv)
