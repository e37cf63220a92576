"""The driver's side of the conversation: a worker is a process that answers one question at a time, within a limit."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# TensorFlow Probability does not import with Keras 3.
ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
SETTLE = 0.05  # seconds for another worker's threads to go to sleep


class WorkerError(Exception):
    """A worker failed, or was too slow; the message says which."""


def interpreter(library: str, envs: Path) -> str:
    """The Python that has a library: ours has scikit-learn too."""
    if library in ("ours", "sklearn"):
        return sys.executable
    return str(envs / library / "bin" / "python")


class Process:
    """One worker. `ask` raises WorkerError with the reason when the answer is a failure or does not come."""

    def __init__(self, library: str, envs: Path, limit: float, log: Path):
        self.library, self.limit, self.log = library, limit, log
        python = interpreter(library, envs)
        if not Path(python).exists():
            raise WorkerError(f"no environment for {library}: `make benchmark` makes it")
        script = HERE / "workers" / f"on_{library}.py"
        start = time.perf_counter()
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(HERE)}
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, env=environment, cwd=HERE,
            )  # fmt: skip
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.about = self.ask("hello") | {"import_seconds": time.perf_counter() - start}

    def _listen(self):
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def ask(self, do: str, **message: Any) -> dict:
        """The answer to one question."""
        if self.process.poll() is not None:
            raise WorkerError(f"the process ended with status {self.process.returncode}")
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **message}) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=self.limit)
        except queue.Empty:
            self.close()
            raise WorkerError(f"no answer within {self.limit:g} s") from None
        except BrokenPipeError:
            line = None
        if line is None:
            status = self.process.wait()
            raise WorkerError(f"the process ended with status {status}" + (" (killed)" if status == -9 else ""))
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["ok"]

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Workers:
    """One process a library, started when first needed and again after a failure."""

    def __init__(self, envs: Path, limit: float, log: Path):
        self.envs, self.limit, self.log = envs, limit, log
        self.running: dict[str, Process] = {}

    def get(self, library: str) -> Process:
        """The library's process."""
        worker = self.running.get(library)
        if worker is None or worker.process.poll() is not None:
            worker = self.running[library] = self.fresh(library)
        return worker

    def fresh(self, library: str) -> Process:
        """A new process that nobody else has."""
        return Process(library, self.envs, self.limit, self.log)

    def close(self) -> None:
        """End all."""
        for worker in self.running.values():
            worker.close()
        self.running.clear()


def settle() -> None:
    """Wait until nobody spins."""
    time.sleep(SETTLE)
