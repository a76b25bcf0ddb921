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

import math
from typing import Any

import torch
from torch import Tensor

from upsweep._torch import aggregates, executors
from upsweep._utils.lru_cache import LRUCache
from upsweep.distributed import streams
from upsweep.distributed.communicator import Communicator, Meta
from upsweep.distributed.p2p_transport import SymmetricMemoryTransport
from upsweep.distributed.shard import Rows, Shard, pack_aggregate, unpack_aggregates
from upsweep.distributed.transport import Transport

_MESSAGE_COST = 0.1  # share of the time of two passes: what the messages of a pipeline cost


def _decays(meta: Meta) -> bool:
    return meta["decay_steps"] is not None


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
    layout agreed on that, the same is assumed until the probe is done. A wrong guess is scanned again.
    """

    def __init__(self, shard: Shard, comm: Communicator):
        self.shard = shard
        self.payload_rows: Rows | None = None  # the first ones that `two_pass` sends, and what it sends of them
        self.payload: aggregates.Parts | Tensor | None = None
        self._states: dict[Rows, Tensor] = {}  # after the rows that are scanned, from the first row on
        order = comm.order(shard.reverse)
        self._is_first, self._is_last = comm.rank == order[0], comm.rank == order[-1]
        self._n_ranks, self._is_async = comm.size, streams.is_async(shard.out.device)
        self._two_pass_cost = _two_pass_cost(shard.scan.gates is not None)
        has_history = self._is_async and shard.needs_probe
        layout = (shard.scan.shape, shard.scan.axis, shard.reverse, shard.scan.name, shard.out.device)
        history = (_decay_history.get(layout) if has_history else None) or ()
        is_assumed = len(history) == 2 and (history[0] is None) == (history[1] is None)
        self._decay_steps = history[1] if is_assumed else None
        if is_assumed and shard.n_rows > _MAX_SERIAL_ROWS:
            ready = torch.cuda.current_stream(shard.out.device).record_event()
            self._start()
            # The host waits for the probe below, so that its memory lives long enough.
            with streams.on_side_stream(shard.out.device, ready):
                wait_for_probe = shard.start_decay_probe()
        else:
            wait_for_probe = shard.start_decay_probe()
            if is_assumed:
                self._start()
        steps = wait_for_probe()
        if is_assumed and (self._decay_steps is None) != (steps is None):
            # Scan again in the groups of the right strategy: the bits must not depend on earlier calls.
            self._states, self.payload_rows, self.payload = {}, None, None
        self._decay_steps = steps
        if self._is_async:
            self._start()
        if has_history:
            _decay_history[layout] = (*history[-1:], steps)

    @property
    def meta(self) -> Meta:
        """This rank's metadata for the choice of the strategy."""
        return {
            "decay_steps": self._decay_steps, "n_groups": self.shard.n_groups, "two_pass_cost": self._two_pass_cost
        }  # fmt: skip

    def start_on_host(self) -> None:
        """Do on the CPU what a device does before the consensus, while the consensus is under way."""
        if not self._is_async:
            self._start()

    def _start(self) -> None:
        """Start the work of the strategy that these metadata lead to, unless it is started."""
        shard, n_groups = self.shard, self.shard.n_groups
        if not shard.length and shard.scan.initial is None:
            return
        strategy = _choose(self._decay_steps is not None, self._n_ranks, n_groups, self._two_pass_cost)
        n_scanned = max((rows.end for rows in self._states), default=0)
        if strategy == "two_pass":
            if self.payload_rows is None:
                self.payload_rows = shard.row_groups(min(2, n_groups))[0]
                if not self._is_last:  # whose aggregate is needed only for the final state
                    self.payload = _payload(shard, self.payload_rows, self if self._is_first else None)
        elif strategy == "local_with_fixup":
            if n_scanned < max(1, shard.n_rows):
                self._scan(Rows(n_scanned, shard.n_rows))
        elif self._is_first and not n_scanned:
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
        self.shard, self.comm, self.start = shard, comm, start
        self.chain = [rank for rank in comm.order(shard.reverse) if not all_meta[rank]["empty"]]
        self.metas = [all_meta[rank] for rank in self.chain]
        self.position = self.chain.index(comm.rank) if comm.rank in self.chain else None
        self.n_groups = max((meta["n_groups"] for meta in self.metas), default=1)
        self.returns_final = any(meta["return_final"] for meta in all_meta)
        self._epochs = [meta["transport_epoch"] for meta in all_meta]
        self._p2p: SymmetricMemoryTransport | None = None

    def run(self) -> Tensor | None:
        """Write the result; return the state after the last step of all ranks, if any rank returns it.

        The state may lie in memory that a later call overwrites.
        """
        if not self.chain:
            return None
        cost = max(meta["two_pass_cost"] for meta in self.metas)
        strategy = _choose(all(map(_decays, self.metas[1:])), len(self.chain), self.n_groups, cost)
        device = self.shard.out.device
        self._p2p = self.comm.p2p_transport(device, self._epochs)
        try:
            final: Tensor | None = getattr(self, strategy)()  # local_with_fixup, pipelined or two_pass
            return final
        except BaseException:
            self.comm.reset_transport(device)
            raise

    def _transport(self, n_bytes: int) -> Transport:
        """Return the transport for so many bytes per rank, in one message or several; all ranks agree on it."""
        return self._p2p if self._p2p is not None and self._p2p.fits(n_bytes) else self.comm.messages

    def _scan_first(self, rows: Rows) -> Tensor:
        """Scan these rows from the caller's initial state, or from nothing; return the state after them."""
        state = self.start.state_after(rows)
        return self.shard.scan_rows(rows, self.shard.initial(rows)) if state is None else state

    def local_with_fixup(self) -> Tensor | None:
        """Scan from nothing, then the first steps again from the state before the shard."""
        shard, position = self.shard, self.position
        value = shard.empty_state(shard.rows).zero_() if position is None else self._scan_first(shard.rows)
        if not self.returns_final:
            if len(self.chain) == 1:
                return None
            if len(self.chain) == self.comm.size == 2:
                return self._fixup_of_two(value)
        values = self._transport(value.nbytes).start_all_gather(value)()
        wait_for_isfinite = streams.start_isfinite(values)  # while the device goes on
        if position:
            shard.scan_rows(shard.rows, values[self.chain[position - 1]], self.metas[position]["decay_steps"])
        # Infinities and NaN never decay; they pass through all shards as they pass through all steps.
        is_finite = wait_for_isfinite()
        if not all(is_finite[rank] for rank in self.chain[:-1]):
            return self.pipelined()
        return values[self.chain[-1]] if self.returns_final else None

    def _fixup_of_two(self, value: Tensor) -> Tensor | None:
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
            shard.scan_rows(shard.rows, value, self.metas[1]["decay_steps"])
        channel.close()
        return None if wait_for_isfinite()[0] else self.pipelined()

    def pipelined(self) -> Tensor | None:
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
            return None
        final = shard.concat_states(states) if states else shard.empty_state(shard.rows).zero_()
        return transport.start_all_gather(final)()[self.chain[-1]]

    def two_pass(self) -> Tensor | None:
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
        # A product that vanished makes NaN of an infinite state, and the steps of a shard need not.
        are_finite = [wait_for_isfinite() for wait_for_isfinite in waits_for_isfinite]
        if not all(is_finite[rank] for is_finite in are_finite for rank in chain[:-1]):
            return self.pipelined()
        return shard.concat_states(finals) if self.returns_final else None

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
