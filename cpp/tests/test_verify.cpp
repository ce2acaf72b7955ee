// Plans small enough to be followed by hand: what is legal, and which rule each mistake breaks.
#include "busbw/schedule/verify.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "busbw/schedule/clocks.hpp"
#include "busbw/schedule/rank_sets.hpp"
#include "check.hpp"

using busbw::schedule::Block;
using busbw::schedule::Buffer;
using busbw::schedule::Connection;
using busbw::schedule::ConnectionKind;
using busbw::schedule::Findings;
using busbw::schedule::Op;
using busbw::schedule::Order;
using busbw::schedule::RankRows;
using busbw::schedule::RankSets;
using busbw::schedule::Row;
using busbw::schedule::Rule;
using busbw::schedule::RunOptions;
using busbw::schedule::Verifier;
using busbw::schedule::Walk;

namespace {

struct Rank {
  std::vector<Row> rows;
  std::vector<Block> blocks;
  std::vector<Connection> connections;
  std::vector<Walk> walks{Walk{{}, {}, {}, 0, 0, 0, 0, 0, 1}};
  std::array<std::int32_t, 3> chunks{2, 2, 0};
  std::vector<std::int64_t> before;
  std::vector<std::int64_t> after;

  Rank& block(std::vector<Row> more) {
    const auto first = static_cast<std::int32_t>(rows.size());
    rows.insert(rows.end(), more.begin(), more.end());
    blocks.push_back({first, static_cast<std::int32_t>(rows.size()), 0});
    return *this;
  }
};

Row row(Op op, std::int32_t via, Buffer src_buffer, std::int32_t src, Buffer dst_buffer, std::int32_t dst, std::int32_t count = 1) {
  return {op, Order::kRelaxed, 0, 0, src_buffer, dst_buffer, 0, via, src, dst, count};
}
Row send(std::int32_t via, std::int32_t src, std::int32_t count = 1) { return row(Op::kSend, via, Buffer::kInput, src, Buffer::kNone, -1, count); }
Row receive(std::int32_t via, std::int32_t dst, std::int32_t count = 1) { return row(Op::kRecv, via, Buffer::kNone, -1, Buffer::kOutput, dst, count); }
Row copy(std::int32_t src, std::int32_t dst) { return row(Op::kCopy, -1, Buffer::kInput, src, Buffer::kOutput, dst); }
Row ordered(Op op, Order order, std::int32_t via) {
  Row out = row(op, via, Buffer::kNone, -1, Buffer::kNone, -1);
  out.order = order;
  return out;
}

constexpr Connection kOut{ConnectionKind::kFifoOut, 0, 0, 0, 0};
constexpr Connection kIn{ConnectionKind::kFifoIn, 0, 0, 0, 0};
constexpr Connection kMemory{ConnectionKind::kMemory, 0, 0, 0, 0};

Connection to(Connection connection, std::int32_t peer) {
  connection.peer = peer;
  return connection;
}

/// Two ranks that swap chunk 0: contents 0 and 1.
std::vector<Rank> exchange() {
  std::vector<Rank> ranks(2);
  for (std::int32_t r = 0; r < 2; ++r) {
    auto& rank = ranks[static_cast<std::size_t>(r)];
    rank.connections = {to(kOut, 1 - r), to(kIn, 1 - r)};
    rank.block({send(0, 0), receive(1, 0)});
    rank.before = {r, -1};
    rank.after = {1 - r, -1};
  }
  return ranks;
}

struct Run {
  Findings findings;
  std::size_t steps = 0;
};

Findings run(const std::vector<Rank>& ranks, RunOptions options = {}) {
  std::vector<RankRows> views;
  for (const auto& rank : ranks)
    views.push_back({rank.rows, rank.blocks, rank.connections, rank.walks, {}, {}, rank.chunks, {0, rank.chunks[0], 0}, rank.chunks[0] + rank.chunks[1]});
  Verifier verifier(std::move(views), options);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    verifier.set_before(r, ranks[r].before);
    verifier.set_after(r, ranks[r].after);
  }
  return verifier.run();
}

bool only(const Findings& findings, Rule rule) {
  bool good = findings.total(rule) > 0;
  for (const auto& finding : findings.kept()) good = good && finding.rule == rule;
  return good;
}

void an_exchange_is_legal() { CHECK(run(exchange()).kept().empty()); }

void who_both_receive_first_wait_for_ever() {
  auto ranks = exchange();
  for (auto& rank : ranks) std::swap(rank.rows[0], rank.rows[1]);
  CHECK(only(run(ranks), Rule::kDeadlock));
  CHECK_EQUAL(run(ranks).total(Rule::kDeadlock), 2U);
}

/// Three messages each way and room for two: both senders stand.
void what_does_not_fit_into_fifos_is_a_deadlock() {
  auto ranks = exchange();
  for (auto& rank : ranks) rank.block({}), rank.rows = {send(0, 0), send(0, 0), send(0, 0), receive(1, 0), receive(1, 0), receive(1, 0)};
  for (auto& rank : ranks) rank.blocks = {{0, 6, 0}};
  CHECK(only(run(ranks), Rule::kDeadlock));
  RunOptions deeper;
  deeper.slots[0] = 3;
  CHECK(run(ranks, deeper).kept().empty());
}

/// One message of two chunks each way, one slot: whole it fits, cut into two it does not.
void cut_messages_need_deeper_fifos() {
  auto ranks = exchange();
  for (auto& rank : ranks) {
    rank.rows = {send(0, 0, 2), receive(1, 0, 2)};
    rank.before = {rank.before[0], rank.before[0] + 10};
    rank.after = {rank.after[0], rank.after[0] + 10};
  }
  RunOptions options;
  options.slots[0] = 1;
  options.chunks_per_message = 2;
  CHECK(run(ranks, options).kept().empty());
  options.chunks_per_message = 1;
  CHECK(only(run(ranks, options), Rule::kFifoDepth));
}

void a_message_that_nobody_takes_is_left_over() {
  auto ranks = exchange();
  ranks[0].rows.push_back(send(0, 0));
  ranks[0].blocks[0].last = 3;
  CHECK(only(run(ranks), Rule::kLeftoverMessage));
}

void a_message_of_another_size_is_told() {
  auto ranks = exchange();
  ranks[0].rows[0].count = 2;
  ranks[0].before = {0, 5};
  CHECK(run(ranks).total(Rule::kCountsDiffer) > 0);
}

void operands_lie_within_their_buffers() {
  auto ranks = exchange();
  ranks[0].rows[0].src = 2;
  CHECK(run(ranks).total(Rule::kBounds) > 0);
}

void what_nobody_wrote_is_not_read() {
  auto ranks = exchange();
  ranks[0].rows[0].src = 1;
  CHECK(run(ranks).total(Rule::kUninitialised) == 1);
}

/// Two blocks write one chunk; a flag between them makes it legal.
void two_blocks_that_write_one_chunk_race() {
  std::vector<Rank> ranks(1);
  ranks[0].block({copy(0, 0)}).block({copy(0, 0)});
  ranks[0].before = {7, -1};
  ranks[0].after = {7, -1};
  CHECK(only(run(ranks), Rule::kRace));
  std::vector<Rank> better(1);
  Row wait = ordered(Op::kFlagWait, Order::kAcquire, 0);
  wait.src = 1;
  better[0].block({copy(0, 0), ordered(Op::kFlagSet, Order::kRelease, -1)}).block({wait, copy(0, 0)});
  better[0].before = {7, -1};
  better[0].after = {7, -1};
  CHECK(run(better).kept().empty());
  better[0].rows[1].order = Order::kRelaxed;
  CHECK(only(run(better), Rule::kWeakOrder));
}

/// Rank 0 puts into rank 1's output and signals; without the entry handshake rank 1 may still use it.
void a_put_needs_to_know_that_the_peer_has_entered() {
  std::vector<Rank> ranks(2);
  ranks[0].connections = {to(kMemory, 1)};
  ranks[1].connections = {to(kMemory, 0)};
  ranks[0].block({row(Op::kPut, 0, Buffer::kInput, 0, Buffer::kOutput, 0), ordered(Op::kSignal, Order::kRelease, 0)});
  ranks[1].block({ordered(Op::kWait, Order::kAcquire, 0)});
  ranks[0].before = {3, -1};
  ranks[1].before = {-1, -1};
  ranks[1].after = {3, -1};
  CHECK(only(run(ranks), Rule::kNotEntered));
  ranks[0].rows.insert(ranks[0].rows.begin(), ordered(Op::kWait, Order::kRelaxed, 0));
  ranks[0].blocks[0].last = 3;
  ranks[1].rows.insert(ranks[1].rows.begin(), ordered(Op::kSignal, Order::kRelaxed, 0));
  ranks[1].blocks[0].last = 2;
  CHECK(run(ranks).kept().empty());
}

void rows_that_point_nowhere_are_refused() {
  auto ranks = exchange();
  ranks[0].rows[0].walk = 3;
  CHECK(only(run(ranks), Rule::kMalformed));
  ranks = exchange();
  ranks[0].rows[0] = row(Op::kLoop, -1, Buffer::kNone, -1, Buffer::kNone, 5, 2);
  CHECK(only(run(ranks), Rule::kMalformed));
  ranks = exchange();
  ranks[0].connections[0].peer = 9;
  CHECK(only(run(ranks), Rule::kMalformed));
}

void a_loop_without_end_is_given_up() {
  std::vector<Rank> ranks(1);
  ranks[0].block({row(Op::kLoop, -1, Buffer::kNone, -1, Buffer::kNone, 1, 2'000'000'000), copy(0, 0)});
  ranks[0].before = {0, -1};
  ranks[0].after = {0, -1};
  RunOptions options;
  options.most_instructions = 1000;
  CHECK(only(run(ranks, options), Rule::kTooLong));
}

void a_set_of_ranks_has_one_number() {
  RankSets sets;
  const auto both = *sets.disjoint_union(sets.one(3), sets.one(1));
  CHECK_EQUAL(both, *sets.disjoint_union(sets.one(1), sets.one(3)));
  const auto three = *sets.disjoint_union(both, sets.one(2));
  CHECK_EQUAL(sets.of(three).size(), 1U);
  CHECK_EQUAL(sets.of(three)[0].first, 1);
  CHECK_EQUAL(sets.of(three)[0].last, 4);
  CHECK(!sets.disjoint_union(three, sets.one(2)).has_value());
  CHECK_EQUAL(*sets.disjoint_union(RankSets::kEmpty, three), three);
}

/// Whatever numbers rows hold, the run ends and nothing is read outside of the tables. Seeded; the sanitizers watch.
void any_rows_at_all_are_survived() {
  std::uint64_t state = 1;
  const auto lot = [&](std::uint64_t sides) { return static_cast<std::int32_t>((state = busbw::schedule::scrambled(state)) % sides); };
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<Rank> ranks(2);
    for (std::int32_t r = 0; r < 2; ++r) {
      auto& rank = ranks[static_cast<std::size_t>(r)];
      rank.chunks = {2, 2, 2};
      rank.connections = {to(kOut, 1 - r), to(kIn, 1 - r), to(kMemory, 1 - r), {ConnectionKind::kPort, 0, 0, 1 - r, 0}, {ConnectionKind::kMapped, 0, 0, 1 - r, 0}};
      rank.walks.push_back({{lot(3), -1, 0}, {1, 0, 0}, {}, 0, lot(3), 0, 2, 0, 1});
      for (int b = 0; b < 2; ++b) {
        std::vector<Row> rows;
        for (int i = 0; i < 6; ++i) {
          Row one = row(static_cast<Op>(lot(33)), lot(8) - 2, static_cast<Buffer>(lot(3)), lot(5) - 1, static_cast<Buffer>(lot(3)), lot(5) - 1, lot(4));
          one.order = static_cast<Order>(lot(3));
          one.walk = static_cast<std::uint16_t>(lot(2));
          one.more = static_cast<std::uint8_t>(lot(6) == 0 ? 1 : 0);
          rows.push_back(one);
        }
        rank.block(std::move(rows));
      }
      rank.before = {r, 2 + r};
      rank.after = {0, 1};
    }
    RunOptions options;
    options.blocks_in_order = lot(2) == 0;
    options.double_scratch = lot(2) == 0;
    options.slices = static_cast<std::uint32_t>(1 + lot(3));
    options.scratch_slices = options.slices;
    options.most_instructions = 10'000;
    CHECK(!run(ranks, options).kept().empty() || trial >= 0);
  }
}

}  // namespace

int main() {
  an_exchange_is_legal();
  who_both_receive_first_wait_for_ever();
  what_does_not_fit_into_fifos_is_a_deadlock();
  cut_messages_need_deeper_fifos();
  a_message_that_nobody_takes_is_left_over();
  a_message_of_another_size_is_told();
  operands_lie_within_their_buffers();
  what_nobody_wrote_is_not_read();
  two_blocks_that_write_one_chunk_race();
  a_put_needs_to_know_that_the_peer_has_entered();
  rows_that_point_nowhere_are_refused();
  a_loop_without_end_is_given_up();
  a_set_of_ranks_has_one_number();
  any_rows_at_all_are_survived();
  return busbw::testing::failures == 0 ? 0 : 1;
}
