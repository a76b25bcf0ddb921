// Few long lines, of many tiles: blocks that stay, each of which takes one tile after the other.
//
// Bytes an element: x and gates are read once, out is written once. What a tile does to a state is published one tile
// ahead: a block publishes its next tile before it writes the one in hand. So hardly any tile waits when it looks back,
// and while one is written the next one's elements are on their way. Were it published only once the one in hand is
// done, all tiles would wait for each other (1,926 microseconds for 2^28 elements, against 825 of a block a tile).
//
// Tiles are claimed in increasing order, and no tile waits for a later one: a block that has not begun holds up nobody.
#pragma once

#include "scan_lines.cuh"

namespace upsweep {

// A tile of a line: which one, and the warp's place in it.
template <class Line>
struct TileOfLine {
  static constexpr int kTile = LongTuning::kWarps * 32 * Line::kVec;
  uint32_t row;
  int64_t index;                   // of the tile in its line

  // The first tiles of all lines, then the second ones: a tile's predecessor has then long begun.
  __device__ TileOfLine(uint32_t ticket, uint32_t lines) : row(ticket % lines), index(ticket / lines) {}
  __device__ Line line(const Problem& p, int stage) const {
    Line line(p, LineIndex(p, row), index * kTile);
    line.base = stage;
    return line;
  }
};

template <class Line, bool kGated>
__global__ void __launch_bounds__(LongTuning::kWarps * 32, LongTuning::kBlocks)
    scan_long_lines(const __grid_constant__ Problem p, const __grid_constant__ GammaPowers given, Workspace w,
                    int64_t tiles) {
  using S = typename Line::State;
  using Place = TileOfLine<Line>;
  constexpr int kWarps = LongTuning::kWarps, kWarpTile = 32 * Line::kVec, kStage = kStageVectors<Line, kGated>;
  // A warp may be at the next tile while another is still at this one.
  __shared__ WarpSteps<S, kWarps> shared[3];
  __shared__ uint32_t tickets[2];
  __shared__ S states_before[2];
  __shared__ BlockPowers<S> powers;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_position = warp * kWarpTile, position = warp_position + lane * Line::kVec;
  const int stage = warp * 2 * kStage;
  const uint32_t lines = static_cast<uint32_t>(p.lines), n_tiles = lines * static_cast<uint32_t>(tiles);

  const auto fetch = [&](uint32_t ticket, int turn) {
    if (ticket < n_tiles)
      Place(ticket, lines).line(p, 0).template fetch<kGated>(warp_position, stage + turn * kStage, lane);
    commit_copies();
  };
  // What the warp's part of a tile does, for the others to see.
  const auto take = [&](Tile<Line, kGated, false>& tile, const Line& line, const Place& place, bool plain, int slot) {
    const S initial = place.index ? nothing(S()) : initial_of<S>(p, LineIndex(p, place.row));
    tile.take(line, position, initial, powers, plain, lane);
    if (lane == 0) shared[slot].step[warp] = tile.all;
  };
  // By the first warp.
  const auto publish = [&](const Place& place, int slot) {
    if (place.index + 1 == tiles) return;
    const LineChain<S> chain(w, p.lines, place.row, tiles);
    bool drops;
    const Step<S> step = shared[slot].all(&drops);
    if (lane == 0) chain.publish_step(place.index, step, false);
    if (place.index % kGroup == kGroup - 1) {
      const Step<S> since = chain.since_group(place.index, lane, &drops);
      chain.publish_group(place.index, since, false, step, false, lane);
    }
  };

  if (threadIdx.x == 0) tickets[0] = atomicAdd(w.counter, 1u) + 1u;
  if (threadIdx.x < kWarps * 3) shared[threadIdx.x / kWarps].dropped[threadIdx.x % kWarps] = false;
  __syncthreads();
  uint32_t ticket = tickets[0];
  if (ticket >= n_tiles) return;
  fetch(ticket, 0);
  if (!kGated) set_powers(powers, p, given, 0, Line::kVec, kWarps * static_cast<int>(kFamily));
  __syncthreads();
  Line line = Place(ticket, lines).line(p, stage);
  bool plain = is_plain(line, p, warp_position, kWarpTile);
  wait_for_copies<0>();
  __syncwarp();
  Tile<Line, kGated, false> tile;
  take(tile, line, Place(ticket, lines), plain, 0);
  // The second one only now: with two from the start each block's first tile would wait for the block before to have
  // found the state of its own first one, and so on, one after the other.
  if (threadIdx.x == 0) tickets[1] = atomicAdd(w.counter, 1u) + 1u;
  __syncthreads();
  uint32_t next = tickets[1];
  fetch(next, 1);
  if (warp == 0) publish(Place(ticket, lines), 0);

  for (int turn = 0, slot = 0;; turn ^= 1) {
    const Place place(ticket, lines);
    const LineChain<S> chain(w, p.lines, place.row, tiles);
    const bool is_last = place.index + 1 == tiles;
    bool published = false;        // by the first warp
    if (warp == 0) {
      if (lane == 0) tickets[turn] = atomicAdd(w.counter, 1u) + 1u;
      S found = nothing(S());
      bool drops;
      if (place.index) {
        const Step<S> since = chain.since_group(place.index, lane, &drops);
        found = chain.state_before(place.index, since, false, lane);
      }
      if (lane == 0) states_before[turn] = found;
      const Step<S> step = shared[slot].all(&drops);
      const S after = advance(step.a, found, step.b);
      published = !is_last && is_finite(after);
      if (lane == 0 && published) chain.publish_state(place.index, after);
    }
    // The others are at the next tile meanwhile.
    const int next_slot = slot == 2 ? 0 : slot + 1;
    Line next_line;
    bool next_plain = false;
    Tile<Line, kGated, false> next_tile;
    if (next < n_tiles) {
      const Place next_place(next, lines);
      next_line = next_place.line(p, stage + (turn ^ 1) * kStage);
      next_plain = is_plain(next_line, p, warp_position, kWarpTile);
      wait_for_copies<0>();
      __syncwarp();
      take(next_tile, next_line, next_place, next_plain, next_slot);
    }
    __syncthreads();
    if (warp == 0 && next < n_tiles) publish(Place(next, lines), next_slot);

    S state = states_before[turn];
    bool finite, any_dropped;
    S mine = shared[slot].before(warp, kWarps, &state, &finite, &any_dropped);
    bool in_order = !finite && (kGated || !powers.keep);
    if (in_order) {
      // The fold may have made a NaN of an infinity: take the state that the tile before really left.
      state = place.index ? chain.state_after(place.index - 1) : nothing(S());
      in_order = !is_nan(state);
      mine = state;
    }
    if (in_order) state = finish_tile_in_order(tile, shared[slot], line, p, place.row, position, powers.gamma, state);
    if (threadIdx.x == 0 && !is_last && !published) chain.publish_state(place.index, state);
    if (!in_order) tile.give(line, p, place.row, position, powers, mine, plain, lane);
    if (p.writes) line.flush(warp_position, plain, lane);
    if (next >= n_tiles) break;
    ticket = next;
    next = tickets[turn];
    fetch(next, turn);
    line = next_line;
    plain = next_plain;
    tile = next_tile;
    slot = next_slot;
  }
}

}  // namespace upsweep
