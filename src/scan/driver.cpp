// The two ways through a scan, the same for every layout and type:
//
//   by_strip   many lines: a thread takes whole strips, one pass over memory; it scans them, or finds what they do to
//              a state.
//   blocked    few lines: each is cut into blocks of one cache's size. A thread claims the next block from a
//              counter, reduces it (which brings it into the L2), waits for the state from the block before,
//              publishes its own, and scans from the L2: memory is still read once. Blocks are claimed in
//              increasing order, so whoever is waited for has been claimed and is running. A block is summed in
//              another order than the loop's, which shows where a state overflows on the way: one that might is
//              scanned before its state is published.
//
// Which one, and the size of the blocks, follows from shape and type alone: results do not depend on the
// number of threads. Sums of integers have the same bits in any order; one thread takes them by strips.

#include <memory>

#include "common/parallel.hpp"
#include "scan/scan.hpp"
#include "scan/strips.hpp"

namespace upsweep {
namespace {

constexpr int64_t kManyLines = 32;             // strips of this many lines (or column groups) go whole
constexpr int64_t kManyColumnGroups = 16;
constexpr int64_t kColumnGroup = 64;
// Read or written by a task before it looks whether the call is to end: 2 to 10 ms.
constexpr int64_t kPollBytes = 32 << 20;

template <class Acc, class Factor = Acc>
class Driver {
 public:
  explicit Driver(const ScanProblem& problem) : p(problem), strips(problem) {
    n_batch = 1;
    for (int dim = 0; dim < p.n_batch; ++dim) n_batch *= p.batch_shape[dim];
    lanes_total = n_batch * p.columns;
    bytes = lanes_total * p.length * strips.step_bytes();
    stream = should_stream(p, lanes_total);
    n_threads = threads_worth(p.n_threads, bytes, INT64_MAX);
  }

  void run() {
    if (lanes_total == 0) return;
    const bool by_lines = strips.by_lines();
    const int64_t groups = by_lines ? lanes_total : n_batch * share_of(p.columns, kColumnGroup);
    const bool many = groups >= (by_lines ? kManyLines : kManyColumnGroups);
    const bool carry_only = p.multiplier.data != nullptr;
    block_steps = steps_of_block(by_lines ? 1 : std::min(p.columns, kColumnGroup));
    // Sums of integers are the same in any order: one thread need not reduce the blocks first.
    const bool in_blocks = std::is_same_v<Acc, double> || (std::is_same_v<Acc, uint64_t> && n_threads > 1);
    if (!many && (carry_only || (p.length > block_steps && in_blocks))) {
      strip_lanes = by_lines ? 1 : p.columns;   // whole rows, which lie next to each other in memory
      block_steps = steps_of_block(strip_lanes);
      blocked();
    } else {
      // Columns are reduced in the groups that blocked() has: where one needs its steps in order, all of them take them.
      const int64_t most = carry_only && !by_lines ? kColumnGroup : kMaxStripLanes;
      const int64_t lane_bytes = std::max<int64_t>(p.length * strips.step_bytes(), 1);
      strip_lanes = by_lines ? std::clamp<int64_t>(kTaskBytes / lane_bytes, 1, most) : most;
      // Every thread has something to do: of lines several strips, since a thread may be late; of columns one, since
      // rows in narrow pieces defeat the prefetchers (Xeon with 16 threads: 0.13 ns an element in pieces of 0.5 KiB,
      // 0.06 in those of 2.5). A batch is cut into equal strips.
      if (n_threads > 1 && by_lines) strip_lanes = std::min(strip_lanes, share_of(lanes_total, n_threads * 4));
      if (n_threads > 1 && !by_lines) strip_lanes = std::min(strip_lanes, round_up(share_of(lanes_total, n_threads)));
      strip_lanes = std::max<int64_t>(1, std::min(strip_lanes, p.columns));
      if (!by_lines) strip_lanes = std::min(round_up(share_of(p.columns, strips_a_batch())), p.columns);
      by_strip();
    }
  }

 private:
  const ScanProblem& p;
  typedef typename Strips<Acc, Factor>::Workspace Workspace;
  typedef typename Strips<Acc, Factor>::Effect Effect;

  Strips<Acc, Factor> strips;
  int64_t n_batch, lanes_total, bytes, strip_lanes = 1, block_steps = 0;
  bool stream;
  int n_threads;

  int64_t steps_of_block(int64_t lanes) const {
    return share_of(std::max<int64_t>(kBlockBytes / strips.step_bytes() / lanes, 1), 64) * 64;
  }
  static int64_t share_of(int64_t n, int64_t n_parts) { return (n + n_parts - 1) / n_parts; }
  static int64_t round_up(int64_t columns) { return share_of(columns, kColumnGroup) * kColumnGroup; }
  int64_t strips_a_batch() const { return share_of(p.columns, strip_lanes); }
  Strip strip(int64_t index) const {
    const int64_t column = index % strips_a_batch() * strip_lanes;
    return strips.strip(index / strips_a_batch(), column, std::min(strip_lanes, p.columns - column));
  }

  void load_initial(const Strip& s, Acc* carry) const {
    if (s.initial) gather(s.initial, p.initial.column_stride, s.lanes, p.initial.dtype, p.initial.swapped, carry);
    else std::fill_n(carry, s.lanes, Unit<Acc>::zero);
  }
  void store_final(const Strip& s, const Acc* carry) const {
    if (s.final_state) scatter(carry, s.lanes, p.final_state.dtype, s.final_state, p.final_state.column_stride);
  }

  void by_strip() {
    const int64_t n_tasks = n_batch * strips_a_batch();
    n_threads = (int)std::min<int64_t>(n_threads, n_tasks);
    std::vector<Workspace> workspaces;
    for (int k = 0; k < n_threads; ++k) workspaces.push_back(strips.workspace(strip_lanes));
    for_tasks(n_tasks, n_threads, p.flush, [&](int64_t task, int thread) {
      Workspace& w = workspaces[thread];
      const Strip s = strip(task);
      if (p.multiplier.data) return reduce_strip(s, w);
      load_initial(s, w.carry.data());
      const int64_t bytes_a_step = std::max(strips.step_bytes(), dtype_size(p.out.dtype)) * s.lanes;
      const int64_t steps = std::max<int64_t>(kPollBytes / bytes_a_step / 64 * 64, 64);
      for (int64_t from = 0; from < p.length; from += steps) {
        const int64_t to = std::min(p.length, from + steps);
        strips.scan(s, from, to, w.carry.data(), from == 0 && !p.initial.data, stream, true, w);
        if (to < p.length) poll();
      }
      store_final(s, w.carry.data());
      if (stream) end_stream();
    });
  }

  // What a strip does to a state, in blocks that stay in the cache until, where need be, they are scanned: lines each
  // for itself, so that their bits do not follow from the strip's size.
  void reduce_strip(const Strip& s, Workspace& w) {
    Acc* carry = w.carry.data();
    load_initial(s, carry);
    for (int64_t from = 0; from < p.length; from += block_steps) {
      const int64_t to = std::min(p.length, from + block_steps);
      const bool first = from == 0 && !p.initial.data;
      strips.reduce(s, from, to, first, w.effects.data(), w);
      bring_forward(s, from, to, first, strips.by_lines() ? 1 : s.lanes, carry, w.after.data(), w);
      std::copy_n(w.after.data(), s.lanes, carry);
      multiply_products(w, s.lanes, from ? w.products.data() : nullptr, w.products.data());
    }
    store_final(s, carry);
    store_products(s, w.products.data());
  }

  void blocked() {
    const int64_t n_strips = n_batch * strips_a_batch();
    const int64_t n_blocks = std::max<int64_t>(share_of(p.length, block_steps), 1);
    const bool carry_only = p.multiplier.data != nullptr;
    n_threads = (int)std::min<int64_t>(n_threads, n_blocks * n_strips);
    // The worker's next block is most likely the one after those that the others hold.
    if (n_strips == 1) strips.ahead_steps = n_threads * block_steps;
    // One state a lane and block; published[k] says that states of task k are there.
    std::vector<Acc> states(n_blocks * n_strips * strip_lanes);
    std::vector<Factor> products;
    if (carry_only) products.resize(states.size());
    std::unique_ptr<std::atomic<uint8_t>[]> published(new std::atomic<uint8_t>[n_blocks * n_strips]());
    std::vector<Workspace> workspaces;
    for (int k = 0; k < n_threads; ++k) workspaces.push_back(strips.workspace(strip_lanes));
    for_tasks(n_blocks * n_strips, n_threads, p.flush, [&](int64_t task, int thread) {
      Workspace& w = workspaces[thread];
      const int64_t block = task / n_strips;
      const Strip s = strip(task % n_strips);
      const int64_t from = block * block_steps, to = std::min(p.length, from + block_steps);
      const bool first = block == 0 && !p.initial.data, last = block == n_blocks - 1;
      if (!last || carry_only) strips.reduce(s, from, to, first, w.effects.data(), w);

      Acc* carry = w.carry.data();
      if (block == 0) {
        load_initial(s, carry);
      } else {
        wait_for(published[task - n_strips]);
        std::copy_n(states.data() + (task - n_strips) * strip_lanes, s.lanes, carry);
      }
      Acc* after = states.data() + task * strip_lanes;
      bool known = false;
      if (!last || carry_only) {
        known = s.lanes > kColumnGroup || states_after(w.effects.data(), s.lanes, first, carry, after);
        if (s.lanes > kColumnGroup) bring_forward(s, from, to, first, kColumnGroup, carry, after, w);
      }
      if (carry_only) {
        Factor* product = products.data() + task * strip_lanes;
        multiply_products(w, s.lanes, block ? product - n_strips * strip_lanes : nullptr, product);
      }
      if (known) publish(published[task]);
      if (!carry_only || !known) {
        strips.scan(s, from, to, carry, first, stream, !carry_only, w);
        if (stream) end_stream();
        if (!known) {
          std::copy_n(carry, s.lanes, after);
          publish(published[task]);
        }
      }
      if (last) {
        store_final(s, carry_only ? after : carry);
        if (carry_only) store_products(s, products.data() + task * strip_lanes);
      }
    });
  }

  // The states after steps [from, to), whose effects the workspace has: `together` lanes from the effects where they
  // say, else from the steps in their order.
  void bring_forward(const Strip& s, int64_t from, int64_t to, bool first, int64_t together, const Acc* before,
                     Acc* after, Workspace& w) const {
    for (int64_t lane = 0; lane < s.lanes; lane += together) {
      const int64_t n = std::min(together, s.lanes - lane);
      if (states_after(w.effects.data() + lane, n, first, before + lane, after + lane)) continue;
      std::copy_n(before + lane, n, after + lane);
      strips.scan(strips.part(s, lane, n), from, to, after + lane, first, false, false, w);
    }
  }

  // The states after a block from those before it; false where only its steps in order give them.
  static bool states_after(const Effect* effects, int64_t lanes, bool first, const Acc* before, Acc* after) {
    bool known = true;
    for (int64_t lane = 0; known && lane < lanes; ++lane) {
      if (first) known = known_from_nothing(effects[lane], after + lane);
      else known = apply(effects[lane], before[lane], after + lane);
    }
    return known;
  }
  static bool known_from_nothing(const Effect& effect, Acc* after) {
    *after = effect.value;
    if constexpr (std::is_same_v<Acc, double>)
      return !effect.in_order && is_finite(effect.value) && stays_finite(effect, 0.0);
    else
      return true;
  }

  static void multiply_products(const Workspace& w, int64_t lanes, const Factor* before, Factor* after) {
    for (int64_t lane = 0; lane < lanes; ++lane)
      after[lane] = before ? multiply_add(before[lane], w.effects[lane].multiplier, Unit<Factor>::zero)
                           : w.effects[lane].multiplier;
  }
  void store_products(const Strip& s, const Factor* products) const {
    for (int64_t lane = 0; lane < s.lanes; ++lane)
      std::memcpy(s.multiplier + lane * p.multiplier.column_stride, products + lane, sizeof(Factor));
  }
};

}  // namespace

void run_scan(const ScanProblem& problem) {
  switch (problem.accumulator) {
    case kReal: return Driver<double>(problem).run();
    case kComplex:
      return has_real_factor(problem) ? Driver<Complex, double>(problem).run() : Driver<Complex>(problem).run();
    default: return Driver<uint64_t>(problem).run();
  }
}

void collapse_axes(ScanProblem& p) {
  Array* arrays[] = {&p.x, &p.gates, &p.out, &p.reset, &p.gamma, &p.initial, &p.final_state, &p.multiplier};
  const Array& order = p.out.data ? p.out : p.x;
  auto move_dim = [&](int from, int to) {
    p.batch_shape[to] = p.batch_shape[from];
    for (Array* array : arrays) array->batch_strides[to] = array->batch_strides[from];
  };
  auto swap_dims = [&](int a, int b) {
    std::swap(p.batch_shape[a], p.batch_shape[b]);
    for (Array* array : arrays) std::swap(array->batch_strides[a], array->batch_strides[b]);
  };
  int n = 0;
  for (int dim = 0; dim < p.n_batch; ++dim)
    if (p.batch_shape[dim] != 1) move_dim(dim, n++);
  // Insertion sort, outermost first: axes of equal stride keep their order.
  for (int dim = 1; dim < n; ++dim)
    for (int k = dim; k > 0 && std::llabs(order.batch_strides[k - 1]) < std::llabs(order.batch_strides[k]); --k)
      swap_dims(k - 1, k);
  int n_merged = n ? 1 : 0;
  for (int dim = 1; dim < n; ++dim) {
    bool merges = true;
    for (const Array* array : arrays)
      if (array->data)
        merges = merges && array->batch_strides[n_merged - 1] == array->batch_strides[dim] * p.batch_shape[dim];
    if (merges) {
      const int64_t product = p.batch_shape[n_merged - 1] * p.batch_shape[dim];
      move_dim(dim, n_merged - 1);
      p.batch_shape[n_merged - 1] = product;
    } else {
      move_dim(dim, n_merged++);
    }
  }
  p.columns = 1;
  p.n_batch = n_merged;
  if (n_merged) {
    p.columns = p.batch_shape[n_merged - 1];
    for (Array* array : arrays) array->column_stride = array->batch_strides[n_merged - 1];
    p.n_batch = n_merged - 1;
  }
  const int64_t item = dtype_size(p.x.dtype);
  if (p.length <= 1) {
    // numpy leaves the stride of such an axis undefined. One step of many columns is a row of them.
    const int64_t apart = p.columns > 1 && std::llabs(p.x.column_stride) == item ? 2 : 1;
    for (Array* array : arrays) array->time_stride = apart * dtype_size(array->dtype);
  } else if (std::llabs(p.x.time_stride) == item && (p.x.time_stride < 0) != (p.x.column_stride < 0)) {
    // Lines are taken in the direction of their steps: what is read goes one way, as the prefetchers expect (Zen 4,
    // lines of 128 float32 in reverse: 0.45 against 1.4 ns an element; with resets 0.8 against 2.5).
    for (Array* array : arrays) {
      if (array->data) array->data += (p.columns - 1) * array->column_stride;
      array->column_stride = -array->column_stride;
    }
  }
}

}  // namespace upsweep
