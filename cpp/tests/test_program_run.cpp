// Programs of two and three streams whose times are counted by hand.
#include "busbw/sim/program_run.hpp"

#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "busbw/sim/tree_ways.hpp"
#include "check.hpp"

using namespace busbw::sim;

namespace {

constexpr std::int64_t kBytesPerSecond = 1'000'000'000;  // a byte takes 1000 ps

/// `ranks` streams of one code, each sending to the next over a link of its own.
Program ring(std::int32_t ranks, std::vector<Instruction> code, std::int64_t latency_ps) {
  Program p;
  p.code = std::move(code);
  for (std::int32_t r = 0; r < ranks; ++r) {
    p.streams.entry.push_back(0);
    p.streams.channels.push_back(r);
    p.streams.channel_of.push_back(r);
    p.streams.ports.push_back(r);
    p.streams.port_of.push_back((r + ranks - 1) % ranks);
    p.channels.way.push_back(r);
    p.channels.ports.push_back(r);
    p.ports.stream.push_back((r + 1) % ranks);
    p.ports.latency_ps.push_back(latency_ps);
    p.ways.begin.push_back(r);
    p.ways.crossings.push_back({r, 1});
    p.capacity.push_back(Rate{kBytesPerSecond * kRateUnitsPerByte});
  }
  p.streams.channels.push_back(ranks);
  p.streams.ports.push_back(ranks);
  p.channels.ports.push_back(ranks);
  p.ways.begin.push_back(ranks);
  return p;
}

std::vector<Instruction> rounds(std::int64_t times, std::int64_t size_bytes) {
  return {{Op::kLoop, 0, 0, 0, times}, {Op::kSend, 0, 1, 0, size_bytes}, {Op::kReceive, 0, 1, 0, 0}, {Op::kEnd, 0, 0, 0, 0}, {Op::kStop, 0, 0, 0, 0}};
}

std::int64_t time_of(Program program, bool fast_forward = false) {
  ProgramRun run(std::move(program), {true, fast_forward, 1000});
  CHECK(run.run(INT64_MAX) == Status::kDone);
  return count(run.now());
}

/// Three rounds of 10 bytes and 500 ps.
void rounds_take_their_bytes_and_latency() { CHECK_EQUAL(time_of(ring(3, rounds(3, 10), 500)), 3 * (10'000 + 500)); }

void counted_periods_take_the_same_time() {
  CHECK_EQUAL(time_of(ring(5, rounds(1000, 7), 11), true), 1000 * 7011);
  ProgramRun run(ring(5, rounds(1000, 7), 11), {true, true, 1000});
  CHECK(run.run(INT64_MAX) == Status::kDone);
  CHECK_EQUAL(run.messages() + run.messages_skipped(), 5000U);
  CHECK(run.messages() < 100);
  std::int64_t bytes = 0;
  for (const auto each : run.channel_bytes()) bytes += each;
  CHECK_EQUAL(bytes, 35'000);
}

/// Both receive first: nothing moves.
void two_that_wait_for_each_other_stall() {
  ProgramRun run(ring(2, {{Op::kReceive, 0, 1, 0, 0}, {Op::kSend, 0, 1, 0, 1}, {Op::kStop, 0, 0, 0, 0}}, 0), {false, true, 0});
  CHECK(run.run(INT64_MAX) == Status::kStalled);
  const auto waits = run.waits();
  CHECK_EQUAL(waits.size(), 2U);
  CHECK_EQUAL(waits[0].channel, 1);
  CHECK_EQUAL(waits[1].channel, 0);
}

/// The link is down from 2,500 to 10,000 ps: 10 bytes end 7,500 ps later.
void an_interrupted_message_goes_on() {
  Program p = ring(2, rounds(1, 10), 0);
  p.changes = {{2'500, 10'000}, {0, 0}, {0, kBytesPerSecond * kRateUnitsPerByte}, {-1, -1}, {-1, -1}};
  CHECK_EQUAL(time_of(p), 17'500);
}

/// After 2,500 ps the rest, 7.5 bytes, takes the second link, twice as fast: 3,750 ps more; rank 1's own 10 bytes share nothing.
void a_message_changes_its_way() {
  Program p = ring(2, rounds(1, 10), 0);
  p.capacity.push_back(Rate{2 * kBytesPerSecond * kRateUnitsPerByte});
  p.ways.begin.push_back(3);
  p.ways.crossings.push_back({2, 1});
  p.changes = {{2'500}, {-1}, {0}, {0}, {2}};
  ProgramRun run(std::move(p), {true, true, 100});
  CHECK(run.run(INT64_MAX) == Status::kDone);
  CHECK_EQUAL(run.tasks().end_ps[0], 6'250);
  CHECK_EQUAL(run.tasks().end_ps[1], 10'000);
}

/// Messages of one injector begin 5,000 ps apart.
void an_injector_spaces_messages() {
  Program p = ring(2, {{Op::kSend, 0, 1, 0, 1}, {Op::kSend, 0, 1, 0, 1}, {Op::kReceive, 0, 1, 0, 0}, {Op::kReceive, 0, 1, 0, 0}, {Op::kStop, 0, 0, 0, 0}}, 0);
  p.channels.injector = {0, 1};
  p.injector_gap_ps = {5'000, 0};
  CHECK_EQUAL(time_of(p), 6'000);
}

/// A message's overhead comes before its bytes: 700 + 10,000 + 500 ps a round.
void an_overhead_delays_each_message() {
  Program p = ring(2, rounds(2, 10), 500);
  p.channels.overhead_ps = {700, 700};
  CHECK_EQUAL(time_of(p), 2 * 11'200);
}

/// Nobody is told of two puts; the message behind them comes when both have left, a latency later.
void what_follows_puts_tells_of_them() {
  const std::vector<Instruction> code = {{Op::kPut, 0, 1, 0, 10}, {Op::kPut, 0, 1, 0, 10}, {Op::kSend, 0, 1, 0, 0}, {Op::kReceive, 0, 1, 0, 0}, {Op::kStop, 0, 0, 0, 0}};
  CHECK_EQUAL(time_of(ring(2, code, 500)), 20'500);
}

/// One slot: taken until it is freed 200 ps after the message has come, and known to be free 300 ps later: 10,000 + 500 + 200 + 300 ps a round.
void a_slot_comes_back_when_it_is_freed_and_its_credit_has_come() {
  const auto code = [](std::int64_t times) {
    return std::vector<Instruction>{{Op::kLoop, 0, 0, 0, times}, {Op::kSend, 0, 1, 0, 10}, {Op::kTake, 0, 1, 0, 0}, {Op::kDelay, 0, 0, 0, 200},
                                    {Op::kFree, 0, 1, 0, 0},     {Op::kEnd, 0, 0, 0, 0},   {Op::kStop, 0, 0, 0, 0}};
  };
  for (const std::int64_t times : {3, 1000})
    for (const bool fast_forward : {false, true}) {
      Program p = ring(2, code(times), 500);
      p.channels.slots = {1, 1};
      p.channels.credit_ps = {300, 300};
      CHECK_EQUAL(time_of(p, fast_forward), (times - 1) * 11'000 + 10'700);
    }
}

/// Channel c has port c: the offsets may be left out.
void offsets_of_ports_may_be_left_out() {
  Program p = ring(3, rounds(3, 10), 500);
  p.channels.ports.clear();
  CHECK_EQUAL(time_of(p), 3 * 10'500);
}

/// Half speed doubles computing, not delays.
void a_slow_stream_computes_longer() {
  Program p = ring(2, {{Op::kCompute, 0, 0, 0, 100}, {Op::kDelay, 0, 0, 0, 30}, {Op::kStop, 0, 0, 0, 0}}, 0);
  p.streams.slowness = {1 << 20, 2 << 20};
  ProgramRun run(std::move(p), {false, true, 0});
  CHECK(run.run(INT64_MAX) == Status::kDone);
  CHECK_EQUAL(run.ends_ps()[0], 130);
  CHECK_EQUAL(run.ends_ps()[1], 230);
}

/// A loop that runs no times is passed; nested ones multiply.
void loops_nest() {
  const std::vector<Instruction> code = {{Op::kLoop, 0, 0, 0, 3}, {Op::kLoop, 0, 0, 0, 4},  {Op::kDelay, 0, 0, 0, 10}, {Op::kEnd, 1, 0, 0, 0},
                                         {Op::kLoop, 0, 0, 0, 0}, {Op::kDelay, 0, 0, 0, 99}, {Op::kEnd, 4, 0, 0, 0},   {Op::kEnd, 0, 0, 0, 0},
                                         {Op::kStop, 0, 0, 0, 0}};
  CHECK_EQUAL(time_of(ring(2, code, 0), false), 120);
  CHECK_EQUAL(time_of(ring(2, code, 0), true), 120);
}

/// One message to two ports, 100 and 300 ps away.
void a_multicast_arrives_at_every_port() {
  Program p = ring(3, {{Op::kSend, 0, 1, 0, 10}, {Op::kStop, 0, 0, 0, 0}, {Op::kReceive, 0, 1, 0, 0}, {Op::kStop, 0, 0, 0, 0}}, 0);
  p.streams.entry = {0, 2, 2};
  p.streams.channels = {0, 1, 1, 1};
  p.streams.channel_of = {0};
  p.streams.ports = {0, 0, 1, 2};
  p.streams.port_of = {0, 1};
  p.channels.way = {0};
  p.channels.ports = {0, 2};
  p.ports = {{1, 2}, {100, 300}};
  ProgramRun run(std::move(p), {false, true, 0});
  CHECK(run.run(INT64_MAX) == Status::kDone);
  CHECK_EQUAL(run.ends_ps()[1], 10'100);
  CHECK_EQUAL(run.ends_ps()[2], 10'300);
}

void what_points_nowhere_is_refused() {
  const auto refused = [](auto change) {
    Program p = ring(2, rounds(1, 1), 0);
    change(p);
    CHECK_THROWS(std::invalid_argument, ProgramRun(std::move(p), {}));
  };
  refused([](Program& p) { p.code.back().op = Op::kEnd; });
  refused([](Program& p) { p.code[1].first = 1; });
  refused([](Program& p) { p.code[2].count = 7; });
  refused([](Program& p) { p.streams.entry[0] = 99; });
  refused([](Program& p) { p.streams.port_of[0] = 0; });
  refused([](Program& p) { p.channels.way[0] = 5; });
  refused([](Program& p) { p.ports.latency_ps[1] = -1; });
  refused([](Program& p) { p.ways.crossings[0].link = -1; });
  refused([](Program& p) { p.channels.ports.back() = 1; });
}

/// Runs share nothing: as many threads as one likes, each with its own.
void runs_are_independent() {
  std::vector<std::thread> threads;
  std::vector<std::int64_t> times(4);
  for (std::size_t t = 0; t < times.size(); ++t)
    threads.emplace_back([&times, t] {
      ProgramRun run(ring(50, rounds(100 + static_cast<std::int64_t>(t), 10), 3), {true, false, 1 << 20});
      run.run(INT64_MAX);
      times[t] = count(run.now());
    });
  for (auto& thread : threads) thread.join();
  for (std::size_t t = 0; t < times.size(); ++t) CHECK_EQUAL(times[t], (100 + static_cast<std::int64_t>(t)) * 10'003);
}

/// Leaf of 2, 2 spines: slot 0 to slot 3 leaves by spine 1 (3 mod 2).
void ways_of_a_tree_are_its_links() {
  WayColumns ways;
  const TreeWays tree({{2, 2}, {1, 2}, {1, 1}});
  const std::int64_t src[] = {0, 0, 0}, dst[] = {3, 1, 0};
  tree.d_mod_k(src, dst, 3, 3, ways);
  CHECK_EQUAL(ways.begin.size(), 4U);
  CHECK_EQUAL(ways.begin[1], 4);
  CHECK_EQUAL(ways.begin[2], 6);
  CHECK_EQUAL(ways.begin[3], 6);
  // Cables: 0 to 3 of NICs, then leaf 0 to spines 0 and 1, leaf 1 to spines 0 and 1; up even, down odd.
  const LinkId expected[] = {0, 2 * 5, 2 * 7 + 1, 2 * 3 + 1, 0, 2 * 1 + 1};
  for (std::size_t i = 0; i < 6; ++i) CHECK_EQUAL(ways.crossings[i].link, expected[i]);
  const std::int64_t outside[] = {4, 0, 0};
  CHECK_THROWS(std::invalid_argument, tree.d_mod_k(outside, dst, 3, 3, ways));
  CHECK_THROWS(std::invalid_argument, TreeWays({{2}, {1, 2}, {1}}));
}

}  // namespace

int main() {
  rounds_take_their_bytes_and_latency();
  counted_periods_take_the_same_time();
  two_that_wait_for_each_other_stall();
  an_interrupted_message_goes_on();
  a_message_changes_its_way();
  an_injector_spaces_messages();
  an_overhead_delays_each_message();
  what_follows_puts_tells_of_them();
  a_slot_comes_back_when_it_is_freed_and_its_credit_has_come();
  offsets_of_ports_may_be_left_out();
  a_slow_stream_computes_longer();
  loops_nest();
  a_multicast_arrives_at_every_port();
  what_points_nowhere_is_refused();
  runs_are_independent();
  ways_of_a_tree_are_its_links();
  return busbw::testing::failures == 0 ? 0 : 1;
}
