// The gradients of gates and tokens along lines, of y[t] = a[t] * y[t-1] + x[t], in one pass the other way round:
//
//   gx[t] = g[t] + a[t+1] * gx[t+1],    ga[t] = gx[t] * y[t-1],    ga = 0 at the first step, which reads no gate
//
// Bytes an element: g, gates and y are read once, gx and ga are written once; 20 for float32. Two kernels, chosen in
// plan/scan.cpp, for contiguous lines in memory that begin alike in all arrays:
//
//   backward_packed_lines  each warp takes as many lines as it holds elements of
//   backward_lines         a block a line, tile after tile, the state carried from one to the next
//
// Positions and times count in the order of this pass: a step's gate is the one of the time before it, and its y the
// one of the time after it.
#pragma once

#include "scan/lines.cuh"

namespace upsweep {

// x is g and out is gx; y and ga lie like them.
struct BackwardProblem {
  Problem scan;
  const char* y;
  char* g_gates;
};

// Staged lines with y as a third array. gx goes to the place of g and ga to the place of y.
template <class T, bool kReverse>
struct StagedBackward : Staged<T, kReverse, kLaneElements<T>, true> {
  using Base = Staged<T, kReverse, kLaneElements<T>, true>;
  using typename Base::Local;
  using Base::base;
  using Base::kPer;
  using Base::kSubruns;
  using Base::kUnroll;
  using Base::kVec;
  using Base::kVectors;
  using Base::kWarpPositions;
  using Base::kWarpVectors;
  using Base::length;
  using Base::lowest;
  static constexpr int kStage = 3 * kWarpVectors;
  static constexpr bool kInPlace = false;   // the gates are those of the steps before, and ga is stored too

  const T* y;
  T* g_gates;
  // Neighbours' elements, of which the second does not stay where it is read: see look_aside().
  T gate_before, y_after;
  mutable T gate;                  // the last one of the vector that was taken last

  __device__ StagedBackward(const BackwardProblem& p, int64_t row) : StagedBackward(p, row, 1) {}
  // n lines from `row` on, as one.
  __device__ StagedBackward(const BackwardProblem& p, int64_t row, int n) {
    length = n * static_cast<int>(p.scan.length);
    const int64_t first = row * p.scan.length + (kReverse ? length - 1 : 0);
    this->x = reinterpret_cast<const T*>(p.scan.x.data) + first;
    this->gates = reinterpret_cast<const T*>(p.scan.gates.data) + first;
    this->out = reinterpret_cast<T*>(p.scan.out.data) + first;
    y = reinterpret_cast<const T*>(p.y) + first;
    g_gates = reinterpret_cast<T*>(p.g_gates) + first;
    this->set_phase();
  }

  static __device__ int64_t offset(int t) { return kReverse ? -int64_t(t) : int64_t(t); }

  template <bool>
  __device__ void fetch(int warp_position, int to, int lane) const {
    const int t = this->time(warp_position);
    if (this->whole(warp_position, kWarpPositions)) {
      Base::fetch_whole(this->x, t, to, lane);
      Base::fetch_whole(this->gates, t, to + kWarpVectors, lane);
      Base::fetch_whole(y, t, to + 2 * kWarpVectors, lane);
    } else {
      // The last gate in this order is the one that is not read: whatever it is, it meets no state.
      Base::fetch_pieces(this->x, this->phase, t, 0, length, to, from_double<T>(-0.0));
      Base::fetch_pieces(this->gates, this->phase, t, 0, length - 1, to + kWarpVectors, from_double<T>(1.0));
      Base::fetch_pieces(y, this->phase, t, 0, length, to + 2 * kWarpVectors, from_double<T>(0.0));
    }
  }
  template <bool kGated>
  __device__ void fetch_again(int position) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    fetch<kGated>(position - lane * kVec, base, lane);
    commit_copies();
    wait_for_copies<0>();
    __syncwarp();
  }

  // What the warp's first and last lane need of the elements beside the warp's: a gate, and a y.
  __device__ T fetch_edge(int warp_position, int lane) const {
    const int t = this->time(warp_position);
    if (lane == 0) return t > 0 && t < length ? this->gates[offset(t - 1)] : from_double<T>(1.0);
    if (lane == 31 && t + kWarpPositions < length) return y[offset(t + kWarpPositions)];
    return from_double<T>(0.0);
  }

  // One element of a lane's vector j: its first in scan order, or its last.
  static __device__ T element(int from, int lane, int j, bool last) {
    const uint32_t vector = kReverse ? Base::place(31 - lane, kVectors - 1 - j) : Base::place(lane, j);
    return reinterpret_cast<const T*>(&staging[from + vector])[last == kReverse ? 0 : kPer - 1];
  }

  // Before any lane of the warp stores results, and once: they are kept when elements are fetched again.
  __device__ void look_aside(T edge, int lane) {
    gate_before = lane > 0 ? element(base + kWarpVectors, lane - 1, kVectors - 1, true) : edge;
    y_after = lane < 31 ? element(base + 2 * kWarpVectors, lane + 1, 0, false) : edge;
    __syncwarp();
  }

  // Vectors are taken one after the other from the first of a sub-run on.
  template <bool>
  __device__ void take(int, int j, T (&x_out)[kPer], T (&a_out)[kPer]) const {
    Base::read(base, j, x_out);
    T gates_here[kPer];
    Base::read(base + kWarpVectors, j, gates_here);
    if (j == 0) gate = gate_before;
    else if (j % (kVectors / kSubruns) == 0) gate = element(base + kWarpVectors, threadIdx.x % 32, j - 1, true);
    a_out[0] = gate;
#pragma unroll
    for (int e = 1; e < kPer; ++e) a_out[e] = gates_here[e - 1];
    gate = gates_here[kPer - 1];
  }

  template <bool kWhole>
  __device__ void store(int position, int j, const Local (&gx)[kPer]) const {
    const int to_last = length - 1 - (this->time(position) + j * kPer);
    store_both(position, j, gx, to_last >= 0 && to_last < kPer ? 1u << to_last : 0);
  }
  // ends: a bit for each element that is the last of its line, whose gate is not read.
  __device__ void store_both(int position, int j, const Local (&gx)[kPer], uint32_t ends) const {
    const int from = base + 2 * kWarpVectors;
    T y_here[kPer];
    Base::read(from, j, y_here);
    const T y_next = j + 1 < kVectors ? element(from, threadIdx.x % 32, j + 1, false) : y_after;
    Local ga[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) ga[e] = product(gx[e], local_of(e + 1 < kPer ? y_here[e + 1] : y_next));
    if (ends) {
#pragma unroll
      for (int e = 0; e < kPer; ++e)
        if (ends >> e & 1) ga[e] = 0;
    }
    Base::template store<true>(position, j, gx);
    Local part[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) part[e] = ga[kReverse ? kPer - 1 - e : e];
    staging[from + Base::place_of_lane(j)] = vector_of<T>(part);
  }

  __device__ void flush(int warp_position, int lane) const {
    const int t = this->time(warp_position), from = base + 2 * kWarpVectors;
    __syncwarp();
    if (this->whole(warp_position, kWarpPositions)) {
      const int64_t at = lowest(t) + lane * kPer;
#pragma unroll kUnroll
      for (int i = 0; i < kVectors; ++i) {
        const uint32_t vector = Base::place_in_memory(i, lane);
        __stcs(reinterpret_cast<uint4*>(this->out + at + i * 32 * kPer), staging[base + vector]);
        __stcs(reinterpret_cast<uint4*>(g_gates + at + i * 32 * kPer), staging[from + vector]);
      }
    } else {
      Base::flush_pieces(this->out, t, 0, length, base);
      Base::flush_pieces(g_gates, t, 0, length, from);
    }
    __syncwarp();
  }
};

// Some short lines as one: a drop at each one's first element, and no gate read at its last one.
template <class T, bool kReverse>
struct PackedBackward : StagedBackward<T, kReverse> {
  using Base = StagedBackward<T, kReverse>;
  using typename Base::Local;
  using Base::kPer;
  using Base::kVec;

  uint32_t each;                   // elements of a line
  mutable uint32_t ends;           // a bit for each of a lane's elements

  // Up to n lines from `row` on.
  __device__ PackedBackward(const BackwardProblem& p, int64_t row, int n)
      : Base(p, row, static_cast<int>(min(int64_t(n), p.scan.lines - row))),
        each(static_cast<uint32_t>(p.scan.length)) {}

  __device__ uint32_t load_resets(int position) const {
    uint32_t next;
    const uint32_t heads = heads_of<kVec>(this->time(position), each, &next);
    ends = heads >> 1 | (next == kVec ? 1u << (kVec - 1) : 0);
    return heads;
  }
  template <bool kWhole>
  __device__ void store(int position, int j, const Local (&gx)[kPer]) const {
    this->store_both(position, j, gx, ends >> j * kPer & ((1u << kPer) - 1));
  }
};

// A block a line, tile after tile, as scan_lines has it. Launched with 1 to BackwardTuning::kWarps warps.
template <class T, bool kReverse>
__global__ void __launch_bounds__(BackwardTuning::kWarps * 32, BackwardTuning::kBlocks)
    backward_lines(const __grid_constant__ BackwardProblem p, int64_t walking) {
  using Line = StagedBackward<T, kReverse>;
  constexpr int kWarps = BackwardTuning::kWarps, kWarpTile = Line::kWarpPositions, kStage = Line::kStage;
  // Two, taken in turn: a warp may write the next tile's while another still reads this one's.
  __shared__ WarpSteps<double, kWarps> shared[2];
  const Powers<double> powers = {};   // of a gamma, which there is none
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  const int tile_positions = n_warps * kWarpTile;
  const int stage = warp * 2 * kStage;
  int turn = 0;
  T edge = from_double<T>(0.0);
  const Walk walk(p.scan.lines, walking);
  if (walk.first < walk.end) {
    const Line line(p, walk.first);
    line.template fetch<true>(warp * kWarpTile, stage, lane);
    edge = line.fetch_edge(warp * kWarpTile, lane);
  }
  commit_copies();
  for (int64_t row = walk.first; row < walk.end; row += walk.apart) {
    Line line(p, row);
    double state = nothing(0.0);
    for (int begin = 0; begin < line.positions(); begin += tile_positions, turn ^= 1) {
      const int warp_position = begin + warp * kWarpTile, position = warp_position + lane * Line::kVec;
      // The next tile, of this line or of the block's next one, is on its way while this one is scanned.
      const int next_stage = stage + (turn ^ 1) * kStage;
      T next_edge = edge;
      if (begin + tile_positions < line.positions()) {
        line.template fetch<true>(warp_position + tile_positions, next_stage, lane);
        next_edge = line.fetch_edge(warp_position + tile_positions, lane);
      } else if (row + walk.apart < walk.end) {
        const Line next(p, row + walk.apart);
        next.template fetch<true>(warp * kWarpTile, next_stage, lane);
        next_edge = next.fetch_edge(warp * kWarpTile, lane);
      }
      commit_copies();
      wait_for_copies<1>();
      __syncwarp();
      line.base = stage + turn * kStage;
      line.look_aside(edge, lane);
      Tile<Line, true, false> tile;
      tile.take(line, position, nothing(0.0), powers, true, lane);
      if (lane == 0) {
        shared[turn].step[warp] = tile.all;
        shared[turn].dropped[warp] = false;
      }
      __syncthreads();
      const double state_before = state;
      bool finite, any_dropped;
      const double warp_state = shared[turn].before(warp, n_warps, &state, &finite, &any_dropped);
      if (!finite && !shared[turn].are_right(n_warps, state_before)) {
        const Tile<Line, true, false> copy = tile;
        const Line same_line = line;
        state = finish_known_tile_again(copy, shared[turn], same_line, p.scan, row, position, 0.0, state_before);
      } else {
        tile.give(line, p.scan, row, position, powers, warp_state, true, lane);
      }
      line.flush(warp_position, lane);
      edge = next_edge;
    }
  }
}

// contiguous lines: each warp takes `each` of them at a time, as scan_packed_lines has it.
template <class T, bool kReverse>
__global__ void __launch_bounds__(BackwardTuning::kWarps * 32, BackwardTuning::kBlocks)
    backward_packed_lines(const __grid_constant__ BackwardProblem p, int each) {
  using Line = PackedBackward<T, kReverse>;
  constexpr int kStage = Line::kStage;
  const Powers<double> powers = {};   // of a gamma, which there is none
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, position = lane * Line::kVec;
  const int64_t apart = int64_t(gridDim.x) * BackwardTuning::kWarps * each;
  int64_t first = (int64_t(blockIdx.x) * BackwardTuning::kWarps + warp) * each;
  const int base = warp * 2 * kStage;
  int turn = 0;
  if (first < p.scan.lines) Line(p, first, each).template fetch<true>(0, base, lane);
  commit_copies();
  const int reach = (static_cast<int>(p.scan.length) + 2 * Line::kVec - 2) / Line::kVec;
  for (; first < p.scan.lines; first += apart, turn ^= 1) {
    if (first + apart < p.scan.lines)
      Line(p, first + apart, each).template fetch<true>(0, base + (turn ^ 1) * kStage, lane);
    commit_copies();
    wait_for_copies<1>();
    __syncwarp();
    Line line(p, first, each);
    line.base = base + turn * kStage;
    // Nothing beside the warp's elements is needed: a line begins with the first one and one ends with the last.
    line.look_aside(from_double<T>(lane ? 0.0 : 1.0), lane);
    Tile<Line, true, true> tile;
    tile.take(line, position, nothing(0.0), powers, true, lane, reach);
    tile.give(line, p.scan, first, position, powers, nothing(0.0), true, lane, reach);
    line.flush(0, lane);
  }
}

}  // namespace upsweep
