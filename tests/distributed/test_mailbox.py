"""Messages between the processes of one host: what counts as one, and ranks that never answer."""

import contextlib
import os
import subprocess
import sys
import time

import pytest
import tensors  # noqa: F401  # skips these tests where torch is not installed
from upsweep.distributed import mailbox

TOKEN = b"0123456789abcdef"
PEER = """
import os, sys, time
from upsweep.distributed.mailbox import Mailbox
box = Mailbox(os.open(sys.argv[1], os.O_RDWR), b"0123456789abcdef", 1, 2, 60)
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
    file = mailbox.Mailbox.create(TOKEN, 2)
    yield file
    os.close(file)


@contextlib.contextmanager
def peer(file, *what):
    arguments = [sys.executable, "-c", PEER, f"/proc/{os.getpid()}/fd/{file}", *what]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "open\n"
            if "stay" not in what:
                process.wait(30)
            yield
        finally:
            process.kill()


def open_box(file, rank=0, timeout=60.0):
    return mailbox.Mailbox(os.dup(file), TOKEN, rank, 2, timeout)


def test_messages_in_order(file):
    first, second = open_box(file), open_box(file, 1)
    for n in range(5):
        messages = [b"a" * n, b"b" * (1000 - n)]
        numbers = [box.post(message) for box, message in zip((first, second), messages)]
        assert first.collect(numbers[0]) == second.collect(numbers[1]) == messages


def test_a_message_stays_until_all_have_read_it(file):
    first, second = open_box(file), open_box(file, 1)
    first.post(b"one")
    number = second.post(b"uno")
    assert first.collect(1) == [b"one", b"uno"]
    first.post(b"two")
    assert second.collect(number) == [b"one", b"uno"]


def test_a_message_counts_when_all_of_it_is_visible(file):
    first, second = open_box(file), open_box(file, 1)
    number = first.post(b"whole")
    begin = first._slot(0, number) + 16
    for text, is_there in ((b"wh?le", False), (b"whole", True)):
        first._memory[begin : begin + 5] = text
        assert second._read(0, number) == (b"whole" if is_there else None)
    # The header of the next message in this slot is visible, of its text nothing yet.
    header = mailbox._HEADER
    _, length, checksum = header.unpack_from(first._memory, begin - header.size)
    header.pack_into(first._memory, begin - header.size, number + 2, length, checksum)
    assert second._read(0, number + 2) is None


def test_a_call_that_was_interrupted(file):
    first, second = open_box(file), open_box(file, 1)
    for _ in range(3):  # twice interrupted while it waited for the other rank
        first.post(b"again")
    with pytest.raises(RuntimeError, match="rank 0 of the group is ahead"):
        second.collect(second.post(b"first"))


def test_another_file(file):
    other = mailbox.Mailbox.create(TOKEN[::-1], 2)
    with pytest.raises(OSError, match="another file"):
        open_box(other)
    os.close(other)


def test_a_rank_that_has_ended(file):
    box = open_box(file)
    with peer(file):
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match="rank 1 of the group has ended"):
            box.collect(box.post(b"question"))
        assert time.monotonic() - begin < 10


def test_a_rank_that_has_answered_may_end(file):
    box = open_box(file)
    with peer(file, "answer"):
        assert box.collect(box.post(b"question")) == [b"question", b"the answer"]


def test_a_rank_that_does_not_answer(file):
    box = open_box(file, timeout=0.5)
    with peer(file, "stay"), pytest.raises(RuntimeError, match=r"rank 1 of the group: timed out after 0\.5 s"):
        box.collect(box.post(b"question"))
