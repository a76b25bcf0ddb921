"""Checks of each process of a torch.distributed group: ``python ranks.py RANK SIZE BACKEND FILE``.

Prints one line of JSON for each check: its name, and the error or null.
"""

import datetime
import json
import os
import sys
import traceback

import numpy as np
import strategy_checks  # noqa: F401  # its checks
import torch
import torch.distributed as dist
import transport_checks  # noqa: F401
import upsweep
import upsweep.distributed as sharded
from rank_world import CHECKS, TIMEOUT, World, check, close, raises


def scans(world, length=61, dtype=torch.float64):
    """The name of each scan, its arguments, and this rank's shards of them."""
    x, gates = world.random(3, length, dtype=dtype), world.random(3, length, seed=1, dtype=dtype)
    part = world.cut(length)
    yield "cumulative_sum", (x,), (x[:, part],)
    yield "discounted_cumsum", (x, 0.9), (x[:, part], 0.9)
    yield "discounted_cumsum", (x, gates), (x[:, part], gates[:, part])
    yield "linear_recurrence", (gates, x), (gates[:, part], x[:, part])


@check
def shards_together_are_the_whole(world):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6), (torch.complex64, 1e-6)):
        part = world.cut(61)
        for name, whole, shards in scans(world, dtype=dtype):
            reset = world.random(3, 61, seed=2) > 0.8
            initial = world.random(3, seed=3)
            for reverse in (False, True):
                for keywords in ({}, {"reset": reset}, {"initial": initial}, {"exclusive": True, "reset": reset}):
                    arguments = {**keywords, "reverse": reverse, "return_final": True}
                    expected = getattr(upsweep, name)(*whole, **arguments)
                    if "reset" in arguments:
                        arguments["reset"] = reset[:, part]
                    result = getattr(sharded, name)(*shards, **arguments)
                    close(result[0], expected[0][:, part], tolerance)
                    close(result[1], expected[1], tolerance)


@check
def integers_and_other_axes(world):
    x = (world.random(40, 3) * 100).long()
    part = world.cut(40)
    close(sharded.cumulative_sum(x[part], axis=0), upsweep.cumulative_sum(x, axis=0)[part])
    zeros = torch.zeros(40, 3, dtype=torch.complex128, device=world.device)[part]
    close(sharded.discounted_cumsum(zeros, 1e308 + 1.7e308j, axis=0), zeros)  # `abs` of the factor raises
    complex_tokens = world.random(2, 40, dtype=torch.complex128) * (1 + 2j)
    gates = world.random(2, 40)
    expected = upsweep.linear_recurrence(gates, complex_tokens)
    close(sharded.linear_recurrence(gates[:, part], complex_tokens[:, part]), expected[:, part])


@check
def infinities_stop_at_resets(world):
    gates, tokens = torch.ones(world.size * 4), torch.ones(world.size * 4)
    tokens[1], gates[0] = np.inf, np.nan
    reset = torch.zeros(world.size * 4, dtype=torch.bool)
    reset[6] = True
    part = slice(4 * world.rank, 4 * world.rank + 4)
    gates, tokens, reset = (t.to(world.device) for t in (gates, tokens, reset))
    expected = upsweep.linear_recurrence(gates, tokens, reset=reset)
    result = sharded.linear_recurrence(gates[part], tokens[part], reset=reset[part])
    assert torch.equal(result, expected[part]), (result, expected)


@check
def gradients_are_those_of_the_whole(world):
    part = world.cut(23)
    for order in (1, 2):
        for reverse in (False, True):
            first = world.rank == (world.size - 1 if reverse else 0)
            gates, tokens = world.random(2, 23, seed=1).requires_grad_(), world.random(2, 23).requires_grad_()
            initial = world.random(2, seed=3).requires_grad_()
            reset = world.random(2, 23, seed=4) > 0.8
            weights = world.random(2, 23, seed=5)

            def derived(y, final, weights, inputs, order=order, ranks=1):
                # Each rank adds the final state to its loss, so the loss of the whole has it once per rank.
                loss = (y.square() * weights).sum() + ranks * final.square().sum()
                first_order = torch.autograd.grad(loss, inputs, create_graph=order == 2, materialize_grads=True)
                if order == 1:
                    return first_order
                return torch.autograd.grad(sum(g.square().sum() for g in first_order), inputs)

            y, final = upsweep.linear_recurrence(
                gates, tokens, initial=initial, reset=reset, reverse=reverse, return_final=True
            )
            expected = derived(y, final, weights, (gates, tokens, initial), ranks=world.size)
            shards = [t.detach()[:, part].clone().requires_grad_() for t in (gates, tokens)]
            shards.append(initial.detach().clone().requires_grad_())
            y, final = sharded.linear_recurrence(
                *shards[:2], initial=shards[2], reset=reset[:, part], reverse=reverse, return_final=True
            )
            result = derived(y, final, weights[:, part], shards if first else shards[:2])
            for a, b in zip(result, (expected[0][:, part], expected[1][:, part], expected[2])):
                close(a, b, 1e-10)
            # Without an initial state, the result of the first rank does not depend on the other ranks.
            y = upsweep.linear_recurrence(gates, tokens, reverse=reverse)
            expected = derived(y, y.new_zeros(()), weights, (gates, tokens))
            y = sharded.linear_recurrence(*shards[:2], reverse=reverse)
            result = derived(y, y.new_zeros(()), weights[:, part], shards[:2])
            for a, b in zip(result, expected):
                close(a, b[:, part], 1e-10)


def gradients(module, name, part, arrays, options, reverse, n_ranks):
    """The gradients of a scan of this part; the loss includes the final state once per rank."""
    x, factor, weights = arrays
    operands, keywords = [x[:, part].clone()], {"reverse": reverse, "return_final": True}
    arguments = operands[:]
    if isinstance(factor, torch.Tensor):
        operands.append(factor.clone() if factor.shape[1] == 1 else factor[:, part].clone())
        arguments.append(operands[1])
    elif factor is not None:
        arguments.append(factor)
    if options:
        operands.append(options["initial"].clone())
        keywords.update(reset=options["reset"][:, part], initial=operands[-1])
    for operand in operands:
        operand.requires_grad_()
    y, final = getattr(module, name)(*(arguments[::-1] if name == "linear_recurrence" else arguments), **keywords)
    ((y * weights[:, part]).sum() + n_ranks * (final * weights[:, 0]).sum()).backward()
    return [operand.grad for operand in operands]


@check
def second_derivatives_of_what_is_linear(world):
    """The first derivatives do not depend on the result."""
    part = slice(8 * world.rank, 8 * world.rank + 8)
    shape = (2, 8 * world.size)
    gates, tokens, weights = (world.random(*shape, seed=seed) for seed in range(3))

    def second(module, part):
        leaves = [t[:, part].clone().requires_grad_() for t in (gates, tokens)]
        y = module.linear_recurrence(*leaves)
        first = torch.autograd.grad((y * weights[:, part]).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    for result, expected in zip(second(sharded, part), second(upsweep, slice(None))):
        close(result, expected[:, part], 1e-10)
    tokens = (10 * tokens).long()
    leaf = gates[:, part].clone().requires_grad_()
    y = sharded.linear_recurrence(leaf, tokens[:, part])
    (result,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
    whole = gates.clone().requires_grad_()
    (expected,) = torch.autograd.grad(upsweep.linear_recurrence(whole, tokens).sum(), whole)
    close(result.detach(), expected[:, part], 1e-10)


@check
def every_scan_has_its_gradients(world):
    """Numbers, rows and steps as factors, with final states; float32 too, whose sums are computed in float64."""
    part = slice(40 * world.rank // world.size, 40 * (world.rank + 1) // world.size)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        x, weights = world.random(3, 40, dtype=dtype), world.random(3, 40, seed=5, dtype=dtype)
        reset, initial = world.random(3, 40, seed=2) > 0.8, world.random(3, seed=3, dtype=dtype)
        for rank in range(1, world.size):  # at both sides of the shards' ends
            reset[0, 40 * rank // world.size] = reset[1, 40 * rank // world.size - 1] = True
        rows, gates = world.random(3, 1, seed=6, dtype=dtype), world.random(3, 40, seed=1, dtype=dtype)
        for name, factor in (
            ("cumulative_sum", None), ("discounted_cumsum", 0.7), ("discounted_cumsum", rows),
            ("discounted_cumsum", gates), ("linear_recurrence", gates),
        ):  # fmt: skip
            for reverse in (False, True):
                for options in ({}, {"reset": reset, "initial": initial}):
                    first = world.rank == (world.size - 1 if reverse else 0)
                    arrays = (x, factor, weights)
                    whole = gradients(upsweep, name, slice(None), arrays, options, reverse, world.size)
                    result = gradients(sharded, name, part, arrays, options, reverse, 1)
                    close(result[0], whole[0][:, part], tolerance)
                    if isinstance(factor, torch.Tensor) and factor.shape[1] > 1:
                        close(result[1], whole[1][:, part], tolerance)
                    elif isinstance(factor, torch.Tensor):
                        total = result[1].clone()
                        dist.all_reduce(total)
                        close(total, whole[1], tolerance)
                    if options and first:
                        close(result[-1], whole[-1], tolerance)


@check
def a_rank_without_parameters_takes_part(world):
    x = world.random(2, 8, seed=world.rank)
    if world.rank == world.size - 1:
        x.requires_grad_()
    sharded.cumulative_sum(x).sum().backward()
    if x.requires_grad and world.rank == world.size - 1:
        close(x.grad, torch.arange(8.0, 0, -1, dtype=x.dtype, device=x.device).expand(2, 8))


@check
def counts_are_those_of_all(world):
    keys = torch.from_numpy(np.random.default_rng(0).integers(0, 9, 100)).to(world.device)
    keys[-1] = 20
    part = world.cut(100)
    close(sharded.bincount(keys[part]), torch.bincount(keys))
    close(sharded.bincount(keys[part], minlength=30), torch.bincount(keys, minlength=30))
    counts, dropped = sharded.bincount(keys[part], length=5, invalid="drop", return_invalid=True)
    close(counts, torch.bincount(keys)[:5])
    assert dropped == (keys >= 5).sum()
    for dtype in (torch.float32, torch.float64, torch.int32, torch.complex64):
        weights = (world.random(100) * 100).to(dtype)
        result = sharded.bincount(keys[part], weights[part], length=np.int64(21))
        close(result, upsweep.bincount(keys, weights), 1e-6)
    batch = keys[:99].reshape(3, 33)
    rows = world.cut(33)
    expected = upsweep.bincount(batch, axis=1, length=21)
    close(sharded.bincount(batch[:, rows], axis=1, length=21), expected)
    weights = world.random(100).requires_grad_()
    sharded.bincount(keys[part], weights[part], length=21).square().sum().backward()
    whole = weights.detach().clone().requires_grad_()
    (world.size * upsweep.bincount(keys, whole, length=21).square().sum()).backward()
    close(weights.grad[part], whole.grad[part])


@check
def an_error_of_one_rank_is_raised_by_all(world):
    bad = world.size - 1
    x = world.random(3, 8)
    axis = 7 if world.rank == bad else -1
    kind, words = (
        (IndexError, "axis 7") if world.rank == bad else (RuntimeError, f"rank {bad} of the group raised")
    )
    if world.rank == bad:
        kind = np.exceptions.AxisError
    raises(kind, words, lambda: sharded.cumulative_sum(x, axis=axis))
    close(sharded.cumulative_sum(x)[:, -1], (world.rank + 1) * x.sum(1))  # and the group goes on
    keys = torch.tensor([0, -1 if world.rank == bad else 1], device=world.device)
    kind, words = (
        (ValueError, "must not be negative") if world.rank == bad else (RuntimeError, "must not be negative")
    )
    raises(kind, words, lambda: sharded.bincount(keys))
    argument = "no tensor" if world.rank == bad else x
    raises(*((TypeError, "x: ") if world.rank == bad else (RuntimeError, "TypeError: x: ")),
           lambda: sharded.cumulative_sum(argument))  # fmt: skip
    argument = x.to("meta") if world.rank == bad else x
    raises(*((TypeError, "got one on meta") if world.rank == bad else (RuntimeError, "got one on meta")),
           lambda: sharded.cumulative_sum(argument))  # fmt: skip


@check
def shards_that_disagree(world):
    rows = 3 + (world.rank == 0)
    raises(ValueError, "shards: the ranks' state differ: rank 0 [4], rank 1 [3]",
           lambda: sharded.cumulative_sum(world.random(rows, 8)))  # fmt: skip
    dtype = torch.complex128 if world.rank == 0 else torch.float64
    raises(
        ValueError, "shards: the ranks' dtype differ", lambda: sharded.cumulative_sum(world.random(8, dtype=dtype))
    )
    raises(ValueError, "shards: the ranks' reverse differ",
           lambda: sharded.cumulative_sum(world.random(8), reverse=world.rank == 0))  # fmt: skip
    other, x = world.rank == 0, world.random(8)
    raises(ValueError, "shards: the ranks' scan differ",
           lambda: (sharded.discounted_cumsum if other else sharded.linear_recurrence)(x, x))  # fmt: skip
    keys = torch.zeros(4, 3 + other, dtype=torch.long, device=world.device)
    raises(ValueError, "shards: the ranks' rows differ", lambda: sharded.bincount(keys, axis=0, length=2))
    keys = keys[0, :3]
    raises(
        ValueError, "shards: the ranks' length differ", lambda: sharded.bincount(keys, length=2 if other else None)
    )
    weights, dtype = (None, torch.float64) if other else (keys.double(), None)
    raises(ValueError, "shards: the ranks' summed in differ", lambda: sharded.bincount(keys, weights, dtype=dtype))


@check
def groups_of_some_ranks(world):
    group = dist.new_group([0, 1])
    x = world.random(3, 8)
    if world.rank < 2:
        close(sharded.cumulative_sum(x, group=group)[:, -1], (world.rank + 1) * x.sum(1))
    else:
        raises(ValueError, "group: this process is not in it", lambda: sharded.cumulative_sum(x, group=group))


def main():
    rank, size, backend, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    upsweep.set_num_threads(1)
    on_cuda = "nccl" in backend
    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    timeout = datetime.timedelta(seconds=TIMEOUT)
    dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=size, timeout=timeout)
    for function in CHECKS:
        try:
            function(World(rank, size, device))
            error = None
        except Exception:
            error = traceback.format_exc()
        print(json.dumps([function.__name__, error]), flush=True)
        if error is not None:
            os._exit(1)  # without waiting; the others raise after the time-out
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
