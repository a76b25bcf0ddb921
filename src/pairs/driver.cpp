// Runs a compiled reduction over pairs: packs, deals tasks to threads, combines and writes.
//
// Called by bindings/_pairs.pyx with the GIL released.
#include <algorithm>
#include <cstring>

#include "common/buffer.hpp"
#include "pairs/candidates.hpp"
#include "pairs/pairs.hpp"
#include "pairs/pack.hpp"
#include "pairs/states.hpp"
#include "common/parallel.hpp"

namespace upsweep {
namespace {

constexpr double kCallCost = 1 << 24;    // instructions of one call of a compiled tile: a few milliseconds

template <class Number, class Accumulator>
class Run {
 public:
  explicit Run(const PairProblem& problem)
      : problem(problem), kernel(*problem.kernel), states{kernel},
        numbers(n_numbers(kernel)), indices(n_indices(kernel)), written(n_written(kernel)) {
    n_entries = 1;
    for (int32_t d = 0; d < problem.n_batch_dims; ++d) n_entries *= problem.batch[d];
    double cost = 0;
    int64_t n_groups = 0;
    for (int64_t e = 0; e < n_entries; ++e) {
      const PairPlan& plan = plan_of(e);
      cost += plan.cost;
      n_groups += n_groups_of(plan);
      wants_rows |= !plan.lanes_are_columns;
      wants_columns |= plan.lanes_are_columns != 0;
    }
    columns_per_call = std::max<int64_t>((int64_t)(kCallCost / kernel.cost) / kPieceUnit, 1) * kPieceUnit;
    n_threads = (int)std::max<int64_t>(1, std::min({problem.n_threads, (int64_t)(cost / kThreadCost), n_groups}));
  }

  void all() {
    pack();
    for (int64_t e = 0; e < n_entries; ++e)
      if (!plan_of(e).covers) write_nothing(e);
    if (plan_of(0).n_partials == 0 && problem.plans.size() == 1) {
      tasks(0, n_entries, nullptr, nullptr);
      return;
    }
    for (int64_t e = 0; e < n_entries; ++e) {   // states of pieces are kept for one entry at a time
      const PairPlan& plan = plan_of(e);
      Buffer<double> partials((size_t)(plan.n_partials * numbers));
      Buffer<int64_t> partial_indices((size_t)(plan.n_partials * indices));
      tasks(e, e + 1, partials.data(), partial_indices.data());
      gather(e, partials, partial_indices);
    }
  }

 private:
  const PairProblem& problem;
  const PairKernel& kernel;
  const States<Number, Accumulator> states;
  const int64_t numbers, indices, written;
  int64_t n_entries = 1;
  int64_t columns_per_call = 0;   // of a compiled tile, before the worker polls
  int n_threads = 1;
  bool wants_rows = false, wants_columns = false;
  // Rows for lanes and column records, or row records and columns for lanes; seldom both.
  Packed<Number> lane_rows, records, row_records, lane_columns;
  Buffer<Number> params;

  const PairPlan& plan_of(int64_t e) const { return *problem.plans[problem.plans.size() == 1 ? 0 : (size_t)e]; }
  static int64_t n_groups_of(const PairPlan& plan) { return std::max<int64_t>(0, (int64_t)plan.groups.size() - 1); }

  const char* entry_of(const PairOperand& operand, int64_t e) const {
    const char* source = operand.data;
    for (int32_t d = problem.n_batch_dims - 1; d >= 0; --d) {
      source += e % problem.batch[d] * operand.batch_strides[d];
      e /= problem.batch[d];
    }
    return source;
  }

  // Whether every batch entry has the same numbers: they are packed once then.
  bool shared(const std::vector<PairOperand>& operands) const {
    for (const PairOperand& operand : operands)
      for (int32_t d = 0; d < problem.n_batch_dims; ++d)
        if (problem.batch[d] > 1 && operand.batch_strides[d] != 0) return false;
    return true;
  }

  void pack_one(Packed<Number>& packed, const std::vector<PairOperand>& operands, int64_t n, int64_t width, bool lanes,
                Prepare prepare = nullptr) {
    const bool once = shared(operands) && (!prepare || shared(problem.params));
    const int64_t entries = once ? 1 : n_entries;
    packed.prepare(n, width, entries, lanes, kernel.lanes);
    const int64_t chunks = packed.n_chunks();
    for_tasks(entries * chunks, chunks * entries > 8 ? n_threads : 1, false, [&](int64_t task, int) {
      const int64_t e = task / chunks, chunk = task % chunks;
      for (const PairOperand& operand : operands) packed.pack(operand, entry_of(operand, e), e, chunk);
      if (prepare)
        prepare(packed.record(e, packed.chunk_begin(chunk)), packed.stride, params.data() + e * kernel.param_width,
                packed.chunk_size(chunk));
    });
    if (once) packed.entry_size = 0;
  }

  void pack() {
    params.resize((size_t)(kernel.param_width * n_entries));
    for (int64_t e = 0; e < n_entries; ++e)
      for (const PairOperand& operand : problem.params) {
        const char* source = entry_of(operand, e);
        Number* const to = params.data() + e * kernel.param_width + operand.offset;
        for (int64_t f = 0; f < operand.dim; ++f)
          to[f] = *reinterpret_cast<const Number*>(source + f * operand.feature_stride);
      }
    const int64_t width = kernel.column_width + kernel.n_prepared;
    if (wants_rows) {
      pack_one(lane_rows, problem.rows, problem.n_rows, kernel.row_width, true);
      pack_one(records, problem.columns, problem.n_columns, width, false, kernel.prepare_records);
    }
    if (wants_columns) {
      pack_one(row_records, problem.rows, problem.n_rows, kernel.row_width, false);
      pack_one(lane_columns, problem.columns, problem.n_columns, width, true, kernel.prepare_lanes);
    }
  }

  // Memory of one worker: a tile's state and workspace, a row's state, another, and room to merge two.
  struct Scratch {
    Buffer<char> state, workspace;
    Buffer<double> numbers;
    Buffer<int64_t> indices;
    SortedLists<Number> in_order;         // of the k least, in place of a tile's state
    CandidateLists<Number> candidates;
    Sample<Number> sample;
  };

  void tasks(int64_t first_entry, int64_t end_entry, double* partials, int64_t* partial_indices) {
    const PairPlan& plan = plan_of(first_entry);
    const int64_t groups = n_groups_of(plan);
    std::vector<Scratch> scratch((size_t)n_threads);
    int64_t most_columns = 0;   // more than the problem has, where ranges repeat columns
    for (const PairTask& task : plan.tasks) most_columns = std::max(most_columns, task.n_columns);
    for (Scratch& own : scratch) {
      if (inserts(plan)) own.in_order.resize(kernel);
      else if (kernel.kind == kPairSmallest) own.candidates.resize(kernel, plan.lanes_are_columns != 0, most_columns);
      else own.state.resize((size_t)(n_slots(kernel) * kSlotBytes * kernel.lanes));
      own.workspace.resize((size_t)kernel.workspace);
      own.numbers.resize((size_t)(3 * numbers));
      own.indices.resize((size_t)(3 * indices));
    }
    const bool flush = kernel.kind == kPairSum || kernel.kind == kPairLogSumExp || kernel.kind == kPairSoftmax;
    for_tasks(groups * (end_entry - first_entry), n_threads, flush, [&](int64_t claimed, int thread) {
      const int64_t e = first_entry + claimed / groups, group = claimed % groups;
      for (int64_t t = plan.groups[(size_t)group]; t < plan.groups[(size_t)group + 1]; ++t)
        one(plan, plan.tasks[(size_t)t], e, scratch[(size_t)thread], partials, partial_indices);
    });
  }

  void one(const PairPlan& plan, const PairTask& task, int64_t e, Scratch& own, double* partials, int64_t* partial_indices) {
    // Indices of float32 lanes have 32 bits; they count from the interval in which the task begins.
    const int64_t first = plan.intervals[(size_t)task.first].begin + task.skip, base = first > kFarIndex ? first : 0;
    if (inserts(plan)) return smallest(plan, task, e, base, own, own.in_order, partials, partial_indices);
    if (kernel.kind == kPairSmallest) return smallest(plan, task, e, base, own, own.candidates, partials, partial_indices);
    states.begin(own.state.data());
    past_all(plan, task, e, base, [&](const Number* columns, int64_t stride, int64_t n, int64_t first) {
      call(plan, task, e, columns, stride, n, first, own.state.data(), own);
    });
    double* const a = own.numbers.data();
    int64_t* const i = own.indices.data();
    if (plan.lanes_are_columns) {
      states.take(own.state.data(), 0, base, a, i);
      for (int32_t lane = 1; lane < kernel.lanes; ++lane) {
        states.take(own.state.data(), lane, base, a + numbers, i + indices);
        combine(kernel, a, i, a + numbers, i + indices, a + 2 * numbers, i + 2 * indices);
      }
      finish(plan, task, e, 0, a, i, partials, partial_indices);
      return;
    }
    for (int32_t lane = 0; lane < task.n_rows; ++lane) {
      states.take(own.state.data(), lane, base, a, i);
      finish(plan, task, e, lane, a, i, partials, partial_indices);
    }
  }

  // Whether tiles insert values into lists in order; else they append them to candidates.
  bool inserts(const PairPlan& plan) const {
    return kernel.kind == kPairSmallest && kernel.inserts && !plan.lanes_are_columns;
  }

  template <class Lists>
  void smallest(const PairPlan& plan, const PairTask& task, int64_t e, int64_t base, Scratch& own, Lists& lists,
                double* partials, int64_t* partial_indices) {
    const Packed<Number>& columns = plan.lanes_are_columns ? lane_columns : records;
    const auto past = [&](const Number* some, int64_t stride, int64_t n, int64_t first) {
      const int64_t step = plan.lanes_are_columns ? 1 : columns.width;
      for (int64_t done = 0, now; done < n; done += now) {
        now = std::min(n - done, lists.next_columns());
        call(plan, task, e, some + done * step, stride, now, first + done, lists.state(), own);
        lists.select_full();
      }
    };
    // The sample of one row is seldom that of the next where columns are cut into pieces, which come first.
    const double cost = plan.lanes_are_columns ? kernel.cost / kernel.lanes + 4 * (double)columns.width : kernel.cost;
    const bool samples = !inserts(plan) || task.n_columns >= kFewColumns * kernel.k;
    const int64_t n_sampled = samples ? Sample<Number>::size(task.n_columns, kernel.k, kernel.dim * task.n_rows, cost) : 0;
    int64_t rank = n_sampled ? Sample<Number>::rank(n_sampled, task.n_columns, kernel.k) : 0;
    for (bool complete = false; !complete; rank = rank < kernel.k && kernel.k <= n_sampled ? kernel.k : 0) {
      lists.begin(rank ? rank : kernel.k, task.n_rows);
      if (rank) {
        own.sample.take(columns, plan, task, e, n_sampled, kernel.lanes);
        past(own.sample.numbers.data(), own.sample.stride, n_sampled, 0);
        lists.finish();
        lists.begin_below(kernel.k);
      }
      past_all(plan, task, e, base, past);
      complete = lists.finish();
    }
    for (int32_t lane = 0; lane < task.n_rows; ++lane) {
      lists.take(lane, base, own.numbers.data(), own.indices.data());
      finish(plan, task, e, lane, own.numbers.data(), own.indices.data(), partials, partial_indices);
    }
  }

  // past(columns, stride, n, first) for each run of a task's columns, whose indices begin at `first`.
  template <class Past>
  void past_all(const PairPlan& plan, const PairTask& task, int64_t e, int64_t base, Past past) {
    const Packed<Number>& columns = plan.lanes_are_columns ? lane_columns : records;
    const PairInterval* interval = plan.intervals.data() + task.first;
    int64_t left = task.n_columns, skip = task.skip;
    while (left > 0) {
      const int64_t begin = interval->begin + skip, n = std::min({left, interval->end - begin, columns_per_call});
      past(columns.at(e, begin), columns.stride, n, begin - base);
      left -= n, skip += n;
      if (begin + n == interval->end) ++interval, skip = 0;
      if (left > 0) poll();
    }
  }

  // The tile of a task's rows past n columns in memory.
  void call(const PairPlan& plan, const PairTask& task, int64_t e, const Number* columns, int64_t stride, int64_t n,
            int64_t first, void* state, Scratch& own) {
    const bool across = plan.lanes_are_columns;
    const Packed<Number>& rows = across ? row_records : lane_rows;
    const Tile tile = across ? kernel.columns_tile : kernel.rows_tile;
    tile(rows.at(e, task.row), rows.stride, columns, stride, params.data() + e * kernel.param_width, n, first, state,
         own.workspace.data());
  }

  // A row's state to its result, or to where the pieces of a row wait for each other.
  void finish(const PairPlan& plan, const PairTask& task, int64_t e, int32_t lane, const double* a, const int64_t* i,
              double* partials, int64_t* partial_indices) {
    if (task.partial >= 0) {
      const int64_t place = task.partial + lane;
      std::copy(a, a + numbers, partials + place * numbers);
      std::copy(i, i + indices, partial_indices + place * indices);
      return;
    }
    put(plan, task, e, lane, a, i);
  }

  void put(const PairPlan& plan, const PairTask& task, int64_t e, int32_t lane, const double* a, const int64_t* i) {
    const int64_t at = (e * problem.n_rows + task.row + lane) * written;
    write<Number>(kernel, a, i, plan.intervals[(size_t)task.least].begin,
                  problem.values ? static_cast<Number*>(problem.values) + at : nullptr,
                  problem.indices ? problem.indices + at : nullptr);
  }

  void gather(int64_t e, Buffer<double>& partials, Buffer<int64_t>& partial_indices) {
    const PairPlan& plan = plan_of(e);
    Buffer<double> room((size_t)numbers);
    Buffer<int64_t> index_room((size_t)indices);
    for (size_t g = 0; g < plan.gathers.size(); ++g) {
      const PairTask& first = plan.tasks[(size_t)plan.gathers[g]];
      for (int32_t lane = 0; lane < first.n_rows; ++lane) {
        double* const a = partials.data() + (first.partial + lane) * numbers;
        int64_t* const i = partial_indices.data() + (first.partial + lane) * indices;
        for (int64_t piece = 1; piece < plan.n_pieces[g]; ++piece) {
          const PairTask& task = plan.tasks[(size_t)(plan.gathers[g] + piece)];
          const int64_t place = task.partial + lane;
          combine(kernel, a, i, partials.data() + place * numbers, partial_indices.data() + place * indices, room.data(),
                  index_room.data());
        }
        put(plan, first, e, lane, a, i);
      }
    }
  }

  void write_nothing(int64_t e) {
    const int64_t begin = e * problem.n_rows * written, n = problem.n_rows * written;
    if (problem.values)
      std::fill_n(static_cast<Number*>(problem.values) + begin, n, (Number)value_of_nothing(kernel));
    if (problem.indices) std::fill_n(problem.indices + begin, n, -1);
  }

  static constexpr int64_t kFarIndex = (int64_t)1 << 29;
};

}  // namespace

void reduce_pairs(const PairProblem& problem) {
  if (problem.kernel->bits == 64) Run<double, double>(problem).all();
  else if (problem.kernel->accumulator_bits == 64) Run<float, double>(problem).all();
  else Run<float, float>(problem).all();
}

}  // namespace upsweep
