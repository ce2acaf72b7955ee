/// Whether a plan does what its collective promises, decided by running it once.
///
/// Blocks are sequential, a FIFO has one writer and one reader, counters only go up: such a network is confluent, so one greedy run with
/// a given FIFO depth decides deadlock. If no two accesses race under happens-before, one symbolic run decides the values. A value is
/// (content, set of ranks that contributed): a reduction needs equal contents and disjoint sets.
/// The rules in words a reader can quote: `busbw/collectives/legality.py`.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "busbw/schedule/detail/links.hpp"
#include "busbw/schedule/detail/machine.hpp"
#include "busbw/schedule/findings.hpp"
#include "busbw/schedule/plan_rows.hpp"
#include "busbw/schedule/rank_sets.hpp"

namespace busbw::schedule {

class Verifier {
 public:
  Verifier(std::vector<RankRows> ranks, RunOptions options) : ranks_(std::move(ranks)), options_(options) {}

  /// Content of the input chunks of a rank before the run, kNoContent: none.
  void set_before(std::size_t rank, std::vector<std::int64_t> contents) { before_.resize(ranks_.size()), before_.at(rank) = std::move(contents); }
  /// Content that each output chunk of a rank must hold, with the contribution of every rank that had it before; kNoContent: anything.
  void set_after(std::size_t rank, std::vector<std::int64_t> contents) { after_.resize(ranks_.size()), after_.at(rank) = std::move(contents); }

  /// Everything that is wrong.
  const Findings& run() {
    before_.resize(ranks_.size());
    after_.resize(ranks_.size());
    if (!detail::well_formed(ranks_, findings_)) return findings_;
    links_.emplace(ranks_, options_, findings_);
    memory_.emplace(ranks_, options_);
    detail::Machine<detail::Mode::kValues> values(this_view(), findings_);
    values.run();
    finish(values);
    if (values.deadlocked()) tell_depth_from_deadlock();
    if (values.deadlocked() || values.too_long()) {
      values.report_acquirers();
    } else {
      find_acquirers(values.touched());
      values.check_results(after_, bitwise_equal_);
      find_races(values.touched());
      if (options_.barrier) check_barrier(values.touched());
    }
    executed_ = values.executed();
    return findings_;
  }

  /// Instructions that led to what a chunk of a rank's buffer holds at the end, in the order of the run.
  std::vector<detail::Event> explain(std::int32_t rank, Buffer buffer, std::int64_t chunk) {
    if (!links_ || rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size() || static_cast<int>(buffer) > 2 || chunk < 0 ||
        chunk >= ranks_[static_cast<std::size_t>(rank)].chunks[static_cast<std::size_t>(buffer)])
      return {};
    Findings ignored;
    detail::Machine<detail::Mode::kLogged> machine(this_view(), ignored);
    machine.run();
    return machine.ancestors(memory_->position(static_cast<std::size_t>(rank), buffer, chunk, 0));
  }

  std::uint64_t executed() const { return executed_; }
  /// Whether every result is the same tree of reductions on all ranks: bit by bit the same for floats.
  bool bitwise_equal() const { return bitwise_equal_; }
  RankSets& sets() { return sets_; }

 private:
  static constexpr std::array kRaces{Rule::kRace, Rule::kRelaunchRace, Rule::kNotEntered};

  detail::View this_view() { return {ranks_, options_, *links_, *memory_, before_, sets_, nullptr, false}; }

  void finish(detail::Machine<detail::Mode::kValues>& values) {
    if (values.deadlocked())
      values.report_blocked();
    else if (!values.too_long())
      values.report_leftovers();
  }

  /// A run that stops only because messages are cut into chunks is told apart: it works for small sizes.
  void tell_depth_from_deadlock() {
    Findings ignored;
    auto view = this_view();
    view.options.chunks_per_message = ~std::uint32_t{0};
    detail::Machine<detail::Mode::kValues> machine(view, ignored);
    machine.run();
    if (!machine.deadlocked() && !machine.too_long()) findings_.rename(Rule::kDeadlock, Rule::kFifoDepth);
  }

  /// Rank by rank in batches, so that clocks stay short.
  void find_races(const detail::Touched& touched) {
    std::vector<detail::Candidates> batches = detail::candidates(touched, *links_, *memory_, ranks_, options_);
    for (const auto& batch : batches) {
      Findings found;
      race_run(batch, false, found);
      Findings lenient;  // what a stronger memory order would not mend
      if (std::ranges::any_of(kRaces, [&](Rule rule) { return found.total(rule) > 0; })) race_run(batch, true, lenient);
      for (const Rule rule : kRaces) {
        if (found.total(rule) > 0 && lenient.total(rule) == 0) found.rename(rule, Rule::kWeakOrder);
        findings_.add_all(found, rule);
      }
      findings_.add_all(found, Rule::kWeakOrder);
    }
  }

  /// Two blocks that take from one counter, neither after the other.
  void find_acquirers(const detail::Touched& touched) {
    for (const auto& batch : detail::acquirers(touched, *links_, ranks_)) {
      Findings found;
      race_run(batch, false, found);
      findings_.add_all(found, Rule::kTwoAcquirers);
    }
  }

  void check_barrier(const detail::Touched& touched) {
    auto view = this_view();
    const detail::Candidates entries = detail::entries(touched, *links_, ranks_);
    view.candidates = &entries;
    Findings ignored;
    detail::Machine<detail::Mode::kClocks> machine(view, ignored);
    machine.run();
    machine.check_barrier(findings_);
  }

  void race_run(const detail::Candidates& batch, bool all_ordered, Findings& found) {
    auto view = this_view();
    view.candidates = &batch;
    view.all_ordered = all_ordered;
    detail::Machine<detail::Mode::kClocks> machine(view, found);
    machine.run();
  }

  std::vector<RankRows> ranks_;
  RunOptions options_;
  std::vector<std::vector<std::int64_t>> before_;
  std::vector<std::vector<std::int64_t>> after_;
  Findings findings_;
  std::optional<detail::Links> links_;
  std::optional<detail::Memory> memory_;
  RankSets sets_;
  std::uint64_t executed_ = 0;
  bool bitwise_equal_ = true;
};

}  // namespace busbw::schedule
