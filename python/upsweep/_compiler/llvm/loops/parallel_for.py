"""Parallel for in LLVM IR: the function that runs a region over chunks of a range in threads, for every nest.

The schedule is dynamic. A chunk stores about as much as stays in a core's cache from one step of time to the next,
and is no larger than a thread's share. Threads are those of OpenMP's pool, which the package's other kernels use,
entered by `GOMP_parallel` as a compiler does.
"""

from __future__ import annotations

SYMBOLS = ("GOMP_parallel",)
POLL = "upsweep_poll"
NEEDS = {
    f"@{POLL}": f"declare i64 @{POLL}(ptr)\n",
    "@GOMP_parallel": "declare void @GOMP_parallel(ptr, ptr, i32, i32)\n",
    "@llvm.smin.i64": "declare i64 @llvm.smin.i64(i64, i64)\n",
    "@llvm.smax.i64": "declare i64 @llvm.smax.i64(i64, i64)\n",
}

# Work, in bytes, below which a thread costs more than it saves, and what a chunk may store in one step of time.
_WORTH_A_THREAD = 128 << 10
_CHUNK_BYTES = 64 << 10

_TEXT = """\
define internal void @worker(ptr %job) #0 {
start:
  %p1 = getelementptr i64, ptr %job, i64 1
  %p2 = getelementptr i64, ptr %job, i64 2
  %p3 = getelementptr i64, ptr %job, i64 3
  %p4 = getelementptr i64, ptr %job, i64 4
  %region = load ptr, ptr %p1
  %context = load ptr, ptr %p2
  %extent = load i64, ptr %p3
  %piece = load i64, ptr %p4
  br label %take
POLLING
take:
  %low = atomicrmw add ptr %job, i64 %piece monotonic
  %more = icmp slt i64 %low, %extent
  br i1 %more, label %run, label %done
run:
  %end = add i64 %low, %piece
  %high = call i64 @llvm.smin.i64(i64 %end, i64 %extent)
  call void %region(ptr %context, i64 %low, i64 %high)
  br label %next
done:
  ret void
}

define internal void @launch(ptr %region, ptr %context, i64 %extent, i64 %bytes, i64 %work, i64 %align, i64
%n_threads) #0 { start:
  %job = alloca i64, i64 5
  %some = icmp sgt i64 %extent, 0
  br i1 %some, label %plan, label %done
plan:
  %all = mul i64 %extent, %work
  %worth = sdiv i64 %all, WORTH_A_THREAD
  %w1 = call i64 @llvm.smax.i64(i64 %worth, i64 1)
  %most = call i64 @llvm.smin.i64(i64 %w1, i64 %n_threads)
  %b1 = call i64 @llvm.smax.i64(i64 %bytes, i64 1)
  %fits = sdiv i64 PIECE_BYTES, %b1
  %m1 = sub i64 %most, 1
  %up = add i64 %extent, %m1
  %share = sdiv i64 %up, %most
  %small = call i64 @llvm.smin.i64(i64 %fits, i64 %share)
  %one = call i64 @llvm.smax.i64(i64 %small, i64 1)
  %a1 = sub i64 %align, 1
  %raised = add i64 %one, %a1
  %over = srem i64 %raised, %align
  %piece = sub i64 %raised, %over
  store i64 0, ptr %job
  %p1 = getelementptr i64, ptr %job, i64 1
  %p2 = getelementptr i64, ptr %job, i64 2
  %p3 = getelementptr i64, ptr %job, i64 3
  %p4 = getelementptr i64, ptr %job, i64 4
  store ptr %region, ptr %p1
  store ptr %context, ptr %p2
  store i64 %extent, ptr %p3
  store i64 %piece, ptr %p4
  %rounded = add i64 %extent, %piece
  %r1 = sub i64 %rounded, 1
  %pieces = sdiv i64 %r1, %piece
  %threads = call i64 @llvm.smin.i64(i64 %most, i64 %pieces)
  %several = icmp sgt i64 %threads, 1
  br i1 %several, label %fork, label %alone
fork:
  %n = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @worker, ptr %job, i32 %n, i32 0)
  br label %done
alone:
  call void @worker(ptr %job)
  br label %done
done:
  ret void
}
"""


_NO_POLL = """\
next:
  br label %take
"""
_POLL_BETWEEN_CHUNKS = f"""\
next:
  %args = load ptr, ptr %context
  %status = load volatile i64, ptr %args
  %goes_on = icmp eq i64 %status, 0
  br i1 %goes_on, label %take, label %poll
poll:
  %answer = call i64 @{POLL}(ptr %args)
  %stays = icmp eq i64 %answer, 0
  br i1 %stays, label %take, label %done
"""


def parallel_for_text(polls: bool) -> str:
    """The functions `worker` and `launch`, which need `NEEDS`; workers that poll do so between two chunks."""
    text = _TEXT.replace("WORTH_A_THREAD", str(_WORTH_A_THREAD)).replace("PIECE_BYTES", str(_CHUNK_BYTES))
    return text.replace("POLLING\n", _POLL_BETWEEN_CHUNKS if polls else _NO_POLL)
