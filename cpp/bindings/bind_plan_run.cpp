// Plans on the CPU for Python: a rank's linked program, run by as many threads as it has blocks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "busbw/device/kernels/interpreter.hpp"
#include "busbw/device/plan_proxy.hpp"
#include "element_types.hpp"
#include "linked_program.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace busbw::device;
using namespace busbw::bindings;

namespace {

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class PlanRank {
 public:
  PlanRank(const BytesIn& rows, const BytesIn& blocks, const BytesIn& walks, const BytesIn& ways, const BytesIn& groups, const Numbers& block_runs,
           const Numbers& spaces, const Numbers& numbers, std::vector<Bytes> wires, std::uint32_t threads)
      : linked_(rows, blocks, walks, ways, groups, block_runs, spaces, numbers), wires_(std::move(wires)), threads_(threads) {
    Program& program = linked_.program();
    if (wires_.size() != program.ranks) throw std::invalid_argument("a wire window of each rank is needed");
    if (threads == 0) throw std::invalid_argument("a block has at least one thread");
    for (std::size_t i = 0; i < wires_.size(); ++i) program.wire.base[i] = reinterpret_cast<std::byte*>(wires_[i].data());
    for (std::uint32_t block = 0; block < program.blocks; ++block) barriers_.push_back(std::make_unique<BlockBarrier>(threads));
  }

  /// bases: address of each rank's input, output, scratch and packets, 0 where they are not mapped.
  int run(const Numbers& bases, const std::string& dtype, const std::string& op, double wait_s, std::size_t times) {
    Program& program = linked_.program();
    if (bases.shape(0) != std::size_t{program.ranks} * kSpaces) throw std::invalid_argument("bases has another length");
    for (std::uint32_t i = 0; i < program.ranks * kSpaces; ++i)
      linked_.set_base(i / kSpaces, i % kSpaces, reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(bases.data()[i])));
    program.wait_ns = static_cast<std::uint64_t>(std::max(0.0, wait_s) * 1e9);
    const ErasedArithmetic arithmetic = arithmetic_of(dtype);
    const ReduceOp reduction = reduction_named(op);
    nb::gil_scoped_release released;
    std::atomic<int> result{0};
    for (std::size_t i = 0; i < times && result == 0; ++i) {
      const auto thread = [&](std::uint32_t number) {
        const Block block{number / threads_, program.blocks, number % threads_, threads_, barriers_[number / threads_].get()};
        if (const WaitResult stop = run_one(program, block, arithmetic, reduction); stop != kArrived) {
          int none = 0;
          const int mine = static_cast<int>(stop);
          if (!result.compare_exchange_strong(none, mine) && stop == kDeadline) result = mine;
        }
      };
      std::vector<std::thread> others;
      for (std::uint32_t number = 1; number < program.blocks * threads_; ++number) others.emplace_back(thread, number);
      if (has_ports(program)) others.emplace_back([&] { serve_ports(program, [](std::uint32_t) { return 0u; }); });
      if (program.blocks > 0) thread(0);
      for (std::thread& one : others) one.join();
    }
    return result;
  }

  /// Keeps when each row of the next runs began and ended: at most so many of a block, the others are counted; 0: none.
  void trace(std::size_t most) {
    spans_.assign(most ? linked_.program().blocks : 0, {});
    for (Spans& one : spans_) one.most = most;
  }
  /// block, row, begin and end in ns of the machine's steady clock, for each; and how many there was no room for.
  std::tuple<std::vector<std::tuple<std::uint32_t, std::int32_t, std::uint64_t, std::uint64_t>>, std::uint64_t> spans() const {
    std::vector<std::tuple<std::uint32_t, std::int32_t, std::uint64_t, std::uint64_t>> out;
    std::uint64_t dropped = 0;
    for (std::size_t block = 0; block < spans_.size(); ++block) {
      for (const auto& [row, begin, end] : spans_[block].kept) out.emplace_back(static_cast<std::uint32_t>(block), row, begin, end);
      dropped += spans_[block].dropped;
    }
    return {std::move(out), dropped};
  }

  /// state, primitive, block, peer, expected, seen.
  std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t> report() {
    Report& report = linked_.program().report();
    const std::uint32_t state = SystemAtomic<std::uint32_t>(report.state).load(kAcquire);
    return {state, report.primitive, report.block, report.peer, report.expected, report.seen};
  }

 private:
  /// Of a block, written by its first thread.
  struct alignas(64) Spans {
    struct Span {
      std::int32_t row;
      std::uint64_t begin, end;
    };
    std::vector<Span> kept;
    std::size_t most = 0;
    std::uint64_t dropped = 0;
  };
  struct Recorder {
    Spans* spans;
    std::uint64_t now() const { return spans ? Clock::now_ns() : 0; }
    void add(std::int32_t row, std::uint64_t begin) const {
      if (!spans) return;
      if (spans->kept.size() < spans->most)
        spans->kept.push_back({row, begin, Clock::now_ns()});
      else
        ++spans->dropped;
    }
  };

  WaitResult run_one(const Program& program, const Block& block, const ErasedArithmetic& arithmetic, ReduceOp reduction) {
    if (spans_.empty()) return run_plan(program, block, arithmetic, reduction);
    return run_plan(program, block, arithmetic, reduction, Recorder{block.thread == 0 ? &spans_[block.block] : nullptr});
  }

  LinkedProgram linked_;
  std::vector<Spans> spans_;
  std::vector<Bytes> wires_;
  std::uint32_t threads_;
  std::vector<std::unique_ptr<BlockBarrier>> barriers_;
};

}  // namespace

NB_MODULE(_plan_run, m) {
  m.doc() = "The plan interpreter on the CPU: one object a rank.";
  nb::class_<PlanRank>(m, "PlanRank", "One rank's linked plan. Columns are bytes, as `busbw.execution.linking` lays them out.")
      .def(nb::init<const BytesIn&, const BytesIn&, const BytesIn&, const BytesIn&, const BytesIn&, const Numbers&, const Numbers&, const Numbers&,
                    std::vector<Bytes>, std::uint32_t>(),
           "rows"_a, "blocks"_a, "walks"_a, "ways"_a, "groups"_a, "block_runs"_a, "spaces"_a, "numbers"_a, "wires"_a, "threads"_a)
      .def("run", &PlanRank::run, "bases"_a, "dtype"_a, "op"_a, "wait_s"_a, "times"_a = 1,
           "0, or 1 at the deadline, 2 if somebody had given up before. bases: addresses of each rank's input, output, scratch, packets.")
      .def("trace", &PlanRank::trace, "most"_a, "From now on keeps when each row began and ended, at most so many a block; 0: none.")
      .def("spans", &PlanRank::spans, "(block, row, begin, end) in ns of the steady clock, and how many there was no room for.")
      .def("report", &PlanRank::report, "state, primitive, block, peer, expected, seen of whoever gave up first on this rank.");
}
