// Sums of few long lines that the shared memory of all processors holds, or most of them: one block a processor, each with
// a part of one line. A block reads its part once, reduces it, publishes one number, waits for those of the parts before
// its own, and then writes all results: memory waits once for the exchange, instead of tile by tile.
//
// A part is cut into pieces of kRun vectors a lane; a lane's vectors are neighbours. kRun is odd, so that lanes read their
// runs from different banks, and that a warp's vectors have the order of memory in shared memory. What does not fit is read
// again: the first pieces of a part, after the last ones are scanned, from the second-level cache if that still has them.
//
// Bytes an element: x is read once (twice, of the pieces that do not fit), out is written once. Only for one factor of
// (0, 1] and elements whose sums cannot overflow in float64 (nor, but for bfloat16, those of a vector in float32): a state
// that is not finite then stays so, whatever the power of the factor has become (carry_over).
#pragma once

#include <cmath>

#include "common/async_copy.cuh"
#include "common/line_access.cuh"
#include "plan/scan.hpp"
#include "scan/look_back.cuh"

namespace upsweep {

extern __shared__ uint4 staging[];

// The state after steps that add up to `value` and whose product is `factor`, which may have vanished.
__device__ inline double carry_over(double factor, double state, double value) {
  return is_finite(state) ? fma(factor, state, value) : state + value;
}

// What the sums of a warp's lanes add up to, each a factor after the one before it: before a lane, and up to it. doubled:
// the factor of 1, 2, 4, ... lanes.
struct LaneSums {
  double before, until;

  __device__ LaneSums(double sum, const double (&doubled)[5], int lane) : until(sum) {
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      const double earlier = shuffle_up(until, 1 << i, 32);
      if (lane >= 1 << i) until = carry_over(doubled[i], earlier, until);
    }
    before = shuffle_up(until, 1, 32);
    if (lane == 0) before = -0.0;
  }
};

// Numbers of which each lane of a warp takes some neighbours: how many each takes of n.
__host__ __device__ inline int numbers_of_a_lane(int n) { return (n + 31) / 32; }

// Powers of the factor.
struct ResidentPowers {
  double step, vector, run, warp, part;                  // of one of each: a run is a lane's, `warp` are a warp's runs
  double of_runs[5];                                     // of 1, 2, 4, 8, 16 lanes' runs
  double of_warps[5], of_parts[5];                       // of what so many lanes take of warps' sums, and of parts'
  double of_pieces[ResidentTuning::kMostPieces];         // of 0, 1, 2, ... pieces
};
template <class T>
ResidentPowers resident_powers(const Plan& plan) {
  using Tuning = ResidentTuning;
  ResidentPowers p;
  p.step = plan.problem.gamma_re;
  p.vector = std::pow(p.step, 16 / int(sizeof(T)));
  p.run = std::pow(p.vector, Tuning::kRun);
  p.warp = std::pow(p.run, 32);
  p.part = std::pow(p.step, double(plan.tile));
  const int warps = numbers_of_a_lane(plan.resident.pieces * (Tuning::kThreads / 32));
  const int parts = numbers_of_a_lane(plan.resident.parts);
  for (int i = 0; i < 5; ++i) {
    p.of_runs[i] = std::pow(p.run, 1 << i);
    p.of_warps[i] = std::pow(p.warp, warps << i);
    p.of_parts[i] = std::pow(p.part, parts << i);
  }
  for (int i = 0; i < Tuning::kMostPieces; ++i) p.of_pieces[i] = std::pow(p.run, i * Tuning::kThreads);
  return p;
}

// The sums of n numbers in order, each `factor` after the one before it, by a warp of which each lane takes `each`, up to
// kEach: what precedes a lane's numbers, and what all add up to. load(first, count, values) fills in a lane's.
template <int kEach>
struct OrderedSums {
  int first, count;                // of a lane's numbers
  double values[kEach];
  double before, all;

  template <class Load>
  __device__ OrderedSums(int n, int each, double factor, const double (&doubled)[5], Load load) {
    const int lane = threadIdx.x % 32;
    // The last lane ends with the last number, so that nothing comes after it.
    first = max(0, n - (32 - lane) * each);
    count = max(0, n - (31 - lane) * each) - first;
    load(first, count, values);
    double sum = -0.0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (i < count) sum = carry_over(factor, sum, values[i]);
    const LaneSums sums(sum, doubled, lane);
    before = sums.before;
    all = shuffle(sums.until, 31);
  }
};

// The part of a line that a block scans, in vectors of out's memory; the first and the last of a line may reach beyond it.
template <class T, bool kReverse>
struct ResidentPart {
  static constexpr int kPer = 16 / sizeof(T), kRun = ResidentTuning::kRun, kWarpVectors = 32 * kRun;
  const T* x;                      // where the line's first vector begins
  T* out;
  int phase, length;               // the line's elements begin `phase` after it
  int vectors;                     // of the line
  int begin, end;                  // of the part, in scan order

  __device__ ResidentPart(const Problem& p, const ResidentShape& shape, int64_t row, int part)
      : length(static_cast<int>(p.length)) {
    const LineIndex index(p, row);
    const int64_t lowest = kReverse ? 1 - p.length : 0;
    T* const first = reinterpret_cast<T*>(index.in(p.out)) + lowest;
    phase = reinterpret_cast<uintptr_t>(first) / sizeof(T) % kPer;
    out = first - phase;
    x = reinterpret_cast<const T*>(index.in(p.x)) + lowest - phase;
    vectors = (phase + length + kPer - 1) / kPer;
    begin = part * shape.part_vectors;
    end = min(begin + shape.part_vectors, vectors);
  }

  // Of a warp's vectors, which begin with the u-th of the line in scan order: where the lowest is in memory.
  __device__ int lowest_of(int u) const { return kReverse ? vectors - u - kWarpVectors : u; }
  __device__ bool has(int v) const {
    const int u = kReverse ? vectors - 1 - v : v;
    return u >= begin && u < end;
  }
  __device__ bool is_inside(int v) const { return v * kPer >= phase && (v + 1) * kPer <= phase + length; }
  __device__ bool is_element(int64_t at) const { return at >= phase && at < phase + length; }

  // Whether a warp's vectors are all in the part, and in the line.
  __device__ bool is_whole(int u) const {
    const int low = lowest_of(u);
    return u >= begin && u + kWarpVectors <= end && is_inside(low) && is_inside(low + kWarpVectors - 1);
  }

  // once: it is not read again.
  __device__ void fetch(int u, uint4* to, int lane, bool once) const {
    if (!is_whole(u)) return fetch_ends(*this, u, to, lane);
    const uint4* const from = reinterpret_cast<const uint4*>(x) + lowest_of(u) + lane;
    if (once) {
#pragma unroll
      for (int i = 0; i < kRun; ++i) copy_async_16<true>(to + i * 32 + lane, from + i * 32);
    } else {
#pragma unroll
      for (int i = 0; i < kRun; ++i) copy_async_16(to + i * 32 + lane, from + i * 32);
    }
  }
  // Elements outside the line, or the part, add nothing.
  static __device__ __noinline__ void fetch_ends(ResidentPart part, int u, uint4* to, int lane) {
    for (int i = lane; i < kWarpVectors; i += 32) {
      const int v = part.lowest_of(u) + i;
      if (part.has(v) && part.is_inside(v)) {
        copy_async_16(to + i, part.x + int64_t(v) * kPer);
        continue;
      }
      union { uint4 word; T part[kPer]; } ends;
      for (int e = 0; e < kPer; ++e) {
        const int64_t at = int64_t(v) * kPer + e;
        ends.part[e] = part.has(v) && part.is_element(at) ? part.x[at] : from_double<T>(-0.0);
      }
      to[i] = ends.word;
    }
  }
  __device__ void flush(int u, const uint4* from, int lane) const {
    if (!is_whole(u)) return flush_ends(*this, u, from, lane);
    uint4* const to = reinterpret_cast<uint4*>(out) + lowest_of(u) + lane;
#pragma unroll
    for (int i = 0; i < kRun; ++i) __stcs(to + i * 32, from[i * 32 + lane]);
  }
  static __device__ __noinline__ void flush_ends(ResidentPart part, int u, const uint4* from, int lane) {
    for (int i = lane; i < kWarpVectors; i += 32) {
      const int v = part.lowest_of(u) + i;
      if (!part.has(v)) continue;
      if (part.is_inside(v)) {
        __stcs(reinterpret_cast<uint4*>(part.out) + v, from[i]);
        continue;
      }
      union { uint4 word; T part[kPer]; } ends;
      ends.word = from[i];
      for (int e = 0; e < kPer; ++e) {
        const int64_t at = int64_t(v) * kPer + e;
        if (part.is_element(at)) part.out[at] = ends.part[e];
      }
    }
  }

  // The j-th vector of a lane's run in scan order.
  static __device__ int place(int lane, int j) { return kReverse ? (32 - lane) * kRun - 1 - j : lane * kRun + j; }
  // What the elements of a lane's run add up to; kWrites: results from `state` on take the elements' place. Of 16-bit
  // elements, a vector is added up in float32.
  template <bool kWrites>
  static __device__ double walk(uint4* of_warp, int lane, const ResidentPowers& powers, double state) {
    using Local = decltype(local_of(T()));
    const Local gamma = convert<Local>(powers.step);
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      union { uint4 word; T part[kPer]; } u;
      u.word = of_warp[place(lane, j)];
      Local sum = static_cast<Local>(-0.0), s = convert<Local>(state);
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        T& element = u.part[kReverse ? kPer - 1 - e : e];
        const Local value = local_of(element);
        if (sizeof(T) == 2) sum = advance(gamma, sum, value);
        s = advance(gamma, s, value);
        if (kWrites) element = from_local<T>(s);
      }
      state = sizeof(T) == 2 ? carry_over(powers.vector, state, convert<double>(sum)) : convert<double>(s);
      if (kWrites) of_warp[place(lane, j)] = u.word;
    }
    return state;
  }
};

// Until all groups of copies but the newest `pending` have arrived.
__device__ inline void wait_for_copies_but(int pending) {
  static_assert(ResidentTuning::kMostSlots <= 6);
  switch (pending) {
    case 0: return wait_for_copies<0>();
    case 1: return wait_for_copies<1>();
    case 2: return wait_for_copies<2>();
    case 3: return wait_for_copies<3>();
    case 4: return wait_for_copies<4>();
    default: return wait_for_copies<5>();
  }
}

// The blocks of a line follow each other, and wait for each other where there are several: a cooperative launch then.
template <class T, bool kReverse>
__global__ void __launch_bounds__(ResidentTuning::kThreads, 1)
    scan_resident_lines(const __grid_constant__ Problem p, const __grid_constant__ ResidentShape shape,
                        const __grid_constant__ ResidentPowers powers, const __grid_constant__ Workspace w) {
  using Part = ResidentPart<T, kReverse>;
  constexpr int kThreads = ResidentTuning::kThreads, kWarps = kThreads / 32, kWarpVectors = Part::kWarpVectors;
  // Of the warps of all pieces: what each adds, then what those before it in the part add.
  __shared__ double of_warps[ResidentTuning::kMostPieces * kWarps];
  __shared__ double state_before;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part_index = static_cast<int>(blockIdx.x % shape.parts);
  const Part part(p, shape, blockIdx.x / shape.parts, part_index);
  // What the lanes before it in its warp add, for each thread and piece.
  double* const of_lanes = reinterpret_cast<double*>(staging + shape.slots * kWarps * kWarpVectors) + threadIdx.x;
  const auto place_of = [&](int slot) { return staging + (slot * kWarps + warp) * kWarpVectors; };
  // The first lanes of the first piece are before the part, so that the last one ends with it.
  const int lanes_before = shape.pieces * kThreads - shape.part_vectors / Part::kRun;
  const auto first_of = [&](int piece) {
    return part.begin + (piece * kWarps + warp) * kWarpVectors - lanes_before * Part::kRun;
  };
  const int again = shape.pieces - shape.slots;   // so many of the first pieces do not stay
  const auto fetch = [&](int piece, int slot) {
    if (piece < shape.pieces) part.fetch(first_of(piece), place_of(slot), lane, piece >= again);
    commit_copies();
  };
  for (int piece = 0; piece < shape.slots; ++piece) fetch(piece, piece);
  // Of a lane in its warp; of a thread in the first piece and in the second.
  const double to_lane = power(powers.run, lane);
  const double to_first = power(powers.run, max(0, static_cast<int>(threadIdx.x) - lanes_before));
  const double to_second = power(powers.run, kThreads + static_cast<int>(threadIdx.x) - lanes_before);
  for (int piece = 0, slot = 0; piece < shape.pieces; ++piece) {
    wait_for_copies_but(shape.slots - 1);
    __syncwarp();
    const double sum = Part::template walk<false>(place_of(slot), lane, powers, -0.0);
    __syncwarp();
    fetch(piece + shape.slots, slot);
    slot = slot + 1 == shape.slots ? 0 : slot + 1;
    const LaneSums sums(sum, powers.of_runs, lane);
    of_lanes[piece * kThreads] = sums.before;
    if (lane == 31) of_warps[piece * kWarps + warp] = sums.until;
  }
  wait_for_workspace();
  __syncthreads();
  if (warp == 0) {
    constexpr int kEach = (ResidentTuning::kMostPieces * kWarps + 31) / 32, kEachPart = ResidentTuning::kMostParts / 32;
    const int n = shape.pieces * kWarps;
    const OrderedSums<kEach> sums(n, numbers_of_a_lane(n), powers.warp, powers.of_warps,
                                  [&](int first, int count, double (&values)[kEach]) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (i < count) values[i] = of_warps[first + i];
    });
    if (lane == 31 && part_index + 1 < shape.parts) store_relaxed(w.tile_words + blockIdx.x, word_of(sums.all));
    double before = sums.before;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= sums.count) break;
      of_warps[sums.first + i] = before;
      before = carry_over(powers.warp, before, sums.values[i]);
    }
    const Word* const words = w.tile_words + (blockIdx.x - part_index);
    const OrderedSums<kEachPart> parts(part_index, numbers_of_a_lane(shape.parts), powers.part, powers.of_parts,
                                       [&](int first, int count, double (&values)[kEachPart]) {
      Word word[kEachPart][1];
      wait_for(words + first, count, 1, word);
#pragma unroll
      for (int i = 0; i < kEachPart; ++i)
        if (i < count) values[i] = number_of(word[i][0]);
    });
    if (lane == 0) state_before = parts.all;
  }
  __syncthreads();
  // The pieces that are there, then the first ones, which take the places of those that are done.
  for (int i = 0, slot = again % shape.slots; i < shape.pieces; ++i) {
    const int piece = i < shape.slots ? again + i : i - shape.slots;
    wait_for_copies_but(shape.slots - 1);
    __syncwarp();
    const double before = carry_over(to_lane, of_warps[piece * kWarps + warp], of_lanes[piece * kThreads]);
    const double from_begin = piece ? to_second * powers.of_pieces[piece - 1] : to_first;
    Part::template walk<true>(place_of(slot), lane, powers, carry_over(from_begin, state_before, before));
    __syncwarp();
    part.flush(first_of(piece), place_of(slot), lane);
    __syncwarp();
    if (i < again) fetch(i, slot);
    else commit_copies();
    slot = slot + 1 == shape.slots ? 0 : slot + 1;
  }
}

}  // namespace upsweep
