"""What tools/gpu-check runs, and where: the package, the carried tests, and the tools of the machine."""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from gpu_check.report import Missing, document_in, run

ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """A device with a package of chassis. `scratch` is removed at the end."""

    def __init__(self, device: str, package, tests, python: str, scratch: Path):
        self.device, self.python, self.scratch = device, python, scratch
        self.on_cpu = device == "cpu"
        self.prefix = unpack(Path(package), scratch / "package")
        self.chassis = self.prefix / "bin/chassis"
        self.torch = find_torch(python)
        self.environment = environment_of(self.prefix, self.torch)
        self.tests = read_tests(Path(tests), self.on_cpu) if tests else None
        self.link = self.link_plugins()

    def require_tests(self) -> dict:
        if self.tests is None:
            raise Missing("no tests: carry them, see --collect, and name the folder with --tests")
        return self.tests

    def require_torch(self) -> None:
        if self.torch is None:
            raise Missing(f"no torch in {self.python}")

    def link_plugins(self):
        """Tests look for plugins in the folder of their build. Returns the link that was made there, if one was."""
        wanted = self.tests and self.tests.get("plugins") and Path(self.tests["plugins"])
        if not wanted or wanted.exists():
            return None
        try:
            wanted.parent.mkdir(parents=True, exist_ok=True)
            wanted.symlink_to(self.prefix / "lib/chassis/plugins")
        except OSError as error:
            print(f"gpu-check: {wanted}: {error.strerror}; tests that load plugins will fail", file=sys.stderr)
            return None
        return wanted

    def close(self) -> None:
        if self.link:
            self.link.unlink()

    def facts(self) -> dict:
        """The machine and the program, for the report."""
        version = run([self.chassis, "version", "--json"], 60, self.environment)
        try:
            program = document_in(version.text)
        except ValueError:
            raise Missing(f"{self.chassis} does not run here: {version.text.strip()[-500:]}") from None
        return {"device": self.device, "card": card_name(self.device), "driver": nvidia_smi("driver_version"),
                "cores": len(os.sched_getaffinity(0)), "torch": self.torch and self.torch[1],
                "python": sys.version.split()[0], "chassis": {key: program.get(key) for key in
                                                             ("chassis", "abi", "libtorch", "devices")}}


def unpack(package: Path, folder: Path) -> Path:
    """The prefix of a wheel, a tarball, an installed prefix or a build."""
    if package.is_dir():
        prefix = package.resolve()
    elif package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            wheel.extractall(folder)
        prefix = folder / "chassis"
        for program in (prefix / "bin").glob("*"):
            program.chmod(0o755)
    elif package.name.endswith((".tar.gz", ".tgz")):
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="tar")
        prefix = next(folder.iterdir())
    else:
        raise Missing(f"{package} is not a wheel, a tarball or a folder")
    if not (prefix / "bin/chassis").exists():
        raise Missing(f"{package} has no bin/chassis")
    return prefix


def find_torch(python: str):
    """(folder, version) of the torch that this Python has, or None."""
    ask = ("import importlib.util, os; found = importlib.util.find_spec('torch'); "
           "print(os.path.dirname(found.origin) if found else '')")
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode or not done.stdout.strip():
        return None
    folder = Path(done.stdout.strip())
    version = re.search(r"__version__ = '([^']*)'", (folder / "version.py").read_text())
    return folder, version[1] if version else "unknown"


def environment_of(prefix: Path, torch) -> dict:
    """As the wheel's command has it: LibTorch of the machine's torch, if there is one."""
    folders = [torch[0] / "lib"] if torch else []
    libraries = prefix / "lib/chassis/libraries"
    folders += [libraries] if libraries.exists() else []
    folders += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false", PYTHONDONTWRITEBYTECODE="1")
    if folders:
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
    return environment


def nvidia_smi(field: str):
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"], capture_output=True,
                              text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None


def card_name(device: str):
    if device == "cpu":
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        return found[1] if found else "unknown CPU"
    return nvidia_smi("name")


# --- Tests ----------------------------------------------------------------------------------------------------------


def ctest_list(build: Path, label: str) -> list:
    done = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1", "-L", label], capture_output=True,
                          text=True, check=True)
    tests = []
    for test in json.loads(done.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        if "command" in test:
            tests.append({"name": test["name"], "file": test["command"][0], "arguments": test["command"][1:],
                          "environment": dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))})
    return tests


def uses_torch(file: str) -> bool:
    names = (b"libtorch.so", b"libtorch_cpu.so", b"libc10.so")
    data = Path(file).read_bytes()
    return any(name in data for name in names)


def collect(build: Path, folder: Path) -> None:
    """Copies the built tests of label gpu, stripped, and the list that read_tests() reads."""
    tests = ctest_list(build, "^gpu$")
    if not tests:
        sys.exit(f"gpu-check: {build} has no tests of label gpu; configure it with -DCHASSIS_CUDA=ON")
    folder.mkdir(parents=True, exist_ok=True)
    bandwidth = build / "bin/chassis-kernels"
    for file in {test["file"] for test in tests} | ({str(bandwidth)} if bandwidth.exists() else set()):
        if not Path(file).exists():
            sys.exit(f"gpu-check: {file} is not built; build it first")
        copy = folder / copied_name(build, file)
        shutil.copy2(file, copy)
        if shutil.which("strip"):
            subprocess.run(["strip", str(copy)], check=False)
    for test in tests:
        test["is_kernel"] = not uses_torch(test["file"])
        test["file"] = copied_name(build, test["file"])
    text = {"plugins": str(build.resolve() / "lib/chassis/plugins"), "tests": tests}
    (folder / "tests.json").write_text(json.dumps(text, indent=1) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"gpu-check: {len(tests)} tests in {folder}, {size / 2**20:.1f} MiB")


def copied_name(build: Path, file: str) -> str:
    path = Path(file).resolve()
    return "-".join(path.relative_to(build.resolve()).parts) if path.is_relative_to(build.resolve()) else path.name


def read_tests(folder: Path, on_cpu: bool) -> dict:
    """From a folder that collect() has made, or from a build. On a CPU the kernels of a build run there."""
    if (folder / "tests.json").exists():
        tests = json.loads((folder / "tests.json").read_text())
        for test in tests["tests"]:
            test["file"] = str(folder.resolve() / test["file"])
            os.chmod(test["file"], 0o755)
        bandwidth = folder.resolve() / "bin-chassis-kernels"
    elif (folder / "CTestTestfile.cmake").exists():
        if not shutil.which("ctest"):
            raise Missing("ctest, to read the tests of a build")
        found = ctest_list(folder, "cuda_on_cpu" if on_cpu else "^gpu$")
        found = [test for test in found if not on_cpu or test["name"].endswith("_ascending")]
        tests = {"plugins": None, "tests": [{**test, "is_kernel": on_cpu or not uses_torch(test["file"])}
                                            for test in found if Path(test["file"]).exists()]}
        bandwidth = folder.resolve() / "bin" / ("chassis-kernels-on-cpu" if on_cpu else "chassis-kernels")
    else:
        raise Missing(f"{folder} has neither tests.json nor CTestTestfile.cmake")
    tests["bandwidth"] = bandwidth if bandwidth.exists() else None
    return tests
