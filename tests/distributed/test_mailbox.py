"""Messages between the processes of one host: what counts as one, and ranks that never answer."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

mailbox = pytest.importorskip("upsweep.distributed.mailbox", exc_type=ImportError)

PEER = """
import os, sys, time
from upsweep.distributed.mailbox import Mailbox
box = Mailbox(os.open(sys.argv[1], os.O_RDWR), 1, 2, 60)
if "answer" in sys.argv:
    box.post(b"the answer")
print("open", flush=True)
if "stay" in sys.argv:
    time.sleep(60)
"""


@pytest.fixture
def file():
    if not hasattr(os, "memfd_create"):
        pytest.skip("needs Linux")
    file = os.memfd_create("test")
    os.truncate(file, mailbox.Mailbox.file_bytes(2))
    yield file
    os.close(file)


@contextlib.contextmanager
def peer(file, *what):
    arguments = [sys.executable, "-c", PEER, f"/proc/{os.getpid()}/fd/{file}", *what]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        if "stay" not in what:
            process.wait(30)
        yield
        process.kill()


def open_boxes(file, timeout=60.0):
    return [mailbox.Mailbox(os.dup(file), rank, 2, timeout) for rank in range(2)]


def test_messages_in_order(file):
    first, second = open_boxes(file)
    for n in range(5):
        messages = [b"a" * n, b"b" * (1000 - n)]
        first.post(messages[0])
        second.post(messages[1])
        assert first.collect() == second.collect() == messages


def test_a_message_counts_when_all_of_it_is_visible(file):
    first, second = open_boxes(file)
    second.post(b"")
    for visible in (False, True):
        first.post(b"whole")
        begin = first._slot(0) + 16
        if not visible:
            first._memory[begin + 2 : begin + 3] = b"?"
        second._n_posted = first._n_posted
        assert (second._read(0) == b"whole") == visible
    first._n_posted += 2  # the slot still has an older message
    assert first._read(0) is None


def test_a_rank_that_has_ended(file):
    begin = time.monotonic()
    box = mailbox.Mailbox(os.dup(file), 0, 2, 60.0)
    with peer(file):
        box.post(b"question")
        with pytest.raises(RuntimeError, match="rank 1 of the group has ended"):
            box.collect()
    assert time.monotonic() - begin < 30


def test_a_rank_that_has_answered_may_end(file):
    box = mailbox.Mailbox(os.dup(file), 0, 2, 60.0)
    with peer(file, "answer"):
        box.post(b"question")
        assert box.collect() == [b"question", b"the answer"]


def test_a_rank_that_does_not_answer(file):
    box = mailbox.Mailbox(os.dup(file), 0, 2, 0.5)
    with peer(file, "stay"):
        box.post(b"question")
        with pytest.raises(RuntimeError, match=r"rank 1 of the group: timed out after 0\.5 s"):
            box.collect()
