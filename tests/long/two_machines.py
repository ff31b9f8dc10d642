"""Two network namespaces as two machines: one run of a rank on each, also where ranks are killed and start again.

    python -m tests.long.two_machines [KILLS]      # as root, with iproute2

Each namespace has its own addresses and one end of a virtual cable; the folder is shared, as on a cluster. The run must
end with the bits of two ranks on one machine.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.test_restarts import LONGEST, TWO_RANKS, agent, ranks_of, steps_of
from tests.helpers import assert_same_bits, final_state

KILLS = 4
ADDRESSES = {"supancl-a": "10.77.0.1", "supancl-b": "10.77.0.2"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def machines() -> Iterator[None]:
    """Two namespaces that reach each other by a cable, and nothing else."""
    first, second = ADDRESSES
    made = []
    try:
        for name in ADDRESSES:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address in ADDRESSES.items():
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield
    finally:
        for name in made:
            ip("netns", "delete", name)


def train(folder: Path, kills: int, chance: random.Random) -> int:
    """Train on both machines, killing a rank of either now and then; returns how many kills there were."""
    agents = []
    for machine, address in ADDRESSES.items():
        words = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", folder.name]
        words += ["--rdzv-endpoint", f"{ADDRESSES['supancl-a']}:29477", "--local-addr", address]
        words += ["--rdzv-conf", f"is_host={int(machine == 'supancl-a')}"]  # the host's name is not that of the address
        agents.append(agent(words, folder, kills, machine))
    done, until = 0, time.monotonic() + LONGEST
    try:
        while any(each.poll() is None for each in agents):
            assert time.monotonic() < until, f"not ended after {LONGEST} s"
            if done < kills and steps_of(folder) > 8 * (done + 1) and (found := ranks_of(chance.choice(agents))):
                os.kill(found[0], signal.SIGKILL)
                done += 1
            time.sleep(0.05)
        codes = [each.wait() for each in agents]
        assert codes == [0, 0], codes
    finally:
        for each in agents:
            each.terminate()
    return done


def main(kills: int = KILLS) -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("two_machines needs root and iproute2 (ip)")
    with TemporaryDirectory() as place, machines():
        alone = Path(place, "alone")
        assert agent(TWO_RANKS, alone, 0).wait(LONGEST) == 0
        for count in (0, kills):
            folder, begun = Path(place, f"killed-{count}"), time.monotonic()
            done = train(folder, count, random.Random(0))
            assert_same_bits(final_state(alone), final_state(folder))
            print(f"two machines, ranks killed: {done}; equal bits after {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
