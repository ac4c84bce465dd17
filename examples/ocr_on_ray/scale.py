"""Reads the text in pictures on as many replicas as the load needs: ``python scale.py``.

The load rises and falls; one line per second shows how much is served, and by how many replicas.
"""

import argparse
import collections
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ray

import pytriton.ray
from pytriton import Triton
from pytriton.ray import Autoscale, Pool

RECEIPT = (Path(__file__).parent / "receipt.png").read_bytes()


class Found(NamedTuple):
    texts: list[str]
    scores: list[float]


class Reader:
    def __init__(self) -> None:
        from rapidocr import RapidOCR  # on the node: its sessions cannot be sent there

        self.ocr = RapidOCR(params={"Global.log_level": "error", "EngineConfig.onnxruntime.intra_op_num_threads": 1})

    def __call__(self, image: bytes) -> Found:
        found = self.ocr(image)
        return Found(found.txts or [], found.scores or [])


def build(triton: Triton) -> None:
    triton.bind("OCR", Reader())


class Load:
    """Clients that send the same picture repeatedly; any number of them can be active.

    Attributes:
        clients: How many are active.
        pause_s: How long each of them pauses after a picture.
        served: Pictures that were read.
    """

    def __init__(self, pool: Pool, most: int) -> None:
        self.clients = self.served = 0
        self.pause_s = 0.0
        self._over = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._read, args=(pool, number)) for number in range(most)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over = True
        for thread in self._threads:
            thread.join()

    def _read(self, pool: Pool, number: int) -> None:
        with pool.client("OCR") as client:
            while not self._over:
                if number >= self.clients:
                    time.sleep(0.1)
                    continue
                texts = client.infer_sample(RECEIPT)["texts"]
                assert b"CORNER CAFE" in texts, texts
                with self._lock:
                    self.served += 1
                time.sleep(self.pause_s)


class Second(NamedTuple):
    time_s: float
    clients: int
    pictures: float
    replicas: int
    queue_ms: float


def run(pool: Pool, load: Load, phases: list[tuple[int, float, float]]) -> Iterator[Second]:
    """Changes the load, and yields once per second what was served in the last five."""
    start = time.monotonic()
    served = collections.deque([(start, 0)], maxlen=6)
    for load.clients, load.pause_s, seconds in phases:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1)
            served.append((time.monotonic(), load.served))
            (before, earlier), (now, total) = served[0], served[-1]
            replicas = [replica for replica in pool.replicas() if replica.is_ready]
            queue_ms = sum(replica.load["queue_ms"] for replica in replicas) / max(len(replicas), 1)
            yield Second(now - start, load.clients, (total - earlier) / (now - before), len(replicas), queue_ms)


def draw(seconds: list[Second], path: str) -> None:
    from matplotlib import pyplot  # pip install matplotlib

    times = [each.time_s for each in seconds]
    figure, (throughput, replicas) = pyplot.subplots(2, sharex=True, figsize=(8, 5), layout="constrained")
    throughput.plot(times, [each.pictures for each in seconds], label="pictures per second")
    throughput.step(times, [each.clients for each in seconds], where="pre", label="clients", alpha=0.5)
    replicas.step(times, [each.replicas for each in seconds], where="pre", color="C2", label="replicas")
    replicas.set(xlabel="seconds", ylim=(0, None))
    throughput.set(ylim=(0, None))
    for axes in (throughput, replicas):
        axes.legend(loc="upper left")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", help="the Ray cluster; by default, one is started on this machine")
    parser.add_argument("--replicas", type=int, default=2, help="the greatest number of replicas")
    parser.add_argument("--seconds", type=float, default=40, help="of each of three phases")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture at the end, with matplotlib")
    options = parser.parse_args()
    ray.init(options.address or "local", log_to_driver=False)
    autoscale = Autoscale(1, options.replicas, queue_ms=200, downscale_delay_s=10)
    pool = pytriton.ray.deploy(build, name="ocr", autoscale=autoscale)
    most = 4 * options.replicas
    load = Load(pool, most)
    quiet, busy = (1, 2.0), (most, 0.0)
    phases = [(*quiet, options.seconds / 2), (*busy, options.seconds), (*quiet, options.seconds)]
    seconds = []
    for second in run(pool, load, phases):
        seconds.append(second)
        print(
            f"{second.time_s:5.0f} s  {second.clients:2} clients  {second.replicas} replicas  "
            f"{second.queue_ms:5.0f} ms in the queue  {second.pictures:5.1f}/s {'#' * round(second.pictures * 4)}",
            flush=True,
        )
    load.stop()
    if options.plot:
        draw(seconds, options.plot)
    print(pool.status())
    pool.shutdown()


if __name__ == "__main__":
    main()
