#include "plan/scan.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "plan/tuning.hpp"

namespace upsweep {
namespace {

struct Axis {
  int64_t size;
  int64_t strides[kMostArrays];
};

// Axes of size 1 dropped, outermost first by the strides of out, neighbours merged where every array allows it.
int merge_axes(const upsweep_scan& scan, const upsweep_array* const* arrays, int n_arrays, Axis* axes) {
  int n = 0;
  for (int dim = 0; dim < scan.n_batch; ++dim) {
    if (scan.batch_shape[dim] == 1) continue;
    axes[n].size = scan.batch_shape[dim];
    for (int i = 0; i < n_arrays; ++i) axes[n].strides[i] = arrays[i]->data ? arrays[i]->batch_strides[dim] : 0;
    ++n;
  }
  std::stable_sort(axes, axes + n, [](const Axis& a, const Axis& b) {
    return std::llabs(a.strides[kOut]) > std::llabs(b.strides[kOut]);
  });
  int n_merged = n ? 1 : 0;
  for (int dim = 1; dim < n; ++dim) {
    Axis& outer = axes[n_merged - 1];
    const Axis& inner = axes[dim];
    bool merges = true;
    for (int i = 0; i < n_arrays; ++i) merges = merges && outer.strides[i] == inner.strides[i] * inner.size;
    if (merges) {
      outer.size *= inner.size;
      std::copy(inner.strides, inner.strides + n_arrays, outer.strides);
    } else {
      axes[n_merged++] = inner;
    }
  }
  return n_merged;
}

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

// A counter in a line of its own, then the tile states (scan/look_back.cuh, scan/split_columns.cuh): of tiles and groups
// of `lanes` lines each.
int64_t workspace_of(int64_t tiles, int64_t groups, int64_t lanes, int32_t accumulator) {
  const int64_t step_words = accumulator == UPSWEEP_COMPLEX ? 4 : 2, state_words = accumulator == UPSWEEP_REAL ? 1 : 2;
  const int64_t extended_words = 3;   // ExtendedStep::kWords
  return kCounterBytes + (tiles * state_words + (tiles + groups) * (step_words + extended_words)) * lanes * 8;
}

// Columns of a block where they are split: no more lanes than columns where there are tiles enough all the same.
int32_t split_width(const Problem& p, int64_t columns, int64_t steps) {
  int32_t width = 8;
  while (width < 32 && (width < columns || p.lines / columns * (p.length * width / (32 * ColumnTuning::kWarps * steps)) <
                                               ColumnTuning::kNarrowTiles))
    width *= 2;
  return width;
}

// Whether columns are held whole, and by how many threads: with one factor of which no power overflows or vanishes, and
// elements whose sums stay finite in float64.
bool holds_columns(Plan& plan, int64_t columns, int64_t item) {
  const Problem& p = plan.problem;
  if (!plan.typed || item > 4 || plan.gated || p.reset.data || p.gamma.data || std::fabs(p.gamma_re) > 1) return false;
  for (const HeldTuning::Shape shape : HeldTuning::kShapes) {
    const int64_t steps = int64_t(shape.run) * shape.warps * (32 / HeldTuning::kColumns);
    if (p.length > steps) continue;
    if (!std::isnormal(std::pow(std::fabs(p.gamma_re), double(steps)))) return false;
    plan.regime = kHeldColumns;
    plan.each = shape.run;
    plan.warps = shape.warps;
    plan.blocks = p.lines / columns * ((columns + HeldTuning::kColumns - 1) / HeldTuning::kColumns);
    plan.tile = p.length;
    plan.tiles = 1;
    return plan.blocks <= HeldTuning::kBlocks && plan.blocks < INT32_MAX;
  }
  return false;
}

// Whether a thread walks along each few columns, of which all rows begin on a boundary of what it loads.
bool walks_columns(Plan& plan, int64_t columns, int64_t item) {
  const Problem& p = plan.problem;
  if (!plan.aligned || p.reset.data || p.lines < WideTuning::kLines || columns % WideTuning::kColumns) return false;
  if (!has_aligned_rows(p.out, p, item) || !plan.outer.keeps_vectors(kOut)) return false;
  const int64_t of_block = int64_t(WideTuning::kThreads) * WideTuning::kColumns;
  plan.regime = kWideColumns;
  plan.blocks = (p.lines + of_block - 1) / of_block;
  plan.tile = p.length;
  plan.tiles = 1;
  return plan.blocks < INT32_MAX;
}

// Columns of a block whose one tile holds them from the first to the last step, so that no tile waits for another one:
// 8 where all blocks run at the same time, else the least with which they do; 0 if there is none.
int32_t whole_width(const Problem& p, int64_t columns, int64_t steps, int n_processors) {
  if (p.length <= 4 * ColumnTuning::kWarps * ColumnTuning::kSteps) return 0;
  for (int32_t width = 8; width <= 32 && p.length <= ColumnTuning::kWarps * (32 / width) * steps; width *= 2)
    if (p.lines / columns * ((columns + width - 1) / width) <= int64_t(ColumnTuning::kSplitBlocks) * n_processors)
      return width;
  return 0;
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

void choose_regime(Plan& plan, int32_t accumulator, Machine machine) {
  const int n_processors = machine.n_processors;
  Problem& p = plan.problem;
  const int64_t item = dtype_size(p.x.dtype);
  const bool same = accumulator == UPSWEEP_REAL && is_typed(p.x.dtype) && p.out.dtype == p.x.dtype &&
                    (!plan.gated || p.gates.dtype == p.x.dtype);
  const int64_t stride = p.out.time_stride;
  const bool contiguous = same && std::llabs(stride) == item && p.x.time_stride == stride &&
                          (!plan.gated || p.gates.time_stride == stride);
  const int64_t columns = p.n_dims ? p.shape[p.n_dims - 1] : 1;
  plan.typed = contiguous;
  plan.reverse = contiguous && stride < 0;

  if (runs_down(p)) {
    plan.typed = same;
    plan.aligned = same && has_aligned_rows(p.x, p, item) && plan.outer.keeps_vectors(kX) &&
                   (!plan.gated || (has_aligned_rows(p.gates, p, item) && plan.outer.keeps_vectors(kGates)));
    if (walks_columns(plan, columns, item) || holds_columns(plan, columns, item)) return;
    plan.blocks = p.lines / columns * ((columns + 31) / 32);
    const int64_t split_steps = plan.typed ? split_column_steps(item, plan.gated) : ColumnTuning::kAnySplitSteps;
    const int32_t whole = whole_width(p, columns, split_steps, n_processors);
    plan.width = whole ? whole : split_width(p, columns, split_steps);
    const int64_t split_tile = ColumnTuning::kWarps * (32 / plan.width) * split_steps;
    const int64_t split_tiles = (p.length + split_tile - 1) / split_tile;
    const bool split = plan.blocks < int64_t(ColumnTuning::kBlocksPerProcessor) * n_processors &&
                       (whole || split_tiles > 2) && plan.blocks * split_tiles < INT32_MAX;
    if (whole && split) plan.blocks = p.lines / columns * ((columns + whole - 1) / whole);
    plan.regime = split ? kSplitColumns : kColumns;
    plan.tile = split ? split_tile : ColumnTuning::kWarps * ColumnTuning::kSteps;
    plan.tiles = (p.length + plan.tile - 1) / plan.tile;
    if (split && !whole)
      plan.workspace_bytes =
          workspace_of(plan.blocks * plan.tiles, plan.blocks * ((plan.tiles + ColumnTuning::kGroup - 1) / ColumnTuning::kGroup),
                       plan.width, accumulator);
    return;
  }

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

}  // namespace

bool is_aligned(const View& view, const Problem& p, int64_t item) {
  const bool reverse = view.time_stride < 0;
  bool aligned = (reinterpret_cast<uintptr_t>(view.data) + (reverse ? item : 0)) % 16 == 0;
  aligned = aligned && (!reverse || p.length * item % 16 == 0);
  for (int dim = 0; dim < p.n_dims; ++dim) aligned = aligned && view.strides[dim] % 16 == 0;
  return aligned;
}

GammaPowers powers_of(double gamma, int vec, int times) {
  const auto power = [](double base, uint32_t exponent) {
    double result = 1;
    for (; exponent; exponent >>= 1) {
      if (exponent & 1) result *= base;
      base *= base;
    }
    return result;
  };
  GammaPowers powers;
  powers.gamma = gamma;
  double p = power(gamma, vec);
  for (double& before : powers.before_lane) before = 1;
  for (int i = 0; i < 5; ++i) {
    powers.doubled[i] = p;
    for (int lane = 0; lane < 32; ++lane)
      if (lane >> i & 1) powers.before_lane[lane] *= p;
    p *= p;
  }
  powers.group = p;
  powers.sub = power(gamma, kSubrunElements);
  powers.most = power(p, times);
  return powers;
}

int64_t dtype_size(int32_t dtype) {
  static const int8_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
  return dtype >= 0 && dtype <= UPSWEEP_COMPLEX128 ? sizes[dtype] : 0;
}

bool is_typed(int32_t dtype) { return dtype >= UPSWEEP_FLOAT16 && dtype <= UPSWEEP_FLOAT64; }

bool has_aligned_rows(const View& view, const Problem& p, int64_t item) {
  if (!p.n_dims || view.strides[p.n_dims - 1] != item || view.time_stride % 16) return false;
  bool aligned = reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  for (int dim = 0; dim + 1 < p.n_dims; ++dim) aligned = aligned && view.strides[dim] % 16 == 0;
  return aligned;
}

bool runs_down(const Problem& p) {
  if (p.length <= 1 || !p.n_dims) return false;
  const int innermost = p.n_dims - 1;
  return p.shape[innermost] >= 8 && std::llabs(p.out.strides[innermost]) < std::llabs(p.out.time_stride);
}

const char* check_scan(const upsweep_scan& scan) {
  if (scan.length < 0) return "length is negative";
  if (scan.n_batch < 0 || scan.n_batch > UPSWEEP_MAX_DIMS) return "n_batch is out of range";
  if (scan.accumulator < UPSWEEP_REAL || scan.accumulator > UPSWEEP_INTEGER) return "accumulator is unknown";
  for (int dim = 0; dim < scan.n_batch; ++dim)
    if (scan.batch_shape[dim] < 0) return "batch_shape is negative";
  const upsweep_array& last = scan.final_state;
  if (last.data && scan.accumulator == UPSWEEP_REAL && last.dtype != UPSWEEP_FLOAT32 && last.dtype != UPSWEEP_FLOAT64)
    return "final_state has to be float32 or float64";
  return nullptr;
}

void lay_out(const upsweep_scan& scan, const upsweep_array* const* arrays, View* const* views, int n_arrays, Problem* p,
             Outer* outer) {
  p->length = scan.length;
  p->exclusive = scan.exclusive;
  p->writes = scan.out.data != nullptr;
  p->gamma_re = scan.gamma_re;
  p->gamma_im = scan.gamma_im;
  Axis axes[UPSWEEP_MAX_DIMS];
  const int n = merge_axes(scan, arrays, n_arrays, axes);
  const int n_merged = std::min(n, kDims);
  outer->n = n - n_merged;
  outer->n_launches = 1;
  for (int dim = 0; dim < outer->n; ++dim) {
    outer->shape[dim] = axes[dim].size;
    outer->n_launches *= axes[dim].size;
    for (int i = 0; i < n_arrays; ++i) outer->strides[i][dim] = axes[dim].strides[i];
  }
  p->n_dims = n_merged;
  p->lines = 1;
  for (int dim = 0; dim < n_merged; ++dim) {
    p->shape[dim] = axes[outer->n + dim].size;
    p->lines *= p->shape[dim];
  }
  constexpr int kTimed = 4;        // arrays with an axis of time
  for (int i = 0; i < n_arrays; ++i) {
    View& view = *views[i];
    view.data = static_cast<char*>(arrays[i]->data);
    view.dtype = arrays[i]->dtype;
    // A single step has no stride of its own; numpy leaves it undefined.
    view.time_stride = scan.length > 1 ? arrays[i]->time_stride : dtype_size(view.dtype);
    for (int dim = 0; dim < n_merged; ++dim) view.strides[dim] = axes[outer->n + dim].strides[i];
    if (view.data && i < kTimed && scan.reverse && scan.length > 1) {
      view.data += (scan.length - 1) * view.time_stride;
      view.time_stride = -view.time_stride;
    }
  }
}

const char* make_plan(const upsweep_scan& scan, Machine machine, Plan* result) {
  if (const char* wrong = check_scan(scan)) return wrong;
  if (scan.window < 0) return "window is negative";
  if (scan.window && (scan.gates.data || scan.initial.data || scan.final_state.data || scan.exclusive ||
                      scan.accumulator == UPSWEEP_INTEGER))
    return "window goes with x, gamma, reset and out alone";
  // What is not written has a layout all the same: that of what is read.
  const bool writes = scan.out.data != nullptr;
  const upsweep_array& out = writes ? scan.out : scan.x.time_stride || !scan.gates.data ? scan.x : scan.gates;
  const upsweep_array* const arrays[kScanArrays] = {&scan.x,     &scan.gates,   &scan.reset,      &out,
                                                    &scan.gamma, &scan.initial, &scan.final_state};
  Plan& plan = *result;
  // Outer has 5 KiB, of which lay_out writes what is read.
  std::memset(&plan, 0, offsetof(Plan, outer));
  plan.outer.n = 0;
  plan.outer.n_launches = 0;
  Problem& p = plan.problem;
  View* const views[kScanArrays] = {&p.x, &p.gates, &p.reset, &p.out, &p.gamma, &p.initial, &p.final_state};
  p.lines = 1;
  for (int dim = 0; dim < scan.n_batch; ++dim) p.lines *= scan.batch_shape[dim];
  if (p.lines == 0 || (scan.length == 0 && !scan.final_state.data)) return nullptr;
  if (scan.length && (!scan.x.data || !(writes || scan.final_state.data)))
    return "x and one of out and final_state have to be given";
  for (const upsweep_array* array : arrays)
    if (array->data && !dtype_size(array->dtype)) return "dtype is unknown";
  lay_out(scan, arrays, views, kScanArrays, &p, &plan.outer);
  plan.gated = scan.gates.data != nullptr;
  // A window that reaches over the whole line is none.
  plan.window = scan.window < scan.length ? scan.window : 0;
  if (plan.window) plan_window(plan, scan.accumulator);
  else choose_regime(plan, scan.accumulator, machine);
  if (plan.regime != kWindow) plan.invalid_bytes = plan.workspace_bytes;
  return nullptr;
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
