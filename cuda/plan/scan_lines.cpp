#include <algorithm>
#include <cmath>
#include <cstring>

#include "plan/scan.hpp"
#include "plan/tuning.hpp"

namespace upsweep {
namespace {

// Warps of a block that walks along a line: so many that few of its last tile's positions are empty, and that few
// blocks have a line more to walk than others.
int walking_warps(int64_t positions, int64_t lines, int64_t warp_tile, int most, int64_t resident_warps) {
  int best = 1;
  double least = 1e300;
  double price = 1;   // a wider tile needs fewer barriers
  for (int warps = most; warps >= 1; warps /= 2, price *= 1.05) {
    const int64_t tile = warps * warp_tile, covered = (positions + tile - 1) / tile * tile;
    const int64_t resident = resident_warps / warps;
    const int64_t rounds = (lines + resident - 1) / resident;
    const double uneven = rounds > 1 ? double(rounds) * resident / lines : 1;
    const double cost = price * covered * uneven;
    if (cost < least) {
      best = warps;
      least = cost;
    }
  }
  return best;
}

// Whether each line begins as far from a vector's boundary in one array as in the others.
bool same_phase(const Problem& p, const Outer& outer, bool gated) {
  const View* const views[] = {&p.x, &p.gates};
  for (int i = 0; i < (gated ? 2 : 1); ++i) {
    if ((views[i]->data - p.out.data) % 16 || !outer.move_alike(i ? kGates : kX, kOut)) return false;
    for (int dim = 0; dim < p.n_dims; ++dim)
      if ((views[i]->strides[dim] - p.out.strides[dim]) % 16) return false;
  }
  return true;
}

// Whether lines are contiguous in every array, and have nothing of their own but elements.
bool can_pack(const Problem& p, bool gated, int64_t item) {
  if (p.n_dims > 1 || p.exclusive || !p.writes || p.initial.data || p.reset.data || p.final_state.data || p.gamma.data)
    return false;
  const int64_t apart = p.length * item;
  return p.n_dims == 0 ||
         (p.x.strides[0] == apart && p.out.strides[0] == apart && (!gated || p.gates.strides[0] == apart));
}

// Packed lines that a warp takes: its tile begins a part of a vector early where they do not begin on its boundary.
int32_t lines_of_a_warp(int64_t length, int64_t warp_tile, int64_t item, bool aligned) {
  const int64_t most = warp_tile / length;
  return static_cast<int32_t>(aligned && most * length * item % 16 == 0 ? most
                                                                         : (warp_tile - 16 / item + 1) / length);
}

// Positions of a tile of rounds.
int64_t persistent_tile(int64_t item, bool gated) { return PersistentTuning::kWarps * 32 * persistent_elements(item, gated); }

// Whether there are tiles enough of lines that have nothing of their own but elements and states.
bool is_persistent(const Plan& plan, Machine machine, int64_t item) {
  const Problem& p = plan.problem;
  if (!plan.typed || p.reset.data || p.gamma.data || machine.shared_bytes < PersistentTuning::kSharedBytes) return false;
  const int64_t tiles = p.lines * (p.length / persistent_tile(item, plan.gated));
  return tiles >= int64_t(PersistentTuning::kTilesPerProcessor) * machine.n_processors && tiles < INT32_MAX / 2;
}

// For each round a number of each block, or two, in words of whole warps, and what each tile does to any state.
int64_t persistent_workspace(int64_t tiles, int64_t blocks, bool gated) {
  const int64_t rounds = (tiles + blocks - 1) / blocks, tile_words = (blocks + 31) / 32 * 32 * (gated ? 2 : 1);
  return kCounterBytes + (3 * tiles + rounds * tile_words) * 8;   // ExtendedStep::kWords
}

// Lines that cannot keep the memory busy if each has a block.
bool are_few(const Problem& p, int n_processors) { return p.lines < int64_t(SplitTuning::kLinesPerProcessor) * n_processors; }

// Vectors of a tile of longer block lines, two a lane; a power of two.
int64_t walked_vectors(const Plan& plan, int n_processors) {
  using Tuning = BlockTuning;
  const int64_t lines = plan.problem.lines;
  int64_t warps = Tuning::kMostWarps[plan.gated], at_once = int64_t(n_processors) * Tuning::kWalkResident[plan.gated];
  for (; warps > Tuning::kLeastWarps && lines > at_once; warps /= 2) at_once *= 2;
  if (lines > at_once && 2 * lines < 3 * at_once) warps *= 2;   // few blocks would remain after all others
  return warps * 32 * 2;
}

// Whether lines are whole vectors and have nothing of their own but elements, and are so short that each lane has a vector
// or two, or such that blocks iterate over their tiles; and how the lanes of a block share them.
bool is_block_lines(Plan& plan, int n_processors, int64_t item) {
  using Tuning = BlockTuning;
  const Problem& p = plan.problem;
  if (!plan.aligned || p.length == 0 || p.length * item % 16 || p.lines >= INT32_MAX || p.n_dims > 1) return false;
  if (p.exclusive || !p.writes || p.initial.data || p.reset.data || p.final_state.data || p.gamma.data) return false;
  const int64_t vectors = p.length * item / 16, bytes = p.lines * p.length * item, walked = walked_vectors(plan, n_processors);
  const bool few = are_few(p, n_processors), gated_double = plan.gated && item == 8;
  const bool is_large = item == 4 ? !few : bytes > Tuning::kBytes;
  const int64_t most = !plan.gated ? walked : is_large ? Tuning::kGatedVectors[gated_double] : 2 * Tuning::kThreads[1];
  int64_t lanes = walked / 2;
  plan.each = 2;
  if (vectors <= most) {
    plan.each = vectors > (gated_double ? Tuning::kDoubleVectors : 32) ? 2 : 1;
    lanes = (vectors + plan.each - 1) / plan.each;
  } else {
    // Offsets in bytes are ints. With gates, others are faster as kLines.
    if (few || p.length * item > INT32_MAX || (plan.gated && (item != 4 || bytes > Tuning::kGatedBytes))) return false;
  }
  plan.width = 1;
  while (plan.width < lanes && plan.width < 32) plan.width *= 2;
  if (lanes > 32) plan.width = static_cast<int32_t>((lanes + 31) / 32 * 32);
  plan.tile = plan.width * plan.each * (16 / item);
  plan.tiles = (p.length + plan.tile - 1) / plan.tile;
  return true;
}

// Whether the shared memory of all processors holds lines that have nothing of their own but elements, or most of them, and
// how they are cut: with one factor of which no power exceeds 1, and elements whose sums stay finite in float64.
bool is_resident(Plan& plan, Machine machine, int64_t item) {
  using Tuning = ResidentTuning;
  const Problem& p = plan.problem;
  if (!plan.typed || item > 4 || plan.gated || p.reset.data || p.gamma.data || p.initial.data || p.final_state.data) return false;
  if (p.exclusive || !p.writes || !(p.gamma_re > 0 && p.gamma_re <= 1) || !same_phase(p, plan.outer, false)) return false;
  const int64_t most_parts = std::min<int64_t>(machine.n_processors / p.lines, Tuning::kMostParts);
  if (most_parts < 1 || p.length > kMostSteps) return false;
  const int64_t vec = 16 / item, vectors = (p.length + 2 * vec - 2) / vec;   // wherever a line begins
  const int64_t runs = (vectors + most_parts * Tuning::kRun - 1) / (most_parts * Tuning::kRun);
  const int64_t part = runs * Tuning::kRun, piece = Tuning::kThreads * Tuning::kRun;
  const int64_t pieces = (part + piece - 1) / piece, of_lanes = Tuning::kThreads * sizeof(double);
  if (part < Tuning::kLeastVectors || pieces > Tuning::kMostPieces || machine.shared_bytes < PersistentTuning::kSharedBytes)
    return false;
  const int64_t room = (Tuning::kSharedBytes - pieces * of_lanes) / (piece * 16);
  plan.resident.parts = static_cast<int32_t>((vectors + part - 1) / part);
  plan.resident.part_vectors = static_cast<int32_t>(part);
  plan.resident.pieces = static_cast<int32_t>(pieces);
  plan.resident.slots = static_cast<int32_t>(std::min<int64_t>({pieces, room, Tuning::kMostSlots}));
  return true;
}

}  // namespace

void plan_lines(Plan& plan, int32_t accumulator, Machine machine) {
  const int n_processors = machine.n_processors;
  const Problem& p = plan.problem;
  const int64_t item = dtype_size(p.x.dtype);
  const int64_t vec = plan.typed ? 16 / item : 1;                // elements of a vector in memory
  const int64_t lane = plan.typed ? lane_elements(item) : kStridedElements;
  const int64_t warp_tile = 32 * lane;
  // Lines that do not begin on a vector's boundary begin earlier by up to a vector.
  const Outer& outer = plan.outer;
  const bool out_aligned = !plan.typed || (is_aligned(p.out, p, item) && outer.keeps_vectors(kOut));
  plan.aligned = plan.typed && out_aligned && is_aligned(p.x, p, item) && outer.keeps_vectors(kX) &&
                 (!plan.gated || (is_aligned(p.gates, p, item) && outer.keeps_vectors(kGates)));
  if (is_block_lines(plan, n_processors, item)) {
    plan.regime = kBlockLines;
    return;
  }
  if (plan.typed && can_pack(p, plan.gated, item) && p.length <= warp_tile / 2 && p.length > 0) {
    plan.each = lines_of_a_warp(p.length, warp_tile, item, plan.aligned);
    plan.regime = kPackedLines;
    plan.tile = plan.each * p.length;
    plan.tiles = 1;
    return;
  }
  const int64_t short_vec = plan.typed ? vec : kStridedElements;
  const int64_t vectors = (p.length + (out_aligned ? 0 : vec - 1) + short_vec - 1) / short_vec;
  if (vectors <= 32 && p.length > 0) {
    plan.regime = kShortLines;
    plan.width = 1;
    while (plan.width < vectors) plan.width *= 2;
    plan.tile = int64_t(plan.width) * short_vec;
    plan.tiles = 1;
    return;
  }
  const int64_t positions = p.length + (out_aligned ? 0 : vec - 1);
  // A cluster for each line, where all lines begin at once, or a block.
  const int64_t held_tile = 32 * vec * cluster_vectors(item, plan.gated);   // of a warp
  const bool few_long = machine.cluster_blocks > 1 && p.lines <= ClusterTuning::kLines &&
                        p.length > 2 * SplitTuning::kWarps * warp_tile;
  const int64_t held_tiles = (positions + held_tile - 1) / held_tile;
  const bool few = are_few(p, n_processors);
  const int64_t most_bytes = plan.typed && plan.gated ? ClusterTuning::kBytes[item / 4] : 0;
  const bool is_short = plan.gated ? p.lines * p.length * item <= most_bytes
                                   : few && p.length + vec - 1 > 2 * SplitTuning::kWarps * warp_tile;
  const bool many_short = is_short && held_tiles >= ClusterTuning::kLeastWarps && same_phase(p, outer, plan.gated);
  const int64_t cluster_blocks = few_long ? machine.cluster_blocks : 1;
  const int64_t held_warps = (held_tiles + cluster_blocks - 1) / cluster_blocks;
  if (plan.typed && !p.reset.data && (few_long || many_short) && held_warps <= ClusterTuning::kWarps) {
    plan.regime = kClusterLines;
    plan.warps = static_cast<int32_t>(held_warps);
    plan.tile = plan.warps * held_tile;
    plan.tiles = cluster_blocks;
    return;
  }
  if (is_resident(plan, machine, item)) {
    plan.regime = kResidentLines;
    plan.tile = plan.resident.part_vectors * vec;
    plan.tiles = plan.resident.parts;
    if (plan.tiles > 1) plan.workspace_bytes = kCounterBytes + p.lines * plan.tiles * 8;
    return;
  }
  if (p.lines <= PersistentTuning::kLines && is_persistent(plan, machine, item)) {
    plan.regime = kPersistentLines;
    plan.tile = persistent_tile(item, plan.gated);
    plan.tiles = (p.length + vec - 1 + plan.tile - 1) / plan.tile;
    plan.blocks = std::min(n_processors, PersistentTuning::kMostBlocks);
    plan.workspace_bytes = persistent_workspace(p.lines * plan.tiles, plan.blocks, plan.gated);
    return;
  }
  // Tiles of a split line: longer where there are enough of them.
  const int64_t long_tile = SplitTuning::kWarps * 32 * SplitTuning::kRunVectors[plan.gated] * vec;
  plan.long_runs = plan.typed && item >= 4 && !p.reset.data &&
                   p.lines * (p.length / long_tile) >= int64_t(SplitTuning::kTilesPerProcessor) * n_processors;
  const int64_t split_tile = plan.long_runs ? long_tile : SplitTuning::kWarps * warp_tile;
  const int64_t split_tiles = (p.length + vec - 1 + split_tile - 1) / split_tile;
  const bool split = (few || p.length > kMostSteps) && split_tiles > 2 &&
                     p.lines * split_tiles < INT32_MAX;
  plan.regime = split ? kSplitLines : kLines;
  // Elements outside a line change no state, unless gamma meets an initial one before the line's first, or one that is
  // to be left after its last.
  const bool has_state = p.initial.data || p.final_state.data;
  plan.simple = plan.typed && !p.reset.data && !p.exclusive && p.length > 0 && same_phase(p, outer, plan.gated) &&
                (plan.gated || !has_state);
  plan.warps = walking_warps(positions, p.lines, warp_tile, LineTuning::kWarps,
                             int64_t(n_processors) * LineTuning::kBlocks * LineTuning::kWarps);
  plan.tile = split ? split_tile : plan.warps * warp_tile;
  plan.tiles = (p.length + vec - 1 + plan.tile - 1) / plan.tile;
  if (split) plan.workspace_bytes = workspace_of(p.lines * plan.tiles, p.lines * ((plan.tiles + 31) / 32), 1, accumulator);
}

const char* make_backward_plan(const upsweep_lines_backward& b, int n_processors, BackwardPlan* result) {
  if (!is_typed(b.dtype)) return "dtype is not a real floating one";
  if (b.lines < 0) return "lines is negative";
  if (b.length < 0) return "length is negative";
  BackwardPlan& plan = *result;
  std::memset(&plan, 0, sizeof plan);
  plan.supported = true;
  if (b.lines == 0 || b.length == 0) return nullptr;
  const void* const arrays[] = {b.g, b.gates, b.y, b.gx, b.g_gates};
  for (const void* array : arrays) {
    if (!array) return "gates, y, g, gx and g_gates have to be given";
    plan.supported = plan.supported && (reinterpret_cast<uintptr_t>(array) - reinterpret_cast<uintptr_t>(b.gx)) % 16 == 0;
  }
  const int64_t item = dtype_size(b.dtype), vec = 16 / item, warp_tile = 32 * lane_elements(item);
  const int64_t split_tile = SplitTuning::kWarps * warp_tile;
  // Few long lines are split over blocks, which this kernel does not do.
  const bool split = b.lines < int64_t(SplitTuning::kLinesPerProcessor) * n_processors &&
                     (b.length + vec - 1 + split_tile - 1) / split_tile > 2;
  plan.supported = plan.supported && b.length <= kMostSteps && !split;
  if (!plan.supported) return nullptr;
  Problem& p = plan.problem;
  p.lines = b.lines;
  p.length = b.length;
  p.writes = true;
  p.x.data = static_cast<char*>(b.g);
  p.gates.data = static_cast<char*>(b.gates);
  p.out.data = static_cast<char*>(b.gx);
  p.x.dtype = p.gates.dtype = p.out.dtype = b.dtype;
  plan.y = static_cast<const char*>(b.y);
  plan.g_gates = static_cast<char*>(b.g_gates);
  plan.reverse = !b.reverse;
  const bool aligned = reinterpret_cast<uintptr_t>(b.gx) % 16 == 0 && b.length * item % 16 == 0;
  if (b.length <= warp_tile / 2) {
    plan.each = lines_of_a_warp(b.length, warp_tile, item, aligned);
    return nullptr;
  }
  const int64_t positions = b.length + (aligned ? 0 : vec - 1);
  plan.warps = walking_warps(positions, b.lines, warp_tile, BackwardTuning::kWarps,
                             int64_t(n_processors) * BackwardTuning::kBlocks * BackwardTuning::kWarps);
  plan.tiles = (positions + plan.warps * warp_tile - 1) / (plan.warps * warp_tile);
  return nullptr;
}

}  // namespace upsweep
