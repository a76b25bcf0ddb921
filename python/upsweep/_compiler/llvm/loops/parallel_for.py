"""Parallel for in LLVM IR: the functions that run a region over chunks of a range in threads, for every nest.

The schedule is dynamic: a job is the index that is next, the region, its context, the extent and the size of a
chunk; `worker` takes chunks of it until none is left, and `launch` runs one in each thread. A chunk stores about
as much as stays in a core's cache from one step of time to the next, and is no larger than a thread's share.
Threads are those of OpenMP's pool, which the package's other kernels use, entered by `GOMP_parallel` as a compiler
does.
"""

from __future__ import annotations

from upsweep._compiler.llvm.vectors import Body

SYMBOLS = ("GOMP_parallel",)
POLL = "upsweep_poll"

# Work, in bytes, below which a thread costs more than it saves, and what a chunk may store in one step of time.
_WORTH_A_THREAD = 128 << 10
_CHUNK_BYTES = 64 << 10


def write_worker(out: Body, polls: bool) -> str:
    """Write `worker`, which polls between two chunks if `polls`; its signature."""
    cells = [out.at("i64", "%job", n) for n in range(1, 5)]
    region, context, extent, chunk = (
        out.emit(f"load {kind}, ptr {cell}") for kind, cell in zip(("ptr", "ptr", "i64", "i64"), cells)
    )
    take, run, poll, done = (out.label(hint) for hint in ("take", "run", "poll", "done"))
    out.do(f"br label %{take}")
    out.place(take)
    low = out.emit(f"atomicrmw add ptr %job, i64 {chunk} monotonic")
    out.branch(out.emit(f"icmp slt i64 {low}, {extent}"), run, done)
    out.place(run)
    high = out.extreme("smin", out.emit(f"add i64 {low}, {chunk}"), extent)
    out.do(f"call void {region}(ptr {context}, i64 {low}, i64 {high})")
    if polls:
        args = out.emit(f"load ptr, ptr {context}")
        status = out.emit(f"load volatile i64, ptr {args}")
        out.branch(out.emit(f"icmp eq i64 {status}, 0"), take, poll)
        out.place(poll)
        answer = out.call("i64", POLL, ("ptr", args))
        out.branch(out.emit(f"icmp eq i64 {answer}, 0"), take, done)
    else:
        out.do(f"br label %{take}")
    out.place(done)
    return "internal void @worker(ptr %job) #0"


def write_launch(out: Body) -> str:
    """Write `launch`, which runs a region over 0, ..., extent; its signature.

    `bytes` and `work` are those of one index, `align` is what the size of a chunk is a multiple of.
    """
    job = out.emit("alloca i64, i64 5")
    plan, fork, alone, done = (out.label(hint) for hint in ("plan", "fork", "alone", "done"))
    out.branch(out.emit("icmp sgt i64 %extent, 0"), plan, done)
    out.place(plan)
    worth = out.emit(f"sdiv i64 {out.emit('mul i64 %extent, %work')}, {_WORTH_A_THREAD}")
    most = out.extreme("smin", out.extreme("smax", worth, "1"), "%n_threads")
    fits = out.emit(f"sdiv i64 {_CHUNK_BYTES}, {out.extreme('smax', '%bytes', '1')}")
    share = out.emit(f"add i64 %extent, {out.emit(f'sub i64 {most}, 1')}")
    share = out.emit(f"sdiv i64 {share}, {most}")
    chunk = out.extreme("smax", out.extreme("smin", fits, share), "1")
    chunk = out.emit(f"add i64 {chunk}, {out.emit('sub i64 %align, 1')}")
    chunk = out.emit(f"sub i64 {chunk}, {out.emit(f'srem i64 {chunk}, %align')}")
    out.do(f"store i64 0, ptr {job}")
    cells = [out.at("i64", job, n) for n in range(1, 5)]
    for value, cell in zip(("ptr %region", "ptr %context", "i64 %extent", f"i64 {chunk}"), cells):
        out.do(f"store {value}, ptr {cell}")
    n_chunks = out.emit(f"sub i64 {out.emit(f'add i64 %extent, {chunk}')}, 1")
    n_chunks = out.emit(f"sdiv i64 {n_chunks}, {chunk}")
    n_threads = out.extreme("smin", most, n_chunks)
    out.branch(out.emit(f"icmp sgt i64 {n_threads}, 1"), fork, alone)
    out.place(fork)
    threads = ("i32", out.emit(f"trunc i64 {n_threads} to i32"))
    out.call("void", "GOMP_parallel", ("ptr", "@worker"), ("ptr", job), threads, ("i32", 0))
    out.do(f"br label %{done}")
    out.place(alone)
    out.do(f"call void @worker(ptr {job})")
    out.do(f"br label %{done}")
    out.place(done)
    return (
        "internal void @launch(ptr %region, ptr %context, i64 %extent, i64 %bytes, i64 %work, i64 %align, "
        "i64 %n_threads) #0"
    )
