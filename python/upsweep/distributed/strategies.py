"""Strategies of a distributed scan, and the choice between them.

    local_with_fixup   Every rank scans its shard from nothing, gathers the states after all shards, and scans its
                       first steps again from the state before them. Chosen if the state before each shard decays
                       to nothing within these steps. A little more than one pass; all-gathers one number per row.
    pipelined          Rows are split into groups. A rank scans a group from the state that it receives, and sends
                       the state after it to the next rank while it scans the next group. One pass, plus the time
                       of one group for each rank before it; one number per row to the next rank.
    two_pass           Every rank reduces its shard to an aggregate, gathers the aggregates, and scans from the
                       state that follows from them. Two groups of rows, so that one is gathered while the other is
                       reduced or scanned. Chosen for few rows or many ranks. All-gathers two numbers per row: one
                       for a sum, and one more with resets.

In each, a step is scanned in the precision of the states from the true state before the shard, or from nothing
where nothing of that state is left. On a device all work including messages is queued on the caller's stream; the
host waits only to learn what to queue.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from upsweep._torch import aggregates, executors
from upsweep._utils.lru_cache import LRUCache
from upsweep.distributed import streams
from upsweep.distributed.communicator import Communicator, Meta, PendingConsensus
from upsweep.distributed.p2p_transport import SymmetricMemoryTransport
from upsweep.distributed.shard import Rows, Shard, pack_aggregate, unpack_aggregates
from upsweep.distributed.transport import Transport

_MESSAGE_COST = 0.1  # share of the time of two passes: what the messages of a pipeline cost


# The state after the last step, if a rank returns it, and a function that waits until the host knows whether all
# states that were sent are finite.
PendingResult = tuple[Tensor | None, Callable[[], bool]]


def _is_known_finite() -> bool:
    return True


def _decays(decay_steps: int | None) -> bool:
    return decay_steps is not None


def _two_pass_cost(has_gates: bool) -> float:
    """The time of two passes in single passes: 12 bytes per element instead of 8, with gates 20 instead of 12."""
    return 1.7 if has_gates else 1.5


def _choose(all_decay: bool, n_ranks: int, n_groups: int, two_pass_cost: float) -> str:
    """Return the name of the strategy; `all_decay` is of all ranks but the first."""
    if all_decay or n_ranks == 1:
        return "local_with_fixup"
    pipelined_cost = (n_groups + n_ranks - 1) / n_groups
    return "pipelined" if pipelined_cost + _MESSAGE_COST * two_pass_cost < two_pass_cost else "two_pass"


# By layout, the steps after which the last two shards decayed.
_decay_history: LRUCache[Any, tuple[int | None, ...]] = LRUCache(64)
_MAX_SERIAL_ROWS = 8  # the scan of so few rows may take the whole device, so that a probe cannot run next to it


class SpeculativeStart:
    """Work on a shard before the metadata of the other ranks are known, as if they were like this rank's.

    A device gets work before the consensus starts: all rows if the state decays; the first group on the first rank
    of a pipeline. If the factors are data, a probe tells whether the state decays. If the last two shards of this
    layout agreed on that, the same is assumed, and the ranks compare it with the probes (`measure_decay`) when the
    device has all its work. After a wrong guess the shards are scanned again.
    """

    def __init__(self, shard: Shard, comm: Communicator):
        self.shard = shard
        order = comm.order(shard.reverse)
        self._is_first, self._is_last = comm.rank == order[0], comm.rank == order[-1]
        self._n_ranks, self._is_async = comm.size, streams.is_async(shard.out.device)
        self._two_pass_cost = _two_pass_cost(shard.scan.gates is not None)
        self._discard()
        self._layout: Any = None  # if its history is kept
        is_alone = comm.size == 1  # and needs no state before its shard
        if self._is_async and shard.needs_probe and not is_alone:
            self._layout = (shard.scan.shape, shard.scan.axis, shard.reverse, shard.scan.name, shard.out.device)
        self._history = _decay_history.get(self._layout) or ()
        self.is_assumed = len(self._history) == 2 and self._history[0] == self._history[1]
        self._decay_steps = self._history[1] if self.is_assumed else None
        self._wait_for_probe: Callable[[], int | None] | None = None
        self._probe_error: Exception | None = None
        self._ready: Any = None  # the event after which a probe may run next to what is queued from here on
        if self.is_assumed:
            self._ready = torch.cuda.current_stream(shard.out.device).record_event()
        if not is_alone and (not self.is_assumed or shard.n_rows <= _MAX_SERIAL_ROWS):
            self._wait_for_probe = shard.start_decay_probe()
        if not self.is_assumed:
            self.measure_decay()
        if self._is_async:
            self._start()

    @property
    def meta(self) -> Meta:
        """This rank's metadata for the choice of the strategy."""
        return {
            "decay_steps": self._decay_steps, "is_assumed": self.is_assumed, "n_groups": self.shard.n_groups,
            "two_pass_cost": self._two_pass_cost,
        }  # fmt: skip

    def start_deferred_work(self) -> None:
        """Start what may wait until the consensus is under way: on the CPU all work, on a device a probe.

        The probe only reads the factors, and its own memory belongs to the side stream, so that a call that fails
        need not wait for it. An error of the probe is raised by `measure_decay`, on all ranks.
        """
        if not self._is_async:
            self._start()
        elif self.is_assumed and self._wait_for_probe is None:
            try:
                with self._on_probe_stream():
                    self._wait_for_probe = self.shard.start_decay_probe()
            except Exception as error:
                self._probe_error = error

    def measure_decay(self) -> int | None:
        """Return the number of steps after which the shard decays, None if that is late; wait for the probe."""
        if self._probe_error is not None:
            raise self._probe_error
        if self._wait_for_probe is not None:
            with self._on_probe_stream():
                self._decay_steps = self._wait_for_probe()
            self._wait_for_probe = None
            if self._layout is not None:
                _decay_history[self._layout] = (*self._history[-1:], self._decay_steps)
        return self._decay_steps

    def _on_probe_stream(self) -> Any:
        if not self.is_assumed:
            return contextlib.nullcontext()
        return streams.on_side_stream(self.shard.out.device, "probe", self._ready)

    def restart(self) -> None:
        """Start again after a wrong guess, with the measured decay."""
        self._discard()
        self._start()

    def _discard(self) -> None:
        self.payload_rows: Rows | None = None  # the first ones that `two_pass` sends, and what it sends of them
        self.payload: aggregates.Parts | Tensor | None = None
        self._states: dict[Rows, Tensor] = {}  # after the rows that are scanned, from the first row on

    def _start(self) -> None:
        """Start the work of the strategy that these metadata lead to."""
        shard, n_groups = self.shard, self.shard.n_groups
        if not shard.length and shard.scan.initial is None:
            return
        strategy = _choose(self._decay_steps is not None, self._n_ranks, n_groups, self._two_pass_cost)
        if strategy == "two_pass":
            self.payload_rows = shard.row_groups(min(2, n_groups))[0]
            if not self._is_last:  # whose aggregate is needed only for the final state
                self.payload = _payload(shard, self.payload_rows, self if self._is_first else None)
        elif strategy == "local_with_fixup":
            self._scan(shard.rows)
        elif self._is_first:
            self._scan(shard.row_groups(n_groups)[0])

    def _scan(self, rows: Rows) -> None:
        self._states[rows] = self.shard.scan_rows(rows, self.shard.initial(rows))

    def state_after(self, rows: Rows) -> Tensor | None:
        """Return the state after these rows, if they are scanned from the initial state or from nothing."""
        if rows in self._states:
            return self._states[rows]
        if not self._states or rows.end > max(rows.end for rows in self._states):
            return None
        return self.shard.narrow_state(self.shard.concat_states(list(self._states.values())), rows)


class DistributedScan:
    """A scan of which this rank holds a shard, with the metadata of all ranks.

    `chain` are the ranks that have steps, in the order of the scan; `position` is this rank's place among them.
    """

    def __init__(self, shard: Shard, comm: Communicator, all_meta: list[Meta], start: SpeculativeStart):
        self.shard, self.comm, self.start, self.all_meta = shard, comm, start, all_meta
        self.chain = [rank for rank in comm.order(shard.reverse) if not all_meta[rank]["empty"]]
        self.metas = [all_meta[rank] for rank in self.chain]
        self.position = self.chain.index(comm.rank) if comm.rank in self.chain else None
        self.n_groups = max((meta["n_groups"] for meta in self.metas), default=1)
        self.returns_final = any(meta["return_final"] for meta in all_meta)
        self._p2p: SymmetricMemoryTransport | None = None

    def run(self) -> Tensor | None:
        """Write the result; return the state after the last step of all ranks, if any rank returns it.

        The state may lie in memory that a later call overwrites.
        """
        if not self.chain:
            return None
        device = self.shard.out.device
        self._p2p = self.comm.p2p_transport(device, [meta["transport_epoch"] for meta in self.all_meta])
        try:
            decay_steps = [meta["decay_steps"] for meta in self.metas]
            if any(meta["is_assumed"] for meta in self.all_meta):
                final, is_finite = self._run_assumed(decay_steps)
            else:
                final, is_finite = self._run_chosen(decay_steps)
            # Infinities and NaN never decay, as `local_with_fixup` expects; in `two_pass` a product that vanished
            # makes NaN of an infinity, and the steps of a shard need not.
            return final if is_finite() else self.pipelined()[0]
        except BaseException:
            self.comm.reset_transport(device)
            raise

    def _run_assumed(self, assumed: list[int | None]) -> PendingResult:
        """Start the strategy for shards that are assumed to decay so; start again if they do not.

        A rank that fails meanwhile takes part in the second consensus, so that all ranks raise.
        """
        pending: PendingResult = None, _is_known_finite
        decay_steps, error = None, None
        try:
            pending = self._run_chosen(assumed)
            decay_steps = self.start.measure_decay()
        except Exception as raised:  # raised by the consensus
            error = raised
        consensus = PendingConsensus(
            self.comm, {"scan": "decay of the factors", "decay_steps": decay_steps}, error
        )
        all_meta = consensus.wait(same=("scan",))
        measured = [all_meta[rank]["decay_steps"] for rank in self.chain]
        if self._plan(measured) != self._plan(assumed):  # the bits must not depend on earlier calls
            self.start.restart()
            pending = self._run_chosen(measured)
        return pending

    def _plan(self, decay_steps: list[int | None]) -> tuple[str, list[int | None], list[bool]]:
        """Return the strategy that follows from the decay of all shards, the steps it uses, and who decays."""
        cost = max(meta["two_pass_cost"] for meta in self.metas)
        decay = list(map(_decays, decay_steps))
        strategy = _choose(all(decay[1:]), len(self.chain), self.n_groups, cost)
        return strategy, decay_steps[1:] if strategy == "local_with_fixup" else [], decay

    def _run_chosen(self, decay_steps: list[int | None]) -> PendingResult:
        """Start the strategy for shards that decay after so many steps."""
        self.decay_steps = decay_steps
        pending: PendingResult = getattr(self, self._plan(decay_steps)[0])()
        return pending

    def _transport(self, n_bytes: int) -> Transport:
        """Return the transport for so many bytes per rank, in one message or several; all ranks agree on it."""
        return self._p2p if self._p2p is not None and self._p2p.fits(n_bytes) else self.comm.messages

    def _scan_first(self, rows: Rows) -> Tensor:
        """Scan these rows from the caller's initial state, or from nothing; return the state after them."""
        state = self.start.state_after(rows)
        return self.shard.scan_rows(rows, self.shard.initial(rows)) if state is None else state

    def local_with_fixup(self) -> PendingResult:
        """Scan from nothing, then the first steps again from the state before the shard."""
        shard, position = self.shard, self.position
        value = shard.empty_state(shard.rows).zero_() if position is None else self._scan_first(shard.rows)
        if not self.returns_final:
            if len(self.chain) == 1:
                return None, _is_known_finite
            if len(self.chain) == self.comm.size == 2:
                return None, self._fixup_of_two(value)
        values = self._transport(value.nbytes).start_all_gather(value)()
        wait_for_isfinite = streams.start_isfinite(values)  # while the device goes on
        if position:
            shard.scan_rows(shard.rows, values[self.chain[position - 1]], self.decay_steps[position])

        def is_finite() -> bool:
            flags = wait_for_isfinite()
            return all(flags[rank] for rank in self.chain[:-1])

        return (values[self.chain[-1]] if self.returns_final else None), is_finite

    def _fixup_of_two(self, value: Tensor) -> Callable[[], bool]:
        """The same for two ranks with one message; both then know whether the state is finite."""
        shard, transport = self.shard, self._transport(value.nbytes)
        if self.position:
            channel = transport.open_recv(self.chain[0], [value.shape], shard.compute_dtype, shard.out.device)
            value = channel.recv()
        else:
            channel = transport.open_send(self.chain[1])
            channel.send(value)
        wait_for_isfinite = streams.start_isfinite(value.unsqueeze(0))
        if self.position:
            shard.scan_rows(shard.rows, value, self.decay_steps[1])
        channel.close()
        return lambda: wait_for_isfinite()[0]

    def pipelined(self) -> PendingResult:
        """Scan group after group of rows, and pass the states from rank to rank."""
        shard, position = self.shard, self.position
        groups = shard.row_groups(self.n_groups)
        transport = self._transport(math.prod(shard.scan.state_shape) * shard.compute_dtype.itemsize)
        states: list[Tensor] = []
        if position is not None:
            receiver = sender = None
            if position:
                shapes = [shard.state_shape(rows) for rows in groups]
                source = self.chain[position - 1]
                receiver = transport.open_recv(source, shapes, shard.compute_dtype, shard.out.device)
            if position + 1 < len(self.chain):
                sender = transport.open_send(self.chain[position + 1])
            for rows in groups:
                state = self._scan_first(rows) if receiver is None else shard.scan_rows(rows, receiver.recv())
                if sender is not None:
                    sender.send(state)
                states.append(state)
            for channel in (receiver, sender):
                if channel is not None:
                    channel.close()
        if not self.returns_final:
            return None, _is_known_finite
        final = shard.concat_states(states) if states else shard.empty_state(shard.rows).zero_()
        return transport.start_all_gather(final)()[self.chain[-1]], _is_known_finite

    def two_pass(self) -> PendingResult:
        """Gather the aggregates of all shards, then scan from the state before this one."""
        shard, position, chain, start = self.shard, self.position, self.chain, self.start
        groups = shard.row_groups(min(2, self.n_groups))
        is_sum = self.metas[0]["scan"] == "cumulative_sum"
        has_reset = any(meta["has_reset"] for meta in self.metas)
        # A rank needs the states after the ranks before it; all need the last one, if any rank returns it.
        n_states = len(chain) if self.returns_final else position or 0
        gathers = []
        for rows in groups:
            payload: aggregates.Parts | Tensor | None = None
            if position is not None and (position < len(chain) - 1 or self.returns_final):
                is_known = rows == start.payload_rows and start.payload is not None
                payload = start.payload if is_known else _payload(shard, rows, None if position else start)
            packed = self._pack(payload, rows, is_sum, has_reset)
            gathers.append(self._transport(packed.nbytes).start_all_gather(packed))
        finals, waits_for_isfinite = [], []
        for rows, wait_for_gather in zip(groups, gathers):
            gathered = wait_for_gather()
            if not is_sum:
                waits_for_isfinite.append(streams.start_isfinite(gathered))
            states = self._states_after([gathered[rank] for rank in chain[:n_states]], is_sum, has_reset)
            finals += states[-1:]
            if position:
                shard.scan_rows(rows, states[position - 1])
            elif position == 0:
                self._scan_first(rows)

        def is_finite() -> bool:
            all_flags = [wait_for_isfinite() for wait_for_isfinite in waits_for_isfinite]
            return all(flags[rank] for flags in all_flags for rank in chain[:-1])

        return (shard.concat_states(finals) if self.returns_final else None), is_finite

    def _pack(
        self, payload: aggregates.Parts | Tensor | None, rows: Rows, is_sum: bool, has_reset: bool
    ) -> Tensor:
        """Pack an aggregate; the first rank has a state instead, and None stands for what nobody reads."""
        if isinstance(payload, tuple):
            return pack_aggregate(payload, is_sum, has_reset)
        n_parts = 2 - is_sum + has_reset
        if n_parts == 1 and payload is not None:
            return payload.unsqueeze(0)
        shape = (n_parts, *self.shard.state_shape(rows))
        packed = torch.zeros(shape, dtype=self.shard.compute_dtype, device=self.shard.out.device)
        if payload is not None:
            packed[0] = payload
        return packed

    def _states_after(self, packed: list[Tensor], is_sum: bool, has_reset: bool) -> list[Tensor]:
        """Return the states after the first ranks: a scan of their aggregates, of which the first is the state."""
        if len(packed) <= 1:
            return [each[0] for each in packed]
        dtype = aggregates.factor_dtype(self.shard.scan, self.shard.compute_dtype)
        multipliers, values, resets = unpack_aggregates(torch.stack(packed), is_sum, has_reset, dtype)
        states = torch.empty_like(values, memory_format=torch.contiguous_format)
        with torch.no_grad():
            executors.run(
                values, multipliers, 1.0, None, resets, states, None, axis=0, reverse=False, exclusive=False,
                flush=False,
            )  # fmt: skip
        return list(states)


def _payload(shard: Shard, rows: Rows, start: SpeculativeStart | None) -> aggregates.Parts | Tensor:
    """Return the aggregate of these rows; on the first rank, which passes its `start`, the state after them."""
    if start is None:
        return shard.reduce_rows(rows)
    state = start.state_after(rows)
    return shard.final_state(rows, shard.initial(rows)) if state is None else state
