// A line that comes through shared memory: whole vectors in the order of memory on one side, each lane's own run of
// neighbouring elements on the other.
//
// The copies are asynchronous, so that the next tile is on its way while this one is scanned and no register waits for
// it. Each warp fetches, scans and writes its own part of a tile: it synchronises with itself only. A vector's place is
// turned by its lane's number, so that neither side meets in a bank.
//
// Positions count in scan order and begin `phase` early, where out is aligned to a vector, so that every store but the
// first and the last is a whole one. Positions outside the line read as x = -0 and a gate of 1. The first gate of a line
// without an initial state reads as 1 too: it is not used.
#pragma once

#include "common/async_copy.cuh"
#include "common/lane_run.cuh"
#include "common/line_access.cuh"

namespace upsweep {

extern __shared__ uint4 staging[];

// What most lines do not need to know of themselves: those that begin and end with their block, in arrays that are all
// aligned alike, without resets.
template <bool kSimple>
struct StagedEnds {
  const char* reset;
  int64_t reset_stride;
  int lower;                       // times that the line has begin here
  bool aligned, starts;
};
template <>
struct StagedEnds<true> {
  static constexpr int lower = 0;
  static constexpr bool aligned = true, starts = true;
};

template <class T, bool kReverse, int kRun = kLaneElements<T>, bool kSimple_ = false>
struct Staged : StagedEnds<kSimple_> {
  using State = double;
  using Raw = T;
  using Local = decltype(local_of(T()));
  static constexpr int kVec = kRun;                       // neighbours that a lane takes
  static constexpr int kPer = 16 / sizeof(T);             // elements of a vector
  static constexpr int kVectors = kVec / kPer;            // of a lane
  static constexpr int kSubruns = sizeof(T) == 2 ? kVec / kSubrunElements : 1;
  static constexpr bool kHeld = false, kSimple = kSimple_, kBackward = kReverse;
  static constexpr bool kInPlace = true;                  // a LaneRun finds all elements, and leaves all results, in the stage
  static constexpr int kUnroll = kVectors < 4 ? kVectors : 4, kUnrollEnds = kVectors < 2 ? kVectors : 2;
  static constexpr int kWarpPositions = 32 * kVec;
  // Of one array, for each warp.
  static constexpr int kWarpVectors = 32 * kVectors;

  // At the element of time 0, which is the origin's.
  const T* x;
  const T* gates;
  T* out;
  int length;                      // times that the line has end before it
  int phase;
  int base;                        // where in `staging` this warp's part of the stage lies
  bool first_gate;
  using StagedEnds<kSimple>::lower;
  using StagedEnds<kSimple>::aligned;
  using StagedEnds<kSimple>::starts;

  static __device__ int phase_of(const void* at) {
    const int offset = reinterpret_cast<uintptr_t>(at) / sizeof(T) % kPer;
    return kReverse ? kPer - 1 - offset : offset;
  }
  __device__ void set_phase() {
    phase = phase_of(out);
    if constexpr (!kSimple) aligned = phase_of(x) == phase && (!gates || phase_of(gates) == phase);
  }

  __device__ Staged() {}
  // From position `origin` on, a multiple of a tile's.
  __device__ Staged(const Problem& p, const LineIndex& index, int64_t origin) {
    const int64_t shift = kReverse ? -origin : origin;
    x = reinterpret_cast<const T*>(index.in(p.x)) + shift;
    out = reinterpret_cast<T*>(index.in(p.out)) + shift;
    gates = p.gates.data ? reinterpret_cast<const T*>(index.in(p.gates)) + shift : nullptr;
    if constexpr (!kSimple) {
      this->reset_stride = p.reset.time_stride;
      this->reset = p.reset.data ? index.in(p.reset) + origin * p.reset.time_stride : nullptr;
      starts = origin == 0;
      lower = starts ? 0 : -kPer;
    }
    length = static_cast<int>(min(p.length - origin, int64_t(kMostSteps)));
    first_gate = p.initial.data != nullptr;
    set_phase();
  }

  __device__ int positions() const { return length + phase; }
  // Index in scan order, from the origin.
  __device__ int time(int position) const { return position - phase; }
  __device__ bool begins(int position) const { return starts && position == 0; }
  __device__ bool is_first(int t) const { return starts && t <= 0; }
  static __device__ Local value(T raw) { return local_of(raw); }
  // Whether `n` positions from `position` on are all in the line.
  __device__ bool whole(int position, int n) const { return position - phase >= lower && position + n <= positions(); }

  // Where the vector of a warp that is `chunk`'s j-th is kept; and the i-th of those that lie `lane` apart.
  static __device__ uint32_t turn(uint32_t chunk) {
    constexpr uint32_t kTurn = kVectors < 8 ? kVectors : 8;
    return chunk / (8 / kTurn) & (kTurn - 1);
  }
  static __device__ uint32_t place(uint32_t chunk, uint32_t j) { return chunk * kVectors + (j ^ turn(chunk)); }
  static __device__ uint32_t place_in_memory(uint32_t i, uint32_t lane) {
    if (kVectors <= 4) return i * 32 + place(lane / kVectors, lane % kVectors);
    const uint32_t vector = i * 32 + lane;
    return place(vector / kVectors, vector % kVectors);
  }
  // The lowest address of the warp's positions, as an offset from time 0.
  static __device__ int64_t lowest(int t) { return kReverse ? -int64_t(t) - (kWarpPositions - 1) : int64_t(t); }
  // The times of a vector's elements, by its offset in memory.
  static __device__ int time_of(int64_t at, int e) { return static_cast<int>(kReverse ? -(at + e) : at + e); }
  static __device__ bool inside(int64_t at, int lower, int length) {
    const int a = time_of(at, 0), b = time_of(at, kPer - 1);
    return min(a, b) >= lower && max(a, b) < length;
  }

  // Vectors at the ends of a line, and arrays that are aligned otherwise than out, as gates are that are read a step
  // ahead.
  static __device__ __noinline__ void fetch_pieces(const T* from, int phase, int t, int lower, int length, int to,
                                                   T outside) {
    const int lane = threadIdx.x % 32;
    const bool aligned = phase_of(from) == phase;
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = lowest(t) + (i * 32 + lane) * kPer;
      uint4* const slot = &staging[to + place_in_memory(i, lane)];
      if (aligned && inside(at, lower, length)) {
        copy_async_16(slot, from + at);
      } else if constexpr (sizeof(T) >= 4) {
#pragma unroll
        for (int e = 0; e < kPer; ++e) {
          const int time = time_of(at, e);
          T* const to_element = reinterpret_cast<T*>(slot) + e;
          if (time >= lower && time < length) copy_async<sizeof(T)>(to_element, from + at + e);
          else *to_element = outside;
        }
      } else {
        union { uint4 word; T part[kPer]; } u;
#pragma unroll
        for (int e = 0; e < kPer; ++e) {
          const int time = time_of(at, e);
          u.part[e] = time >= lower && time < length ? from[at + e] : outside;
        }
        *slot = u.word;
      }
    }
  }
  static __device__ void fetch_whole(const T* from, int t, int to, int lane) {
    from += lowest(t) + lane * kPer;
#pragma unroll kUnroll
    for (int i = 0; i < kVectors; ++i) copy_async_16(&staging[to + place_in_memory(i, lane)], from + i * 32 * kPer);
  }

  // Starts the copies of this warp's positions into the stage at `to`; the caller commits them.
  template <bool kGated>
  __device__ void fetch(int warp_position, int to, int lane) const {
    const int t = time(warp_position);
    if (aligned && whole(warp_position, kWarpPositions)) {
      fetch_whole(x, t, to, lane);
      if constexpr (kGated) fetch_whole(gates, t, to + kWarpVectors, lane);
    } else {
      fetch_pieces(x, phase, t, lower, length, to, from_double<T>(-0.0));
      if constexpr (kGated) fetch_pieces(gates, phase, t, lower, length, to + kWarpVectors, from_double<T>(1.0));
    }
  }

  // The same again, and waits for it: before elements are taken a second time.
  template <bool kGated>
  __device__ void fetch_again(int position) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    fetch<kGated>(position - lane * kVec, base, lane);
    commit_copies();
    wait_for_copies<0>();
    __syncwarp();
  }

  // Where the lane's vectors are, for what is seldom done.
  __device__ void locate(LaneRun<T>& run, bool gated) const {
    const uint32_t lane = threadIdx.x % 32, chunk = kReverse ? 31 - lane : lane;
    run.x = &staging[base + chunk * kVectors];
    run.gates = gated ? run.x + kWarpVectors : nullptr;
    run.vectors = kVectors;
    run.turn = turn(chunk);
    run.reverse = kReverse;
  }
  // Vector j of the lane's, in scan order.
  static __device__ uint32_t place_of_lane(int j) {
    const uint32_t lane = threadIdx.x % 32;
    return kReverse ? place(31 - lane, kVectors - 1 - j) : place(lane, j);
  }
  static __device__ void read(int from, int j, T (&v)[kPer]) {
    union { uint4 word; T part[kPer]; } u;
    u.word = staging[from + place_of_lane(j)];
#pragma unroll
    for (int e = 0; e < kPer; ++e) v[e] = u.part[kReverse ? kPer - 1 - e : e];
  }

  template <bool kGated>
  __device__ void take(int position, int j, T (&x_out)[kPer], T (&a_out)[kGated ? kPer : 1]) const {
    read(base, j, x_out);
    if constexpr (kGated) {
      read(base + kWarpVectors, j, a_out);
      const int t = time(position) + j * kPer;
      if (starts && t <= 0 && !first_gate) {
#pragma unroll
        for (int e = 0; e < kPer; ++e)
          if (t + e == 0) a_out[e] = from_double<T>(1.0);
      }
    }
  }

  __device__ uint32_t load_resets(int position) const {
    return drops_of<kVec>(this->reset, this->reset_stride, time(position), lower, length);
  }

  static __device__ void put(int to, int j, const Local (&y)[kPer]) {
    Local part[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) part[e] = y[kReverse ? kPer - 1 - e : e];
    staging[to + place_of_lane(j)] = vector_of<T>(part);
  }
  // In place of x; flush() brings them out. What takes the elements again has to fetch them again.
  template <bool kWhole>
  __device__ void store(int, int j, const Local (&y)[kPer]) const {
    put(base, j, y);
  }

  static __device__ __noinline__ void flush_pieces(T* out, int t, int lower, int length, int base) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = lowest(t) + (i * 32 + lane) * kPer;
      union { uint4 word; T part[kPer]; } u;
      u.word = staging[base + place_in_memory(i, lane)];
      if (inside(at, lower, length)) {
        __stcs(reinterpret_cast<uint4*>(out + at), u.word);
        continue;
      }
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        const int time = time_of(at, e);
        if (time >= lower && time < length) out[at + e] = u.part[e];
      }
    }
  }
  // all: all of the positions are in the line.
  __device__ void flush(int warp_position, bool all, int lane) const {
    __syncwarp();
    if (all) {
      T* const to = out + lowest(time(warp_position)) + lane * kPer;
#pragma unroll kUnroll
      for (int i = 0; i < kVectors; ++i)
        __stcs(reinterpret_cast<uint4*>(to + i * 32 * kPer), staging[base + place_in_memory(i, lane)]);
    } else {
      flush_pieces(out, time(warp_position), lower, length, base);
    }
    __syncwarp();
  }
};

// A bit for each of n neighbours from time t on: those that a line of `each` elements begins with, where lines lie one
// behind the other from time 0. next: where the one after them begins, counted from the first of these.
template <int n>
__device__ inline uint32_t heads_of(int t, uint32_t each, uint32_t* next) {
  uint32_t past = t < 0 ? -t : t % each, heads = 0;
  if (t >= 0 && past) past = each - past;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (i == past) {
      heads |= 1u << i;
      past += each;
    }
  }
  *next = past;
  return heads;
}

// Some short lines that are contiguous, as one line: a drop at each one's first element.
template <class T, bool kReverse>
struct Packed : Staged<T, kReverse> {
  using Base = Staged<T, kReverse>;
  using Base::kVec;
  static constexpr int kUnrollEnds = Base::kUnroll;   // most tiles have room for no other line
  uint32_t each;                   // elements of a line

  // All but the last in memory of `view`'s, in scan order the first.
  static __device__ T* first_of(const View& view, const Problem& p, int64_t line, int n) {
    return reinterpret_cast<T*>(view.data) + (kReverse ? line + n - 1 : line) * p.length;
  }

  // Up to n lines from `line` on.
  __device__ Packed(const Problem& p, int64_t line, int n) {
    n = static_cast<int>(min(int64_t(n), p.lines - line));
    each = static_cast<uint32_t>(p.length);
    this->length = n * each;
    this->lower = this->base = 0;
    this->x = first_of(p.x, p, line, n);
    this->out = first_of(p.out, p, line, n);
    this->gates = p.gates.data ? first_of(p.gates, p, line, n) : nullptr;
    this->starts = true;
    this->first_gate = true;       // no first gate is used: a drop is there
    this->reset = nullptr;
    this->reset_stride = 0;
    this->set_phase();
  }

  __device__ uint32_t load_resets(int position) const {
    uint32_t next;
    return heads_of<kVec>(this->time(position), each, &next);
  }
};

}  // namespace upsweep
