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

#include "line_access.cuh"

namespace upsweep {

extern __shared__ uint4 staging[];

__device__ inline uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

__device__ inline void copy_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
template <int kBytes>
__device__ inline void copy_async(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(kBytes) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of the groups that were committed are still on their way.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <class T, bool kReverse, int kRun = kLaneElements<T>>
struct Staged {
  using State = double;
  using Raw = T;
  using Local = decltype(local_of(T()));
  static constexpr int kVec = kRun;                       // neighbours that a lane takes
  static constexpr int kPer = 16 / sizeof(T);             // elements of a vector
  static constexpr bool kHeld = false;
  static constexpr int kVectors = kVec / kPer;            // of a lane
  static constexpr int kUnroll = kVectors < 4 ? kVectors : 4;
  static constexpr int kWarpPositions = 32 * kVec;
  // Of one array, for each warp.
  static constexpr int kWarpVectors = 32 * kVectors;

  const T* x;
  const T* gates;
  T* out;
  const char* reset;
  int64_t reset_stride, length;
  int phase_;
  int base;                        // where in `staging` this warp's part of the stage lies
  bool x_aligned, gates_aligned, first_gate;

  __device__ void set_phase() {
    phase_ = phase_of(out);
    x_aligned = phase_of(x) == phase_;
    gates_aligned = gates && phase_of(gates) == phase_;
  }
  static __device__ int offset_of(const void* at) { return reinterpret_cast<uintptr_t>(at) / sizeof(T) % kPer; }
  __device__ int phase_of(const void* at) const {
    return kReverse ? (kPer - (offset_of(at) + static_cast<uint32_t>(length)) % kPer) % kPer : offset_of(at);
  }
  __device__ T* lowest(const View& view, const LineIndex& index) const {
    T* first = reinterpret_cast<T*>(index.in(view));
    return kReverse ? first - (length - 1) : first;
  }

  __device__ Staged() {}
  __device__ Staged(const Problem& p, const LineIndex& index) : length(p.length), base(0) {
    x = lowest(p.x, index);
    out = lowest(p.out, index);
    gates = p.gates.data ? lowest(p.gates, index) : nullptr;
    first_gate = p.initial.data != nullptr;
    reset = p.reset.data ? index.in(p.reset) : nullptr;
    reset_stride = p.reset.time_stride;
    set_phase();
  }

  __device__ int64_t positions() const { return length + phase_; }
  // Index in scan order.
  __device__ int64_t time(int64_t position) const { return position - phase_; }
  static __device__ Local value(T raw) { return local_of(raw); }
  // Whether `n` positions from `position` on are all in the line.
  __device__ bool whole(int64_t position, int n) const { return position >= phase_ && position + n <= positions(); }

  // Where the warp's positions from `position` on begin in memory.
  __device__ int64_t memory(int64_t position) const {
    const int64_t t = time(position);
    return kReverse ? length - kWarpPositions - t : t;
  }
  // Where the lane's vector j of the warp's is kept.
  static __device__ int place(int chunk, int j) {
    constexpr int kTurn = kVectors < 8 ? kVectors : 8;
    return chunk * kVectors + (j ^ (chunk / (8 / kTurn) & (kTurn - 1)));
  }

  __device__ void fetch_array(const T* from, bool aligned, int64_t at, int to, T outside, int lane) const {
    if (aligned && at >= 0 && at + kWarpPositions <= length) {
#pragma unroll kUnroll
      for (int i = 0; i < kVectors; ++i) {
        const int vector = i * 32 + lane;
        copy_async_16(&staging[to + place(vector / kVectors, vector % kVectors)], from + at + vector * kPer);
      }
    } else {
      fetch_pieces(from, aligned, at, to, outside, lane);
    }
  }
  // Vectors at the ends of a line, and arrays that are aligned otherwise than out, as gates are that are read a step
  // ahead.
  __device__ void fetch_pieces(const T* from, bool aligned, int64_t at, int to, T outside, int lane) const {
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int vector = i * 32 + lane;
      const int64_t m = at + vector * kPer;
      uint4* const slot = &staging[to + place(vector / kVectors, vector % kVectors)];
      if (aligned && m >= 0 && m + kPer <= length) {
        copy_async_16(slot, from + m);
      } else if (sizeof(T) >= 4 && m >= 0 && m + kPer <= length) {
#pragma unroll
        for (int e = 0; e < kPer; ++e)
          copy_async<sizeof(T) < 4 ? 4 : sizeof(T)>(reinterpret_cast<T*>(slot) + e, from + m + e);
      } else {
        union { uint4 word; T part[kPer]; } u;
#pragma unroll
        for (int e = 0; e < kPer; ++e) u.part[e] = m + e >= 0 && m + e < length ? from[m + e] : outside;
        *slot = u.word;
      }
    }
  }

  // Starts the copies of this warp's positions into the stage at `to`; the caller commits them.
  template <bool kGated>
  __device__ void fetch(int64_t warp_position, int to, int lane) const {
    const int64_t at = memory(warp_position);
    fetch_array(x, x_aligned, at, to, from_double<T>(-0.0), lane);
    if constexpr (kGated) fetch_array(gates, gates_aligned, at, to + kWarpVectors, from_double<T>(1.0), lane);
  }

  // The same again, and waits for it: before elements are taken a second time.
  template <bool kGated>
  __device__ void fetch_again(int64_t position) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    fetch<kGated>(position - lane * kVec, base, lane);
    commit_copies();
    wait_for_copies<0>();
    __syncwarp();
  }

  // Vector j of the lane's, in scan order.
  static __device__ int place_of_lane(int j) {
    const int lane = threadIdx.x % 32;
    return kReverse ? place(31 - lane, kVectors - 1 - j) : place(lane, j);
  }
  static __device__ void read(int from, int j, T (&v)[kPer]) {
    union { uint4 word; T part[kPer]; } u;
    u.word = staging[from + place_of_lane(j)];
#pragma unroll
    for (int e = 0; e < kPer; ++e) v[e] = u.part[kReverse ? kPer - 1 - e : e];
  }

  template <bool kGated>
  __device__ void take(int64_t position, int j, T (&x_out)[kPer], T (&a_out)[kGated ? kPer : 1]) const {
    read(base, j, x_out);
    if constexpr (kGated) {
      read(base + kWarpVectors, j, a_out);
      const int64_t t = time(position) + j * kPer;
      if (t <= 0 && !first_gate) {
#pragma unroll
        for (int e = 0; e < kPer; ++e)
          if (t + e == 0) a_out[e] = from_double<T>(1.0);
      }
    }
  }

  __device__ uint32_t load_resets(int64_t position) const {
    uint32_t drops = 0;
    const int64_t t = time(position);
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (t + i >= 0 && t + i < length && reset[(t + i) * reset_stride]) drops |= 1u << i;
    return drops;
  }

  // In place of x; flush() brings them out. What takes the elements again has to fetch them again.
  template <bool kWhole>
  __device__ void store(int64_t, int j, const Local (&y)[kPer]) const {
    Local part[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) part[e] = y[kReverse ? kPer - 1 - e : e];
    staging[base + place_of_lane(j)] = vector_of<T>(part);
  }

  // whole: all of the positions are in the line.
  __device__ void flush(int64_t warp_position, bool whole, int lane) const {
    const int64_t at = memory(warp_position);
    __syncwarp();
    if (whole) {
#pragma unroll kUnroll
      for (int i = 0; i < kVectors; ++i) {
        const int vector = i * 32 + lane;
        __stcs(reinterpret_cast<uint4*>(out + at + vector * kPer),
               staging[base + place(vector / kVectors, vector % kVectors)]);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kVectors; ++i) {
        const int vector = i * 32 + lane;
        const int64_t m = at + vector * kPer;
        union { uint4 word; T part[kPer]; } u;
        u.word = staging[base + place(vector / kVectors, vector % kVectors)];
        if (m >= 0 && m + kPer <= length) {
          __stcs(reinterpret_cast<uint4*>(out + m), u.word);
          continue;
        }
#pragma unroll
        for (int e = 0; e < kPer; ++e)
          if (m + e >= 0 && m + e < length) out[m + e] = u.part[e];
      }
    }
    __syncwarp();
  }
};

// Some short lines that lie one behind the other, as one line: a drop at each one's first element.
template <class T, bool kReverse>
struct Packed : Staged<T, kReverse> {
  using Staged<T, kReverse>::kVec;
  uint32_t each;                   // elements of a line

  static __device__ T* lowest(const View& view, const Problem& p, int64_t line) {
    T* const first = reinterpret_cast<T*>(view.data) - (kReverse ? p.length - 1 : 0);
    return first + line * p.length;
  }

  __device__ Packed(const Problem& p, int64_t first_line, int n) {
    n = static_cast<int>(min(int64_t(n), p.lines - first_line));
    each = static_cast<uint32_t>(p.length);
    this->length = n * p.length;
    this->base = 0;
    this->x = lowest(p.x, p, first_line);
    this->out = lowest(p.out, p, first_line);
    this->gates = p.gates.data ? lowest(p.gates, p, first_line) : nullptr;
    this->first_gate = true;       // no first gate is used: a drop is there
    this->reset = nullptr;
    this->reset_stride = 0;
    this->set_phase();
  }

  __device__ uint32_t load_resets(int64_t position) const {
    const int t = static_cast<int>(this->time(position));
    uint32_t past = t < 0 ? -t : t % each, drops = 0;
    if (t >= 0 && past) past = each - past;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (i == past) {
        drops |= 1u << i;
        past += each;
      }
    }
    return drops;
  }
};

}  // namespace upsweep
