// Tiles of one line on several blocks: each publishes what it does to a state, then finds the state before it.
//
// Tiles are handed out in increasing order from a counter, so a tile waits only for blocks that already run. The tiles
// of a line form groups of 32, and these families of 32. A tile folds the steps of those before it in its group and of
// the groups before that one in its family, each in the order of their index; the states after families form a chain.
// The order of every sum is therefore fixed, and so are the result's bits. A warp reads 32 tile words at a time, side by
// side: what all tiles in flight ask for is what the second-level cache has to bear.
//
// A step or a state travels in words of 64 bits, each written and read in one piece. A word of ones means that nothing
// is there yet, so no flag and no fence is needed: whoever finds all words has the whole. The workspace is filled with
// ones before the launch, or while the kernel starts (wait_for_workspace).
#pragma once

#include <type_traits>

#include "common/extended_step.cuh"
#include "scan/problem.hpp"

namespace upsweep {

constexpr Word kInvalid = ~0ull;
constexpr Word kResetWord = ~1ull;                    // in place of a multiplier
constexpr Word kPlainNaN = 0x7ff8000000000000ull;   // for the two NaNs that mean something

__device__ inline Word word_of(double v) {
  const Word bits = __double_as_longlong(v);
  return bits >= kResetWord ? kPlainNaN : bits;
}
__device__ inline double number_of(Word w) { return __longlong_as_double(w); }

template <class S>
struct TileState;

template <>
struct TileState<double> {
  static constexpr int kStepWords = 2, kStateWords = 1;
  static __device__ void pack(Step<double> step, bool dropped, Word (&w)[2]) {
    w[0] = dropped ? kResetWord : word_of(step.a);
    w[1] = word_of(step.b);
  }
  static __device__ Step<double> unpack(const Word (&w)[2], bool* dropped) {
    *dropped = w[0] == kResetWord;
    return {number_of(w[0]), number_of(w[1])};
  }
  static __device__ void pack(double state, Word (&w)[1]) { w[0] = word_of(state); }
  static __device__ double unpack(const Word (&w)[1]) { return number_of(w[0]); }
};

template <>
struct TileState<Complex> {
  static constexpr int kStepWords = 4, kStateWords = 2;
  static __device__ void pack(Step<Complex> step, bool dropped, Word (&w)[4]) {
    w[0] = dropped ? kResetWord : word_of(step.a.re);
    w[1] = word_of(step.a.im);
    w[2] = word_of(step.b.re);
    w[3] = word_of(step.b.im);
  }
  static __device__ Step<Complex> unpack(const Word (&w)[4], bool* dropped) {
    *dropped = w[0] == kResetWord;
    return {{number_of(w[0]), number_of(w[1])}, {number_of(w[2]), number_of(w[3])}};
  }
  static __device__ void pack(Complex state, Word (&w)[2]) {
    w[0] = word_of(state.re);
    w[1] = word_of(state.im);
  }
  static __device__ Complex unpack(const Word (&w)[2]) { return {number_of(w[0]), number_of(w[1])}; }
};

// Every integer means something, so each takes two words of 32 bits. Integers are only added: no multiplier travels.
template <>
struct TileState<uint64_t> {
  static constexpr int kStepWords = 2, kStateWords = 2;
  static __device__ void pack(Step<uint64_t> step, bool dropped, Word (&w)[2]) {
    w[0] = step.b & 0xffffffffu;
    w[1] = step.b >> 32 | Word(dropped) << 32;
  }
  static __device__ Step<uint64_t> unpack(const Word (&w)[2], bool* dropped) {
    *dropped = w[1] >> 32;
    return {1, w[0] | w[1] << 32};
  }
  static __device__ void pack(uint64_t state, Word (&w)[2]) { pack({1, state}, false, w); }
  static __device__ uint64_t unpack(const Word (&w)[2]) { return w[0] | w[1] << 32; }
};

// Returns once the workspace is filled, and what else was launched before this kernel has ended. A kernel that calls it
// before it touches the workspace may start while another one fills that (launch_after_fill in scan/launch.cuh). What it
// reads earlier, x and gates, is complete all the same: the kernel that fills has waited for all that came before it.
__device__ inline void wait_for_workspace() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void store_relaxed(Word* to, Word w) {
  asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(to), "l"(w) : "memory");
}
__device__ inline Word load_relaxed(const Word* from) {
  Word w;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(w) : "l"(from) : "memory");
  return w;
}

// Waits for `n` tile states of kWords words, `apart` words from each other; all are asked for at once.
template <int kCount, int kWords>
__device__ inline void wait_for(const Word* from, int n, int64_t apart, Word (&w)[kCount][kWords]) {
  bool complete;
  do {
    complete = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int k = 0; k < kWords; ++k)
        if (i < n) w[i][k] = load_relaxed(from + i * apart + k);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int k = 0; k < kWords; ++k)
        if (i < n) complete = complete && w[i][k] != kInvalid;
    if (!complete) __nanosleep(32);
  } while (!complete);
}

constexpr int64_t kGroup = 32, kFamily = kGroup * kGroup;   // tiles

inline __host__ __device__ int64_t groups_of(int64_t tiles) { return (tiles + kGroup - 1) / kGroup; }

// What the steps of a warp's lanes up to this one's do one after the other; after a drop, those since.
template <class S>
__device__ Step<S> scan_of_steps(Step<S> step, uint32_t droppers, int lane) {
  const uint32_t heads = droppers & (0xffffffffu >> (31 - lane));
  const int head = heads ? 31 - __clz(heads) : 0;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const Step<S> before = {shuffle_up(step.a, by, 32), shuffle_up(step.b, by, 32)};
    if (lane - by >= head) step = combine(before, step);
  }
  return step;
}

// What the steps of n tiles do one after the other, n at most 32; by a warp.
template <class S>
__device__ Step<S> fold(const Word* tile_words, int n, int lane, bool* dropped) {
  using M = TileState<S>;
  Step<S> step = {one(S()), nothing(S())};
  bool drops = false;
  if (lane < n) {
    Word w[1][M::kStepWords];
    wait_for<1, M::kStepWords>(tile_words + lane * M::kStepWords, 1, 0, w);
    step = M::unpack(w[0], &drops);
  }
  __syncwarp();
  const uint32_t droppers = __ballot_sync(0xffffffffu, drops);
  step = scan_of_steps(step, droppers, lane);
  *dropped = droppers;
  return {shuffle(step.a, 31), shuffle(step.b, 31)};
}

__device__ inline void publish_extended(Word* to, const ExtendedStep& step) {
  Word w[ExtendedStep::kWords];
  pack(step, w);
#pragma unroll
  for (int k = 0; k < ExtendedStep::kWords; ++k) store_relaxed(to + k, w[k]);
}

// The tile states of one line's tiles, by a whole warp of each tile.
//
// A tile whose states are not finite, and may be wrong, publishes what it does to any state and not the state after it;
// the last one of a group then passes on what its group does to any state. So of each tile, and of each group's last
// one, there is one or the other, and which one depends on the data alone. They say again what the state before a tile is.
template <class S>
struct LineChain {
  using M = TileState<S>;
  Word *steps, *states, *groups, *extended, *extended_groups;

  __device__ LineChain(const Workspace& w, int64_t chains, int64_t chain, int64_t tiles) {
    constexpr int kWords = ExtendedStep::kWords;
    const int64_t n_groups = groups_of(tiles);
    Word* const all_states = w.tile_words + chains * tiles * M::kStepWords;
    Word* const all_groups = all_states + chains * tiles * M::kStateWords;
    Word* const all_extended = all_groups + chains * n_groups * M::kStepWords;
    steps = w.tile_words + chain * tiles * M::kStepWords;
    states = all_states + chain * tiles * M::kStateWords;
    groups = all_groups + chain * n_groups * M::kStepWords;
    extended = all_extended + chain * tiles * kWords;
    extended_groups = all_extended + (chains * tiles + chain * n_groups) * kWords;
  }

  __device__ void publish_step(int64_t tile, Step<S> step, bool dropped) const {
    Word w[M::kStepWords];
    M::pack(step, dropped, w);
#pragma unroll
    for (int k = 0; k < M::kStepWords; ++k) store_relaxed(steps + tile * M::kStepWords + k, w[k]);
  }
  __device__ void publish_state(int64_t tile, S state) const {
    Word w[M::kStateWords];
    M::pack(state, w);
#pragma unroll
    for (int k = 0; k < M::kStateWords; ++k) store_relaxed(states + tile * M::kStateWords + k, w[k]);
  }
  __device__ S state_after(int64_t tile) const {
    Word w[1][M::kStateWords];
    wait_for<1, M::kStateWords>(states + tile * M::kStateWords, 1, 0, w);
    return M::unpack(w[0]);
  }
  // The state after the last tile of a family is what the next one begins from. Complex states that may be wrong are
  // computed from the one after the tile before.
  static __device__ bool hands_on_state(int64_t tile) {
    return !std::is_same_v<S, double> || tile % kFamily == kFamily - 1;
  }

  // What the steps of n tiles, or of the groups that they are the last of, do to any state; by a warp. states, apart: where
  // the states after these tiles may be found instead.
  template <class Local>
  static __device__ __noinline__ ExtendedStep fold_again(const Word* states, int64_t apart, const Word* from, int n,
                                                         int lane) {
    ExtendedStep step = ExtendedStep::none<Local>(), all;
    if (lane < n) {
      const Word* const state_at = states + lane * apart;
      bool ready = false;
      while (!ready) {
        const Word state = load_relaxed(state_at);
        Word w[ExtendedStep::kWords];
        bool complete = true;
#pragma unroll
        for (int k = 0; k < ExtendedStep::kWords; ++k) {
          w[k] = load_relaxed(from + lane * ExtendedStep::kWords + k);
          complete = complete && w[k] != kInvalid;
        }
        if (complete) step = unpack_extended(w);
        else if (state != kInvalid) step = ExtendedStep::reset_to(number_of(state));
        else __nanosleep(32);
        ready = complete || state != kInvalid;
      }
    }
    __syncwarp();
    scan_of_extended<Local>(step, lane, 0, 32, 32, &all);
    return all;
  }
  // The state before `tile`, which does `own` to any state; by a warp.
  // knows_state: the state after it is published, or there is no other tile.
  template <class Local>
  __device__ __noinline__ S state_before_again(int64_t tile, const ExtendedStep& own, bool knows_state, int lane) const {
    if constexpr (!std::is_same_v<S, double>) {
      return tile ? state_after(tile - 1) : nothing(S());
    } else {
      constexpr int kWords = ExtendedStep::kWords;
      const int64_t group = tile / kGroup, first_group = group / kGroup * kGroup;
      if (lane == 0 && !knows_state) publish_extended(extended + tile * kWords, own);
      const ExtendedStep since =
          fold_again<Local>(states + group * kGroup, 1, extended + group * kGroup * kWords, tile % kGroup, lane);
      if (tile % kGroup == kGroup - 1 && lane == 0 && !knows_state)
        publish_extended(extended_groups + group * kWords, combine<Local>(since, own));
      const ExtendedStep before = fold_again<Local>(states + first_group * kGroup + kGroup - 1, kGroup,
                                                    extended_groups + first_group * kWords, group % kGroup, lane);
      const double state = first_group ? state_after(first_group * kGroup - 1) : nothing(S());
      return since.of<Local>(before.of<Local>(state));
    }
  }

  // The state before `tile`, which does `own`, and drops. Passes on what its group does if it is the last of it.
  __device__ S state_before(int64_t tile, Step<S> own, bool own_drops, int lane) const {
    const int64_t group = tile / kGroup, first_group = group / kGroup * kGroup;
    bool drops, groups_drop;
    const Step<S> since = fold<S>(steps + group * kGroup * M::kStepWords, tile % kGroup, lane, &drops);
    if (tile % kGroup == kGroup - 1 && lane == 0) {
      Word w[M::kStepWords];
      M::pack(own_drops ? own : combine(since, own), drops || own_drops, w);
#pragma unroll
      for (int k = 0; k < M::kStepWords; ++k) store_relaxed(groups + group * M::kStepWords + k, w[k]);
    }
    if (drops) return since.b;
    const Step<S> before = fold<S>(groups + first_group * M::kStepWords, group % kGroup, lane, &groups_drop);
    if (groups_drop || first_group == 0) return advance(since.a, before.b, since.b);
    return advance(since.a, advance(before.a, state_after(first_group * kGroup - 1), before.b), since.b);
  }
};

}  // namespace upsweep
