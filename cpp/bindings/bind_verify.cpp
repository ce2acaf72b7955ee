// The verifier of plans for Python: columns in, findings out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "busbw/schedule/verify.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace schedule = busbw::schedule;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Contents = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Groups = std::vector<std::pair<std::vector<std::int32_t>, std::uint8_t>>;

template <class T>
std::vector<T> rows_of(const Bytes& bytes) {
  if (bytes.shape(0) % sizeof(T) != 0) throw std::invalid_argument("a column array has a broken last row");
  std::vector<T> out(bytes.shape(0) / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.shape(0));
  return out;
}

struct Rank {
  std::vector<schedule::Row> rows;
  std::vector<schedule::Block> blocks;
  std::vector<schedule::Connection> connections;
  std::vector<schedule::Walk> walks;
  schedule::RankRows view;
};

/// Holds the columns of all ranks, then one verifier over them.
class PlanCheck {
 public:
  explicit PlanCheck(schedule::RunOptions options) : options_(options) {}

  void add_rank(const Bytes& rows, const Bytes& blocks, const Bytes& connections, const Bytes& walks, Groups groups,
                std::vector<std::int32_t> semaphores, std::array<std::int32_t, 3> chunks, std::array<std::int64_t, 3> alias,
                std::int64_t memory_chunks, const Contents& before, const Contents& after) {
    for (std::size_t b = 0; b < 2; ++b)
      if (chunks[b] < 0 || alias[b] < 0 || alias[b] + chunks[b] > memory_chunks) throw std::invalid_argument("a buffer lies outside of memory");
    if (chunks[2] < 0) throw std::invalid_argument("scratch has a negative size");
    if (before.shape(0) > static_cast<std::size_t>(chunks[0]) || after.shape(0) > static_cast<std::size_t>(chunks[1]))
      throw std::invalid_argument("more contents than chunks");
    auto rank = std::make_unique<Rank>(Rank{rows_of<schedule::Row>(rows), rows_of<schedule::Block>(blocks),
                                            rows_of<schedule::Connection>(connections), rows_of<schedule::Walk>(walks), {}});
    std::vector<schedule::Group> members;
    for (auto& [ranks, buffer] : groups) members.push_back({std::move(ranks), static_cast<schedule::Buffer>(buffer)});
    rank->view = {rank->rows, rank->blocks, rank->connections, rank->walks, std::move(members), std::move(semaphores), chunks, alias, memory_chunks};
    ranks_.push_back(std::move(rank));
    before_.emplace_back(before.data(), before.data() + before.shape(0));
    after_.emplace_back(after.data(), after.data() + after.shape(0));
  }

  /// (n, 17): rule, place (rank, block, row, turn), other place, owner, buffer, chunk, got, wanted, got_set, wanted_set, times.
  nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>> run() {
    std::vector<std::int64_t> table;
    {
      nb::gil_scoped_release free;
      std::vector<schedule::RankRows> views;
      for (const auto& rank : ranks_) views.push_back(rank->view);
      verifier_ = std::make_unique<schedule::Verifier>(std::move(views), options_);
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        verifier_->set_before(r, std::move(before_[r]));
        verifier_->set_after(r, std::move(after_[r]));
      }
      const auto& findings = verifier_->run();
      for (const auto& f : findings.kept())
        for (const std::int64_t value :
             {std::int64_t(f.rule), std::int64_t{f.at.rank}, std::int64_t{f.at.block}, std::int64_t{f.at.row}, std::int64_t{f.at.turn},
              std::int64_t{f.other.rank}, std::int64_t{f.other.block}, std::int64_t{f.other.row}, std::int64_t{f.other.turn},
              std::int64_t{f.owner}, std::int64_t{f.buffer}, f.chunk, f.got, f.wanted, f.got_set, f.wanted_set,
              static_cast<std::int64_t>(findings.total(f.rule))})
          table.push_back(value);
    }
    return as_table(std::move(table), 17);
  }

  /// (n, 4): rank, block, row, turn of each instruction that led to a chunk.
  nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>> explain(std::int32_t rank, std::uint8_t buffer, std::int64_t chunk) {
    if (!verifier_) throw std::invalid_argument("run first");
    std::vector<std::int64_t> table;
    {
      nb::gil_scoped_release free;
      for (const auto& event : verifier_->explain(rank, static_cast<schedule::Buffer>(buffer), chunk))
        for (const std::int32_t value : {event.at.rank, event.at.block, event.at.row, event.at.turn}) table.push_back(value);
    }
    return as_table(std::move(table), 4);
  }

  std::vector<std::pair<std::int32_t, std::int32_t>> ranks_of(std::uint32_t set) {
    if (!verifier_) throw std::invalid_argument("run first");
    std::vector<std::pair<std::int32_t, std::int32_t>> out;
    for (const auto& interval : verifier_->sets().of(set)) out.emplace_back(interval.first, interval.last);
    return out;
  }
  std::uint64_t executed() const { return verifier_ ? verifier_->executed() : 0; }
  bool bitwise_equal() const { return verifier_ && verifier_->bitwise_equal(); }

 private:
  static nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>> as_table(std::vector<std::int64_t>&& values, std::size_t width) {
    const std::size_t rows = values.size() / width;
    const auto [data, owner] = busbw::bindings::kept(std::move(values));
    return {data, {rows, width}, owner};
  }

  schedule::RunOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::vector<std::int64_t>> before_;
  std::vector<std::vector<std::int64_t>> after_;
  std::unique_ptr<schedule::Verifier> verifier_;
};

}  // namespace

NB_MODULE(_verify, m) {
  m.doc() = "Runs a plan once and says which rules it breaks.";
  nb::class_<PlanCheck>(m, "PlanCheck", "All ranks of a plan, and one run of it.")
      .def(
          "__init__",
          [](PlanCheck* check, bool blocks_in_order, bool double_scratch, std::uint32_t chunks_per_message, std::uint32_t parts, std::uint32_t slices,
             std::uint32_t scratch_slices, std::array<std::uint32_t, 4> slots, std::uint64_t most_instructions, bool barrier) {
            if (chunks_per_message == 0 || parts == 0 || slices == 0 || scratch_slices == 0) throw std::invalid_argument("parts, slices and chunks_per_message are at least 1");
            for (const auto one : slots)
              if (one == 0) throw std::invalid_argument("a FIFO has at least one slot");
            new (check) PlanCheck({blocks_in_order, double_scratch, chunks_per_message, parts, slices, scratch_slices, slots, most_instructions, barrier});
          },
          "blocks_in_order"_a, "double_scratch"_a, "chunks_per_message"_a, "parts"_a, "slices"_a, "scratch_slices"_a, "slots"_a,
          "most_instructions"_a, "barrier"_a, "slots: messages in flight on a FIFO, by protocol.")
      .def("add_rank", &PlanCheck::add_rank, "rows"_a, "blocks"_a, "connections"_a, "walks"_a, "groups"_a, "semaphores"_a, "chunks"_a, "alias"_a,
           "memory_chunks"_a, "before"_a, "after"_a,
           "The next rank. Columns as bytes; alias: chunk of memory at which input, output begin; before, after: contents of input and output.")
      .def("run", &PlanCheck::run,
           "(n, 17) int64: rule, rank, block, row, turn, the same of the other place, owner, buffer, chunk, got, wanted, got_set, wanted_set, times.")
      .def("explain", &PlanCheck::explain, "rank"_a, "buffer"_a, "chunk"_a, "(n, 4) int64: rank, block, row, turn of what led to a chunk.")
      .def("ranks_of", &PlanCheck::ranks_of, "set"_a, "Intervals of ranks, the end not included.")
      .def_prop_ro("executed", &PlanCheck::executed, "Instructions run.")
      .def_prop_ro("bitwise_equal", &PlanCheck::bitwise_equal, "Whether results are reduced in the same order on all ranks.");
}
