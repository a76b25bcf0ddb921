// Few columns, split over blocks: a block for each tile of 8, 16 or 32 columns. Tiles look back for the states before them,
// unless one tile holds all steps.
//
// Tiles are handed out in increasing order from a counter, so a tile waits only for blocks that already run. As along
// lines (scan/look_back.cuh), the tiles of a block of columns form groups, and these families: a tile publishes what it
// does to a state, folds the steps of the tiles before it in its group and of the groups before that one in its family,
// and begins from the state after the last family. Here each lane does so for a column, and each warp folds a part of
// the steps. All of them are requested at once, so that a tile whose predecessors are done waits for memory once.
//
// A tile of which the states in a column are not finite, and may be wrong, publishes what it does to any state of that
// column instead of the state after it, and folds these steps in the same way.
#pragma once

#include "scan/columns.cuh"
#include "scan/look_back.cuh"

namespace upsweep {

template <class Element, bool kGated>
constexpr int kSplitSteps = kStagesColumns<Element> ? split_column_steps(sizeof(typename Element::Raw), kGated)
                                                    : ColumnTuning::kAnySplitSteps;

template <class Element>
constexpr int kSplitBlocks = kStagesColumns<Element> ? ColumnTuning::kSplitBlocks : ColumnTuning::kAnySplitBlocks;

// The steps among n records that this warp folds, on their way. kConstant: all have the same multiplier, which does not
// travel. kGuards: see guarded().
template <class S, bool kConstant, bool kGuards>
struct StepsShare {
  using M = TileState<S>;
  static constexpr int kShare = ColumnTuning::kGroup / ColumnTuning::kWarps, kFirst = kConstant ? 1 : 0;
  static_assert(ColumnTuning::kGroup % ColumnTuning::kWarps == 0);

  const Word* from;
  int n, width;
  Word w[kShare][M::kStepWords];

  __device__ StepsShare(const Word* records, int n_records, int width_) : width(width_) {
    const int first = threadIdx.x / 32 * kShare;
    from = records + int64_t(first) * M::kStepWords * width;
    n = min(n_records - first, kShare);
#pragma unroll
    for (int i = 0; i < kShare; ++i)
#pragma unroll
      for (int k = 0; k < M::kStepWords; ++k) w[i][k] = i < n && k >= kFirst ? request(i, k) : 0;
  }
  __device__ Word request(int i, int k) const { return load_relaxed(from + (i * M::kStepWords + k) * width); }

  // Waits for them, and writes what they do to the warp's place; multiplier: of each, if it is constant.
  __device__ void fold(ColumnSteps<S>& folds, int column, S multiplier) {
    for (bool complete = false; !complete;) {
      complete = true;
#pragma unroll
      for (int i = 0; i < kShare; ++i)
#pragma unroll
        for (int k = 0; k < M::kStepWords; ++k)
          if (w[i][k] == kInvalid) {
            complete = false;
            w[i][k] = request(i, k);
          }
      if (!complete) __nanosleep(32);
    }
    Step<S> all = {one(S()), nothing(S())};
    bool any_dropped = false;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      if (i >= n) break;
      bool drops = false;
      Step<S> step = M::unpack(w[i], &drops);
      if constexpr (kConstant) step.a = multiplier, drops = false;
      all = i == 0 || drops ? step : guarded<kGuards>(combine(all, step));
      any_dropped = any_dropped || drops;
    }
    folds.step[threadIdx.x / 32][column] = all;
    folds.dropped[threadIdx.x / 32][column] = any_dropped;
  }
};

template <class S>
union ColumnFolds {
  ColumnSteps<S> steps[2];         // of tiles, of groups
  ExtendedColumns extended;
};

// The tile states of a block of columns: of each record its words, and of each word the columns.
template <class S, bool kConstant, bool kGuards>
struct ColumnChain {
  using M = TileState<S>;
  using Share = StepsShare<S, kConstant, kGuards>;
  static constexpr int64_t kGroup = ColumnTuning::kGroup, kFamily = kGroup * kGroup;   // tiles
  static constexpr int kShare = Share::kShare, kWords = ExtendedStep::kWords;

  int width, column;
  Word *steps, *states, *groups, *extended, *extended_groups;

  __device__ ColumnChain(const Workspace& w, int64_t chain, int64_t tiles, const ColumnLane& lane)
      : width(lane.width), column(lane.column) {
    const int64_t n_groups = (tiles + kGroup - 1) / kGroup;
    const int64_t n_words = tiles * (M::kStepWords + M::kStateWords + kWords) + n_groups * (M::kStepWords + kWords);
    steps = w.tile_words + chain * n_words * width + column;
    states = steps + tiles * M::kStepWords * width;
    groups = states + tiles * M::kStateWords * width;
    extended = groups + n_groups * M::kStepWords * width;
    extended_groups = extended + tiles * kWords * width;
  }

  template <int kFirst = 0, int n>
  __device__ void publish(Word* records, int64_t index, const Word (&w)[n]) const {
#pragma unroll
    for (int k = kFirst; k < n; ++k) store_relaxed(records + (index * n + k) * width, w[k]);
  }
  __device__ void publish_step(Word* records, int64_t index, Step<S> step, bool dropped) const {
    Word w[M::kStepWords];
    M::pack(step, dropped, w);
    publish<Share::kFirst>(records, index, w);
  }
  __device__ void publish_extended(Word* records, int64_t index, const ExtendedStep& step) const {
    Word w[kWords];
    pack(step, w);
    publish(records, index, w);
  }
  __device__ void publish_state(int64_t tile, S state) const {
    Word w[M::kStateWords];
    M::pack(state, w);
    publish(states, tile, w);
  }
  __device__ S state_after(int64_t tile) const {
    Word w[M::kStateWords];
    for (bool complete = false; !complete;) {
      complete = true;
#pragma unroll
      for (int k = 0; k < M::kStateWords; ++k) {
        w[k] = load_relaxed(states + (tile * M::kStateWords + k) * width);
        complete = complete && w[k] != kInvalid;
      }
      if (!complete) __nanosleep(32);
    }
    return M::unpack(w);
  }
  static __device__ int shares_of(int64_t n) { return static_cast<int>((n + kShare - 1) / kShare); }

  // In the first warp, the state before `tile`, which does `own`, and drops; by all threads. Publishes what its group
  // does if it is the last of it. multipliers: of a tile and of a group, if they are constant.
  __device__ S state_before(int64_t tile, Step<S> own, bool own_drops, S initial, bool has_initial,
                            const S (&multipliers)[2], ColumnSteps<S> (&folds)[2]) const {
    const int64_t group = tile / kGroup, first_group = group / kGroup * kGroup;
    const int n_tiles = static_cast<int>(tile % kGroup), n_groups = static_cast<int>(group % kGroup);
    const int warp = threadIdx.x / 32;
    Share tiles_share(steps + group * kGroup * M::kStepWords * width, n_tiles, width);
    Share groups_share(groups + first_group * M::kStepWords * width, n_groups, width);
    Step<S> since = {one(S()), nothing(S())};
    bool drops = false;
    if (n_tiles) {
      tiles_share.fold(folds[0], column, multipliers[0]);
      __syncthreads();
      if (warp == 0) {
        since = folds[0].template join<kGuards>(shares_of(n_tiles), column, &drops);
        if (n_tiles == kGroup - 1)
          publish_step(groups, group, own_drops ? own : upsweep::guarded<kGuards>(combine(since, own)), drops || own_drops);
      }
    }
    S state = initial;
    bool has_state = has_initial;
    if (n_groups) {
      groups_share.fold(folds[1], column, multipliers[1]);
      __syncthreads();
    }
    if (warp != 0) return state;
    if (first_group) {
      state = state_after(first_group * kGroup - 1);
      has_state = true;
    }
    // Where there is no state, a product that overflowed is not to make a NaN of it.
    if (n_groups) {
      bool groups_drop;
      const Step<S> before = folds[1].template join<kGuards>(shares_of(n_groups), column, &groups_drop);
      state = groups_drop || !has_state ? before.b : advance(before.a, guarded(state), before.b);
      has_state = true;
    }
    if (n_tiles) state = drops || !has_state ? since.b : advance(since.a, guarded(state), since.b);
    return state;
  }
  static __device__ S guarded(S state) { return upsweep::guarded<kGuards>(Step<S>{one(S()), state}).b; }

  // What this warp's share of n tiles, or of the groups that they are the last of, does to any state. states_from, apart:
  // where the states after these tiles may be found instead.
  __device__ __noinline__ ExtendedStep fold_share_again(const Word* states_from, int64_t apart, const Word* from,
                                                        int n) const {
    const int first = static_cast<int>(threadIdx.x / 32) * kShare;
    ExtendedStep all = ExtendedStep::none<double>();
#pragma unroll 1
    for (int i = first; i < min(n, first + kShare); ++i) {
      ExtendedStep step;
      for (bool ready = false; !ready;) {
        const Word state = load_relaxed(states_from + i * apart * width);
        Word w[kWords];
        bool complete = true;
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          w[k] = load_relaxed(from + (i * kWords + k) * width);
          complete = complete && w[k] != kInvalid;
        }
        if (complete) step = unpack_extended(w);
        else if (state != kInvalid) step = ExtendedStep::reset_to(number_of(state));
        else __nanosleep(32);
        ready = complete || state != kInvalid;
      }
      all = combine<double>(all, step);
    }
    return all;
  }
  // The state before `tile`, which does `own` to any state, where it may be wrong; by all threads. publishes: the state
  // after the tile is not published, but has to be known. state: of the columns that are not in doubt; all columns' then.
  __device__ S state_before_again(int64_t tile, const ExtendedStep& own, bool in_doubt, bool publishes, S initial,
                                  ExtendedColumns& folds, S (&state)[32]) const {
    const int warp = threadIdx.x / 32;
    if constexpr (!std::is_same_v<S, double>) {
      if (warp == 0 && in_doubt) state[column] = tile ? state_after(tile - 1) : initial;
    } else {
      const int64_t group = tile / kGroup, first_group = group / kGroup * kGroup;
      const int n_tiles = static_cast<int>(tile % kGroup), n_groups = static_cast<int>(group % kGroup);
      publishes = publishes && warp == 0;
      if (publishes) publish_extended(extended, tile, own);
      ExtendedStep since = ExtendedStep::none<double>();
      if (n_tiles) {
        const int64_t first = group * kGroup;
        if (in_doubt)
          folds.step[warp][column] =
              fold_share_again(states + first * width, 1, extended + first * kWords * width, n_tiles);
        __syncthreads();
        if (warp == 0 && in_doubt) since = folds.join(shares_of(n_tiles), column);
        if (publishes && n_tiles == kGroup - 1) publish_extended(extended_groups, group, combine<double>(since, own));
        __syncthreads();
      }
      if (n_groups) {
        const int64_t first = first_group * kGroup + kGroup - 1;   // the first group's last tile
        if (in_doubt)
          folds.step[warp][column] = fold_share_again(states + first * width, kGroup,
                                                      extended_groups + first_group * kWords * width, n_groups);
        __syncthreads();
      }
      if (warp == 0 && in_doubt) {
        double before = first_group ? state_after(first_group * kGroup - 1) : initial;
        if (n_groups) before = folds.join(shares_of(n_groups), column).template of<double>(before);
        state[column] = since.of<double>(before);
      }
    }
    __syncthreads();
    return state[column];
  }
};

// What the runs of a warp before a lane's own do, where a warp has several; the warp's last run gets what all of them do.
template <class S, bool kGuards>
struct WarpRuns {
  Step<S> before = {one(S()), nothing(S())};
  bool before_drops = false;

  __device__ WarpRuns(const ColumnLane& own, Step<S>* step, bool* drops) {
    if (own.width == 32) return;
    const int lane = threadIdx.x % 32;
    const auto run_before = [&](int by, bool* other_drops) {
      *other_drops = __shfl_up_sync(0xffffffffu, static_cast<int>(*drops), by);
      return Step<S>{shuffle_up(step->a, by, 32), shuffle_up(step->b, by, 32)};
    };
#pragma unroll 1
    for (int by = own.width; by < 32; by *= 2) {
      bool other_drops;
      const Step<S> other = run_before(by, &other_drops);
      if (lane < by) continue;
      if (!*drops) *step = guarded<kGuards>(combine(other, *step));
      *drops = *drops || other_drops;
    }
    bool other_drops;
    const Step<S> other = run_before(own.width, &other_drops);
    if (lane < own.width) return;
    before = other;
    before_drops = other_drops;
  }
  // The state before the lane's own run.
  __device__ S state(const ColumnLane& own, S warp_state) const {
    if (own.run == 0) return warp_state;
    return before_drops ? before.b : advance(before.a, warp_state, before.b);
  }
};

// A tile of which some columns are in doubt; published: the first warp has published the state after it.
template <class Piece, class Block, class Chain, class S>
__device__ __noinline__ void finish_split_columns_again(const Piece& piece, const Block& block, const Chain& chain,
                                                        ColumnSteps<S>& shared, ExtendedColumns& extended,
                                                        const Problem& p, int64_t begin, int64_t tile, S own,
                                                        bool in_doubt, bool published, bool is_last) {
  const bool publishes = threadIdx.x < 32 && in_doubt && !published && !is_last;
  const S after = finish_columns_again(
      piece, block, shared, extended, p, begin, own, in_doubt, [&](const ExtendedStep& all) {
        return chain.state_before_again(tile, all, in_doubt, publishes, block.begin, extended, shared.state);
      });
  // What the next family begins from. Complex states in doubt are computed from the one after the tile before.
  if (publishes && (!std::is_same_v<S, double> || tile % Chain::kFamily == Chain::kFamily - 1))
    chain.publish_state(tile, after);
}

// aligned: the columns of each block begin on a vector's boundary, at each step.
template <class Element, bool kGated, bool kResets>
__global__ void __launch_bounds__(ColumnTuning::kWarps * 32, kSplitBlocks<Element>)
    scan_split_columns(const __grid_constant__ Problem p, Workspace w, int64_t blocks, int64_t tiles, int width,
                       bool aligned) {
  using S = typename Element::State;
  constexpr int kWarps = ColumnTuning::kWarps, kSteps = kSplitSteps<Element, kGated>;
  constexpr bool kConstant = std::is_same_v<S, double> && !kGated && !kResets;
  using Piece = ColumnPiece<Element, kGated, kResets, kSteps>;
  constexpr bool kGuards = std::is_same_v<S, double> && kGated;
  using Chain = ColumnChain<S, kConstant, kGuards>;
  __shared__ ColumnSteps<S> shared;
  __shared__ ColumnFolds<S> folds;
  __shared__ bool doubtful[32];
  __shared__ uint32_t ticket;
  const int warp = threadIdx.x / 32;
  wait_for_workspace();
  if (threadIdx.x == 0) ticket = tiles > 1 ? atomicAdd(w.counter, 1u) + 1u : blockIdx.x;
  if (warp == 0) doubtful[threadIdx.x] = false;
  __syncthreads();
  // The first tiles of all blocks of columns, then the second ones: a tile's predecessor has then long begun.
  const uint32_t n_blocks = static_cast<uint32_t>(blocks);
  const int64_t block_index = ticket % n_blocks, tile = ticket / n_blocks;
  const ColumnLane lane(width);
  const int runs = kWarps * (32 / width);
  const ColumnBlock<Element, kGated, kSteps> block(p, block_index, lane, runs * static_cast<int>(Chain::kFamily));
  const int64_t begin = (tile * runs + warp * (32 / width) + lane.run) * kSteps;
  // Of the warp: whether all of its steps and columns exist, and whether no final state is among them.
  const bool is_last = tile + 1 == tiles, full = block.full && (tile * runs + (warp + 1) * (32 / width)) * kSteps <= p.length;
  const bool whole = full && !(is_last && p.final_state.data);
  Piece piece;
  if constexpr (Piece::kStaged) {
    using Stage = ColumnStage<typename Element::Raw, kGated, kSteps>;
    const int stage = warp * Stage::kAllVectors;
    Stage::template fetch<Element>(p, block, aligned && full, begin, Piece::steps_left(p, block.inside, begin), stage);
    commit_copies();
    piece.take(p, stage, block.reset, block.inside, begin);
    wait_for_copies<0>();
    __syncwarp();
  } else if (full) {
    piece.template load<true>(p, block.x, block.gates, block.reset, block.inside, begin);
  } else {
    piece.template load<false>(p, block.x, block.gates, block.reset, block.inside, begin);
  }
  Step<S> step = piece.template reduce<kGuards>(block.gamma, block.gamma_steps);
  bool drops = kResets && piece.drops;
  const WarpRuns<S, kGuards> before_run(lane, &step, &drops);
  if (lane.is_last_run()) {
    shared.step[warp][lane.column] = step;
    shared.dropped[warp][lane.column] = drops;
  }
  piece.hide_elements();
  __syncthreads();

  const Chain chain(w, block_index, tiles, lane);
  S multipliers[2] = {one(S()), one(S())};
  if constexpr (kConstant) {
    multipliers[0] = power(block.gamma_steps, runs);
    multipliers[1] = power(multipliers[0], static_cast<uint32_t>(Chain::kGroup));
  }
  step = {one(S()), nothing(S())};
  if (warp == 0 && !is_last) {
    step = shared.template join<kGuards>(kWarps, lane.column, &drops);
    chain.publish_step(chain.steps, tile, step, drops);
  }
  const S before_tile =
      chain.state_before(tile, step, drops, block.begin, p.initial.data != nullptr, multipliers, folds.steps);
  bool published = false;          // by the first warp
  if (warp == 0) {
    // Others wait for this state: it goes out before anything else is done, unless the fold may have made a NaN of an
    // infinity.
    const S after = drops ? step.b : advance(step.a, Chain::guarded(before_tile), step.b);
    published = !is_last && is_finite(after) && !(kGuards && is_large(after));
    if (published) chain.publish_state(tile, after);
    shared.state[lane.column] = before_tile;
  }
  __syncthreads();
  S state = shared.state[lane.column];
  bool finite, any_dropped, in_doubt = false;
  const S before = state;
  const S own = before_run.state(
      lane, shared.template before<kGuards>(warp, lane.column, &state, &finite, &any_dropped));
  if constexpr (!std::is_same_v<S, uint64_t>) {
    finite = finite && is_finite(before) && is_finite(own) && !(kGuards && (is_large(before) || is_large(own)));
    in_doubt = !finite && (kGated || !block.keep);
    if (in_doubt) doubtful[lane.column] = true;
    if (__syncthreads_or(in_doubt)) {
      in_doubt = doubtful[lane.column];
      if (warp == 0 && !is_last && !published && !in_doubt) chain.publish_state(tile, state);
      const Piece copy = piece;
      const auto same_block = block;
      const Chain same_chain = chain;
      return finish_split_columns_again(copy, same_block, same_chain, shared, folds.extended, p, begin, tile, own,
                                        in_doubt, published, is_last);
    }
  }
  if (warp == 0 && !is_last && !published) chain.publish_state(tile, state);
  if (whole) piece.template finish<true>(p, block.out, block.index, block.inside, begin, block.gamma, own);
  else piece.template finish<false>(p, block.out, block.index, block.inside, begin, block.gamma, own);
}

}  // namespace upsweep
