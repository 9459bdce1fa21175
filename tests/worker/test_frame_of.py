"""Looking at another thread's frame."""

from __future__ import annotations

import subprocess
import sys
import threading

from stowhand.worker.watchdog import frame_of
from tests.support.sources import ROOT

# A collection may begin at any allocation, and what it takes away lets other threads run.
PROGRAM = """
import gc, threading, time
from stowhand.worker.watchdog import frame_of

class Knot:
    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(0)

def look(thread):
    for _ in range(100):
        Knot()
        assert frame_of(thread) is not None

gc.set_threshold(1)
threads = [threading.Thread(target=look, args=(threading.get_ident(),), daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(gc.isenabled())
"""


def test_threads_that_look_while_garbage_is_collected_do_not_stop_for_ever() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "True\n"


def test_a_thread_is_found_and_none_is_nowhere() -> None:
    frame = frame_of(threading.get_ident())
    assert frame is not None
    assert frame.f_code.co_name == "frame_of"
    assert frame_of(0) is None
