/// One greedy run of a plan: for its values, for its values with a log, or for its clocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "busbw/schedule/clocks.hpp"
#include "busbw/schedule/detail/links.hpp"
#include "busbw/schedule/findings.hpp"
#include "busbw/schedule/plan_rows.hpp"
#include "busbw/schedule/rank_sets.hpp"

namespace busbw::schedule::detail {

enum class Mode { kValues, kLogged, kClocks };

/// What a place holds: a content, whose contributions to it, and the tree of reductions that made it (a hash, the same with sides swapped).
struct Value {
  static constexpr std::uint32_t kNothing = ~std::uint32_t{0};
  static constexpr std::uint32_t kSpoilt = kNothing - 1;  ///< made of something wrong that is reported already
  std::uint32_t content = kNothing;
  RankSets::Id set = RankSets::kEmpty;
  std::uint64_t tree = 0;
};

struct Event {
  Place at;
};

/// Who touched a piece in the run for values.
struct Touched {
  enum Flag : std::uint8_t { kSeveral = 1, kWritten = 2, kRemote = 4 };
  std::vector<std::uint32_t> first;                      ///< actor + 1
  std::vector<std::uint8_t> flags;
  std::vector<std::vector<std::uint32_t>> remote_actors; ///< by rank that owns the memory
  std::vector<std::uint32_t> acquirers;  ///< blocks that took from a counter from which another one took, too; some more than once
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> releases;  ///< by counter: block, releases; counters of semaphores behind those of links
  bool remote = false;
  bool packets = false;
};

/// Pieces that can race, and the actors whose clocks matter for them.
struct Candidates {
  std::shared_ptr<const std::vector<std::uint32_t>> ids;  ///< of each piece, kNone: cannot race
  std::uint32_t first = 0;                                ///< the batch has ids first .. last - 1
  std::uint32_t last = 0;
  std::vector<std::uint32_t> dimension;                   ///< of each actor
  std::vector<std::uint32_t> read_dimension;              ///< of each actor's reads; the same where no packets are used
  std::size_t dimensions = 0;
  std::uint32_t launches = 1;
  bool acquirers = false;                                 ///< whether it is the order of takes from counters that is asked for
  bool users = false;                                     ///< whether callers matter: what they do before and after the call
  const Touched* touched = nullptr;
};

struct View {
  const std::vector<RankRows>& ranks;
  RunOptions options;
  const Links& links;
  const Memory& memory;
  const std::vector<std::vector<std::int64_t>>& before;
  RankSets& sets;
  const Candidates* candidates = nullptr;
  bool all_ordered = false;  ///< takes every relaxed operation as release or acquire
};

struct Range {
  std::int64_t first = 0;
  std::int64_t pieces = 0;
  std::uint32_t owner = 0;
  bool good = false;
};

template <Mode mode>
class Machine {
 public:
  Machine(const View& view, Findings& findings) : view_(view), findings_(findings), pool_(dimensions()) {
    std::uint32_t blocks = 0;
    std::uint32_t semaphores = 0;
    for (std::size_t r = 0; r < view_.ranks.size(); ++r) {
      first_block_.push_back(blocks);
      first_semaphore_.push_back(semaphores);
      for (const auto value : view_.ranks[r].semaphores) {
        semaphores_.emplace_back();
        semaphores_.back().initial = value;
      }
      semaphores += static_cast<std::uint32_t>(view_.ranks[r].semaphores.size());
      for (std::size_t b = 0; b < view_.ranks[r].blocks.size(); ++b) {
        State state;
        state.rank = static_cast<std::uint32_t>(r);
        state.local = static_cast<std::uint32_t>(b);
        state.row = view_.ranks[r].blocks[b].first;
        blocks_.push_back(state);
      }
      blocks += static_cast<std::uint32_t>(view_.ranks[r].blocks.size());
    }
    first_block_.push_back(blocks);
    fifos_.resize(view_.links.fifos().size());
    counters_.resize(view_.links.counters());
    flags_.resize(blocks);
    if constexpr (mode == Mode::kClocks) {
      launches_ = view_.candidates->launches;
      prepare_clocks();
    } else {
      prepare_values();
    }
  }

  void run() {
    std::vector<std::uint32_t>& ready = ready_;
    for (std::size_t b = blocks_.size(); b-- > 0;) ready.push_back(static_cast<std::uint32_t>(b));
    while (!ready.empty() && !too_long_) {
      const std::uint32_t b = ready.back();
      ready.pop_back();
      advance(b);
    }
    for (const auto& block : blocks_) deadlocked_ = deadlocked_ || !block.done;
    if (too_long_) findings_.add({.rule = Rule::kTooLong, .at = place(too_long_block_), .other = {}});
  }

  bool deadlocked() const { return deadlocked_ && !too_long_; }
  bool too_long() const { return too_long_; }
  std::uint64_t executed() const { return executed_; }
  const Touched& touched() {
    touched_.releases.clear();
    for (const auto& counter : counters_) touched_.releases.push_back(counter.releasers);
    for (const auto& semaphore : semaphores_) touched_.releases.push_back(semaphore.releasers);
    return touched_;
  }

  void report_blocked() {
    for (std::uint32_t b = 0; b < blocks_.size(); ++b)
      if (!blocks_[b].done) findings_.add({.rule = Rule::kDeadlock, .at = place(b), .other = who_could_wake(b)});
  }

  /// Of a run that did not end, which says nothing of their order.
  void report_acquirers() {
    for (const auto& [at, other] : second_acquirers_) findings_.add({.rule = Rule::kTwoAcquirers, .at = at, .other = other});
  }

  void report_leftovers() {
    for (std::size_t i = 0; i < fifos_.size(); ++i)
      if (const auto left = fifos_[i].messages.size() - fifos_[i].taken; left != 0)
        findings_.add({.rule = Rule::kLeftoverMessage, .at = view_.links.fifos()[i].writer, .other = view_.links.fifos()[i].reader,
                       .got = static_cast<std::int64_t>(left)});
    for (std::size_t i = 0; i < counters_.size(); ++i)
      if (counters_[i].given != counters_[i].taken)
        findings_.add({.rule = Rule::kLeftoverSignal, .at = view_.links.signaller(static_cast<std::uint32_t>(i)), .other = {},
                       .got = static_cast<std::int64_t>(counters_[i].given - counters_[i].taken)});
    for (std::size_t r = 0; r < view_.ranks.size(); ++r)
      for (std::size_t s = 0; s < view_.ranks[r].semaphores.size(); ++s) {
        const auto& semaphore = semaphores_[first_semaphore_[r] + s];
        const std::int64_t now = semaphore.initial + static_cast<std::int64_t>(semaphore.given) - static_cast<std::int64_t>(semaphore.taken);
        if (now != semaphore.initial)
          findings_.add({.rule = Rule::kSemaphoreBalance, .at = {static_cast<std::int32_t>(r), -1, -1, -1}, .other = {},
                         .chunk = static_cast<std::int64_t>(s), .got = now, .wanted = semaphore.initial});
      }
  }

  /// Each output chunk must hold its content with the contribution of every rank that had it before.
  void check_results(const std::vector<std::vector<std::int64_t>>& after, bool& bitwise_equal) {
    std::unordered_map<std::int64_t, std::uint64_t> trees;
    for (std::size_t r = 0; r < after.size(); ++r)
      for (std::size_t c = 0; c < after[r].size(); ++c) {
        if (after[r][c] == kNoContent) continue;
        const std::int64_t per_chunk = view_.memory.per_chunk(Buffer::kOutput);
        const std::int64_t first = view_.memory.position(r, Buffer::kOutput, static_cast<std::int64_t>(c), 0);
        for (std::int64_t p = 0; p < per_chunk; ++p) {
          const Value& value = values_[static_cast<std::size_t>(first + p)];
          const std::int64_t wanted = after[r][c] * per_chunk + p;
          if (value.content == Value::kSpoilt) break;
          const auto content = static_cast<std::size_t>(after[r][c]);
          const RankSets::Id everyone = content < holders_.size() ? holders_[content] : RankSets::kEmpty;
          if (value.content != wanted || value.set != everyone) {
            findings_.add({.rule = Rule::kWrongResult, .at = {static_cast<std::int32_t>(r), -1, -1, -1}, .other = {},
                           .owner = static_cast<std::int32_t>(r), .buffer = static_cast<std::int32_t>(Buffer::kOutput),
                           .chunk = static_cast<std::int64_t>(c),
                           .got = value.content == Value::kNothing ? kNoContent : value.content / per_chunk, .wanted = after[r][c],
                           .got_set = value.set, .wanted_set = everyone});
            break;
          }
          const auto [known, fresh] = trees.try_emplace(wanted, value.tree);
          if (!fresh && known->second != value.tree) bitwise_equal = false;
        }
      }
  }

  /// Each block's end must know that every rank has entered. Only of a run over `entries`.
  void check_barrier(Findings& out) const {
    for (std::size_t r = 0; r < view_.ranks.size(); ++r) {
      const Clock& at_end = clocks_[user(static_cast<std::uint32_t>(r))];
      for (std::size_t other = 0; other < view_.ranks.size(); ++other)
        if (other != r && !at_end.knows({view_.candidates->dimension[user(static_cast<std::uint32_t>(other))], 1, 0}))
          out.add({.rule = Rule::kNotABarrier, .at = {static_cast<std::int32_t>(r), -1, -1, -1}, .other = {static_cast<std::int32_t>(other), -1, -1, -1}});
    }
  }

  /// What led to the value of a piece, in the order of the run. Only of a logged run.
  std::vector<Event> ancestors(std::int64_t piece) const {
    std::vector<std::uint32_t> open;
    std::vector<bool> met(events_.size());
    const auto meet = [&](std::uint32_t event) {
      if (event != kNone && !met[event]) met[event] = true, open.push_back(event);
    };
    meet(made_by_[static_cast<std::size_t>(piece)]);
    while (!open.empty()) {
      const std::uint32_t event = open.back();
      open.pop_back();
      for (std::uint32_t i = first_parent_[event]; i < (event + 1 < first_parent_.size() ? first_parent_[event + 1] : parents_.size()); ++i)
        meet(parents_[i]);
    }
    std::vector<Event> out;
    for (std::size_t i = 0; i < events_.size(); ++i)
      if (met[i]) out.push_back(events_[i]);
    return out;
  }

 private:
  struct Frame {
    std::int32_t begin, end, turn, times;
    bool slices;
  };
  struct State {
    std::uint32_t rank = 0;
    std::uint32_t local = 0;
    std::int32_t row = 0;
    std::uint32_t depth = 0;
    std::array<Frame, kMaxLoops + 1> frames{};
    std::uint32_t progress = 0;  ///< of a row that waits several times
    Time time = 0;
    std::uint32_t launch = 0;
    std::uint32_t event = kNone;
    bool done = false;
  };
  struct Message {
    std::uint32_t index = 0;  ///< the index-th of total that its sender cut
    std::uint32_t total = 0;
    std::size_t first = 0;    ///< its values
    std::uint32_t pieces = 0;
    Place from;
    Knowledge all;
    Knowledge start;
    std::uint32_t event = kNone;
  };
  struct Fifo {
    std::vector<Value> values;
    std::vector<Message> messages;
    std::size_t taken = 0;
    std::uint32_t waiting_writer = kNone;
    std::uint32_t waiting_reader = kNone;
    std::uint32_t writer = kNone;
    std::uint32_t reader = kNone;
  };
  struct Token {
    Knowledge all;
    Knowledge start;
  };
  struct Counter {
    std::int64_t initial = 0;
    std::uint64_t given = 0;
    std::uint64_t taken = 0;
    std::vector<std::uint32_t> waiting;
    std::uint32_t acquirer = kNone;  ///< who took, or waits to take, last
    Time acquired = 0;               ///< when
    bool reported = false;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> releasers;  ///< block, how often
    std::vector<std::pair<std::uint32_t, Token>> tokens;
  };
  struct FlagState {
    std::int64_t set = 0;
    std::vector<std::pair<std::uint32_t, std::int64_t>> waiting;
    std::vector<Token> tokens;
  };
  struct Barrier {
    std::vector<std::uint32_t> waiting;
    std::vector<std::uint32_t> blocks;
    std::int32_t count = -1;
    std::uint64_t generation = 0;
    bool reported = false;
  };

  // Setting up

  std::size_t dimensions() const { return mode == Mode::kClocks ? view_.candidates->dimensions : 0; }

  void prepare_values() {
    const auto pieces = static_cast<std::size_t>(view_.memory.pieces());
    values_.resize(pieces);
    if constexpr (mode == Mode::kValues) {
      touched_.first.resize(pieces);
      touched_.flags.resize(pieces);
      touched_.remote_actors.resize(view_.ranks.size());
    } else {
      made_by_.assign(pieces, kNone);
    }
    std::int64_t contents = 0;
    for (const auto& rank : view_.before)
      for (const auto content : rank) contents = std::max(contents, content + 1);
    holders_.assign(static_cast<std::size_t>(contents), RankSets::kEmpty);
    for (std::size_t r = 0; r < view_.before.size(); ++r) {
      const RankSets::Id self = view_.sets.one(static_cast<std::int32_t>(r));
      const std::int64_t per_chunk = view_.memory.per_chunk(Buffer::kInput);
      for (std::size_t c = 0; c < view_.before[r].size(); ++c) {
        const std::int64_t content = view_.before[r][c];
        if (content == kNoContent) continue;
        auto& holders = holders_[static_cast<std::size_t>(content)];
        holders = view_.sets.disjoint_union(holders, self).value_or(holders);
        const std::int64_t first = view_.memory.position(r, Buffer::kInput, static_cast<std::int64_t>(c), 0);
        for (std::int64_t p = 0; p < per_chunk; ++p) {
          const auto whole = static_cast<std::uint32_t>(content * per_chunk + p);
          values_[static_cast<std::size_t>(first + p)] = {whole, self, scrambled(static_cast<std::uint64_t>(whole) << 32 | r)};
        }
      }
    }
  }

  void prepare_clocks() {
    const auto& candidates = *view_.candidates;
    const std::size_t actors = blocks_.size() + view_.links.proxies() + view_.ranks.size();
    const bool in_order = view_.options.blocks_in_order;
    for (std::size_t a = 0; a < actors; ++a) {
      const bool threads = a < blocks_.size() && !in_order;
      clocks_.emplace_back(dimensions(), candidates.dimension[a], candidates.read_dimension[a], threads ? 0 : Clock::kAlways);
    }
    if (!in_order)
      for (std::size_t b = 0; b < blocks_.size(); ++b) seen_by_threads_.emplace_back(dimensions(), candidates.dimension[b], candidates.read_dimension[b], Time{0});
    synced_.resize(blocks_.size());
    proxy_time_.resize(view_.links.proxies());
    user_time_.resize(view_.ranks.size());
    finished_.resize(view_.ranks.size());
    history_.resize(candidates.last - candidates.first);
    start_.resize(view_.ranks.size());
    for (std::size_t r = 0; candidates.users && r < view_.ranks.size(); ++r) user_acts(r, false);
  }

  // Where things are

  Place place(std::uint32_t b) const {
    const State& s = blocks_[b];
    const Block& block = view_.ranks[s.rank].blocks[s.local];
    return {static_cast<std::int32_t>(s.rank), static_cast<std::int32_t>(s.local), s.row - block.first, s.depth == 0 ? -1 : s.frames[s.depth - 1].turn};
  }

  const Row& row_of(const State& s, std::uint32_t more = 0) const { return view_.ranks[s.rank].rows[static_cast<std::size_t>(s.row) + more]; }

  /// Value of an index that loops move.
  static std::int64_t moved(std::int64_t index, const std::int32_t (&step)[kMaxLoops], std::int32_t first, std::int32_t wrap, const State& s) {
    std::size_t level = 0;
    for (std::uint32_t d = 0; d < s.depth; ++d)
      if (!s.frames[d].slices) index += std::int64_t{step[level++]} * s.frames[d].turn;
    if (wrap > 0) {
      std::int64_t rest = (index - first) % wrap;
      if (rest < 0) rest += wrap;
      index = first + rest;
    }
    return index;
  }

  std::int32_t via(const State& s, const Row& row) const {
    if (row.walk == 0 || row.via < 0) return row.via;
    const Walk& walk = view_.ranks[s.rank].walks[row.walk];
    const auto moved_via = moved(row.via, walk.via_step, 0, 0, s);
    return moved_via < 0 || moved_via > INT32_MAX ? -2 : static_cast<std::int32_t>(moved_via);
  }

  const Connection* connection(const State& s, std::int32_t via) const {
    const auto& table = view_.ranks[s.rank].connections;
    return via < 0 || static_cast<std::size_t>(via) >= table.size() ? nullptr : &table[static_cast<std::size_t>(via)];
  }

  /// The pieces of an operand in the memory of a rank. Outside of the buffer: reported, and not good.
  Range range(std::uint32_t b, const Row& row, bool src, std::size_t owner) {
    const State& s = blocks_[b];
    const Buffer buffer = src ? row.src_buffer : row.dst_buffer;
    std::int64_t index = src ? row.src : row.dst;
    std::uint32_t part = 0;
    std::uint32_t parts = 1;
    if (row.walk != 0) {
      const Walk& walk = view_.ranks[s.rank].walks[row.walk];
      index = src ? moved(index, walk.src_step, walk.src_first, walk.src_wrap, s) : moved(index, walk.dst_step, walk.dst_first, walk.dst_wrap, s);
      part = walk.part;
      parts = walk.parts;
    }
    if (buffer == Buffer::kNone || index < 0 || row.count < 1 ||
        index + row.count > view_.ranks[owner].chunks[static_cast<std::size_t>(buffer)]) {
      findings_.add({.rule = Rule::kBounds, .at = place(b), .other = {}, .owner = static_cast<std::int32_t>(owner),
                     .buffer = static_cast<std::int32_t>(buffer), .chunk = index, .got = row.count,
                     .wanted = buffer == Buffer::kNone ? 0 : view_.ranks[owner].chunks[static_cast<std::size_t>(buffer)]});
      return {};
    }
    Range out{view_.memory.position(owner, buffer, index, s.launch), row.count * view_.memory.per_chunk(buffer), static_cast<std::uint32_t>(owner), true};
    for (std::uint32_t d = 0; d < s.depth; ++d)
      if (s.frames[d].slices) {
        const std::int64_t slices = buffer == Buffer::kScratch ? view_.options.scratch_slices : view_.options.slices;
        out.pieces /= slices;
        out.first += s.frames[d].turn % slices * out.pieces;
      }
    const std::int64_t all = out.pieces;
    out.first += all * part / parts;
    out.pieces = all * (part + 1) / parts - all * part / parts;
    return out;
  }

  Range local(std::uint32_t b, const Row& row, bool src) { return range(b, row, src, blocks_[b].rank); }
  Range remote(std::uint32_t b, const Row& row, bool src) {
    const State& s = blocks_[b];
    const Connection* to = connection(s, via(s, row));
    if (to == nullptr || to->kind < ConnectionKind::kMapped || to->kind == ConnectionKind::kSwitch) return no_connection(b);
    return range(b, row, src, static_cast<std::size_t>(to->peer));
  }
  /// Local without a connection, the peer's with one.
  Range either(std::uint32_t b, const Row& row, bool src) { return row.via < 0 ? local(b, row, src) : remote(b, row, src); }
  Range no_connection(std::uint32_t b) {
    findings_.add({.rule = Rule::kConnectionMissing, .at = place(b), .other = {}});
    return {};
  }

  bool same_size(std::uint32_t b, const Range& a, const Range& c) {
    if (!a.good || !c.good) return false;
    if (a.pieces == c.pieces) return true;
    findings_.add({.rule = Rule::kCountsDiffer, .at = place(b), .other = {}, .got = a.pieces, .wanted = c.pieces});
    return false;
  }

  // Control

  void wake(std::uint32_t& block) {
    if (block == kNone) return;
    ready_.push_back(block);
    block = kNone;
  }

  void advance(std::uint32_t b) {
    State& s = blocks_[b];
    const RankRows& rank = view_.ranks[s.rank];
    for (;;) {
      while (s.depth > 0 && s.frames[s.depth - 1].end == s.row) {
        Frame& frame = s.frames[s.depth - 1];
        if (++frame.turn < frame.times)
          s.row = frame.begin;
        else
          --s.depth;
      }
      if (s.row == rank.blocks[s.local].last) {
        if (!end_launch(b)) return;
        continue;
      }
      const Row& row = rank.rows[static_cast<std::size_t>(s.row)];
      if (++attempts_ > view_.options.most_instructions) {
        too_long_ = true;
        too_long_block_ = b;
        return;
      }
      if (is_loop(row.op)) {
        ++executed_;
        const auto times = row.op == Op::kLoop ? row.count : static_cast<std::int32_t>(view_.options.slices);
        if (times > 0 && row.dst > 0)
          s.frames[s.depth++] = {s.row + 1, s.row + 1 + row.dst, 0, times, row.op == Op::kSlices}, ++s.row;
        else
          s.row += 1 + row.dst;
        continue;
      }
      if (s.progress == 0) {
        ++s.time;
        if constexpr (mode == Mode::kLogged) s.event = kNone;
      }
      if (!execute(b, row)) return;
      ++executed_;
      s.progress = 0;
      s.row += 1 + row.more;
    }
  }

  /// Whether the block goes on with another launch at once. All blocks of a rank end before any begins again.
  bool end_launch(std::uint32_t b) {
    State& s = blocks_[b];
    if constexpr (mode != Mode::kClocks) {
      s.done = true;
      return false;
    } else {
      const std::uint32_t first = first_block_[s.rank];
      const std::uint32_t last = first_block_[s.rank + 1];
      s.done = true;
      if (++finished_[s.rank] < last - first) return false;
      finished_[s.rank] = 0;
      if (view_.candidates->users) {
        for (std::uint32_t i = first; i < last; ++i) clocks_[user(s.rank)].acquire(pool_, own_knowledge(i, blocks_[i].time));
        user_acts(s.rank, true);
      }
      if (s.launch + 1 == launches_) return false;
      for (std::uint32_t i = first; i < last; ++i) {
        State& other = blocks_[i];
        ++other.launch;
        other.done = false;
        other.row = view_.ranks[other.rank].blocks[other.local].first;
        for (auto& token : flags_[i].tokens) drop(token);
        flags_[i].tokens.clear();
        flags_[i].set = 0;
        if (i != b) ready_.push_back(i);
      }
      return true;
    }
  }

  // Happens-before

  std::uint32_t user(std::uint32_t rank) const { return static_cast<std::uint32_t>(blocks_.size() + view_.links.proxies()) + rank; }
  std::uint32_t proxy_actor(std::uint32_t proxy) const { return static_cast<std::uint32_t>(blocks_.size()) + proxy; }

  Knowledge own_knowledge(std::uint32_t b, Time time) { return clocks_[b].release(pool_, time); }
  void take(Clock& clock, const Knowledge& knowledge) {
    clock.acquire(pool_, knowledge);
    pool_.drop(knowledge.snapshot);
  }
  Knowledge shared(const Knowledge& knowledge) {
    pool_.share(knowledge.snapshot);
    return knowledge;
  }
  void drop(const Token& token) {
    pool_.drop(token.all.snapshot);
    pool_.drop(token.start.snapshot);
  }

  /// Up to which time a block's own instructions are covered by what it releases.
  Time covered(std::uint32_t b) const { return view_.options.blocks_in_order ? blocks_[b].time : synced_[b]; }

  Token token(std::uint32_t b, Order order) {
    if constexpr (mode != Mode::kClocks) {
      return {};
    } else {
      const Knowledge start = shared(start_[blocks_[b].rank]);
      if (order == Order::kRelaxed && !view_.all_ordered) return {shared(start), start};
      return {own_knowledge(b, covered(b)), start};
    }
  }
  void acquire(std::uint32_t b, const Token& token, Order order) {
    if constexpr (mode == Mode::kClocks)
      clocks_[b].acquire(pool_, order == Order::kRelaxed && !view_.all_ordered ? token.start : token.all);
  }

  void sync(std::uint32_t b) {
    if constexpr (mode == Mode::kClocks) {
      if (view_.options.blocks_in_order) return;
      synced_[b] = blocks_[b].time;
      clocks_[b].order_own(blocks_[b].time);
      seen_by_threads_[b].order_own(blocks_[b].time);
      seen_by_threads_[b].acquire(pool_, clocks_[b]);
    }
  }

  const Clock& data_clock(std::uint32_t b) const { return view_.options.blocks_in_order ? clocks_[b] : seen_by_threads_[b]; }

  std::uint64_t access_token(std::uint32_t b) const {
    return static_cast<std::uint64_t>(b) << 32 | static_cast<std::uint32_t>(blocks_[b].row - view_.ranks[blocks_[b].rank].blocks[blocks_[b].local].first);
  }

  void user_acts(std::size_t rank, bool reads) {
    const std::uint32_t actor = user(static_cast<std::uint32_t>(rank));
    const Time time = ++user_time_[rank];
    const std::uint64_t boundary = reads ? blocks_[first_block_[rank]].launch + 1 : 0;  // before the launch of this number
    const std::uint64_t token = kUserToken | boundary << kLaunchShift | rank;
    if (view_.candidates->dimension[actor] != kNoDimension)
      for (const Buffer buffer : {Buffer::kOutput, Buffer::kInput}) {
        const bool is_read = buffer == Buffer::kOutput;
        if (is_read && !reads) continue;
        const auto chunks = view_.ranks[rank].chunks[static_cast<std::size_t>(buffer)];
        if (chunks == 0) continue;
        const Range all{view_.memory.position(rank, buffer, 0, 0), chunks * view_.memory.per_chunk(buffer), static_cast<std::uint32_t>(rank), true};
        const auto& dimension = is_read ? view_.candidates->read_dimension : view_.candidates->dimension;
        record(clocks_[actor], {dimension[actor], time, token}, all, !is_read);
      }
    pool_.drop(start_[rank].snapshot);
    start_[rank] = clocks_[actor].release(pool_, time);
    for (std::uint32_t b = first_block_[rank]; b < first_block_[rank + 1]; ++b) {
      clocks_[b].acquire(pool_, start_[rank]);
      if (!view_.options.blocks_in_order) {
        synced_[b] = blocks_[b].time;
        clocks_[b].order_own(blocks_[b].time);
        seen_by_threads_[b].order_own(blocks_[b].time);
        seen_by_threads_[b].acquire(pool_, clocks_[b]);
      }
    }
  }

  void record(const Clock& clock, const Access& access, const Range& range, bool write, bool packets = false, std::uint32_t launch = 0) {
    const auto& ids = *view_.candidates->ids;
    for (std::int64_t p = range.first; p < range.first + range.pieces; ++p) {
      const std::uint32_t id = ids[static_cast<std::size_t>(p)];
      if (id == kNone || id < view_.candidates->first || id >= view_.candidates->last) continue;
      History& history = history_[id - view_.candidates->first];
      const Access* arrived = packets && packets_[p].launch == launch ? &packets_[p].writer : nullptr;
      if (const Access* race = write ? history.write(access, clock) : history.read(access, clock, arrived)) report_race(access, *race, range.owner, p, write);
    }
  }

  static constexpr std::uint64_t kUserToken = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kLaunchShift = 56;

  Place place_of_token(std::uint64_t token) const {
    if ((token & kUserToken) != 0) return {static_cast<std::int32_t>(token & 0xffffffff), -1, -1, -1};
    const State& s = blocks_[token >> 32 & 0xffffff];
    return {static_cast<std::int32_t>(s.rank), static_cast<std::int32_t>(s.local), static_cast<std::int32_t>(token & 0xffffffff), -1};
  }

  void report_race(const Access& now, const Access& before, std::uint32_t owner, std::int64_t piece, bool write) {
    const bool by_user = ((now.token | before.token) & kUserToken) != 0;
    const bool other_launch = (now.token >> kLaunchShift & 0x7f) != (before.token >> kLaunchShift & 0x7f);
    const bool now_by_user = (now.token & kUserToken) != 0;
    const auto launch = [](std::uint64_t token) { return token >> kLaunchShift & 0x7f; };
    const bool early = by_user && launch(now_by_user ? before.token : now.token) >= launch(now_by_user ? now.token : before.token);
    const Rule rule = early ? Rule::kNotEntered : !by_user && other_launch ? Rule::kRelaunchRace : Rule::kRace;
    const auto [buffer, chunk] = view_.memory.name(owner, piece, view_.ranks[owner]);
    findings_.add({.rule = rule, .at = place_of_token(now.token), .other = place_of_token(before.token), .owner = static_cast<std::int32_t>(owner),
                   .buffer = static_cast<std::int32_t>(buffer), .chunk = chunk, .got = write ? 1 : 0});
  }

  /// Marks an access of a block, or of the proxy that acts for it.
  void touch(std::uint32_t b, const Range& range, bool write, std::uint32_t proxy = kNone, bool packets = false) {
    if constexpr (mode == Mode::kValues) {
      const std::uint32_t actor = proxy == kNone ? b : proxy_actor(proxy);
      const bool remote = range.owner != blocks_[b].rank;
      const auto flags = static_cast<std::uint8_t>((write ? Touched::kWritten : 0) | (remote ? Touched::kRemote : 0));
      for (std::int64_t p = range.first; p < range.first + range.pieces; ++p) {
        auto& first = touched_.first[static_cast<std::size_t>(p)];
        auto& known = touched_.flags[static_cast<std::size_t>(p)];
        known |= flags;
        if (first == 0)
          first = actor + 1;
        else if (first != actor + 1)
          known |= Touched::kSeveral;
      }
      if (remote || proxy != kNone) {
        touched_.remote = touched_.remote || remote;
        auto& actors = touched_.remote_actors[range.owner];
        if (actors.empty() || actors.back() != actor) actors.push_back(actor);
      }
    } else if constexpr (mode == Mode::kClocks) {
      const std::uint32_t actor = proxy == kNone ? b : proxy_actor(proxy);
      const std::uint64_t token = access_token(b) | static_cast<std::uint64_t>(blocks_[b].launch) << kLaunchShift;
      const auto& dimension = write ? view_.candidates->dimension : view_.candidates->read_dimension;
      const Access access{dimension[actor], proxy == kNone ? blocks_[b].time : proxy_time_[proxy], token};
      if (access.dimension != kNoDimension) record(proxy == kNone ? data_clock(b) : clocks_[actor], access, range, write, packets, blocks_[b].launch + 1);
    }
  }

  // Values

  Value at(std::int64_t piece) const { return values_[static_cast<std::size_t>(piece)]; }

  Value read(std::uint32_t b, const Range& range, std::int64_t piece) {
    const Value& value = values_[static_cast<std::size_t>(piece)];
    if constexpr (mode == Mode::kLogged) parent(made_by_[static_cast<std::size_t>(piece)]);
    if (value.content != Value::kNothing) [[likely]] return value;
    if (view_.options.barrier) return {Value::kSpoilt, RankSets::kEmpty, 0};
    const auto [buffer, chunk] = view_.memory.name(range.owner, piece, view_.ranks[range.owner]);
    findings_.add({.rule = Rule::kUninitialised, .at = place(b), .other = {}, .owner = static_cast<std::int32_t>(range.owner),
                   .buffer = static_cast<std::int32_t>(buffer), .chunk = chunk});
    return {Value::kSpoilt, RankSets::kEmpty, 0};
  }

  void write(std::uint32_t b, std::int64_t piece, const Value& value) {
    values_[static_cast<std::size_t>(piece)] = value;
    if constexpr (mode == Mode::kLogged) made_by_[static_cast<std::size_t>(piece)] = blocks_[b].event;
  }

  Value reduced(std::uint32_t b, const Value& x, const Value& y) {
    if (x.content >= Value::kSpoilt || y.content >= Value::kSpoilt) return {Value::kSpoilt, RankSets::kEmpty, 0};
    const auto per_chunk = static_cast<std::uint32_t>(view_.memory.per_chunk(Buffer::kInput));
    if (x.content != y.content) {
      findings_.add({.rule = Rule::kMixedChunks, .at = place(b), .other = {}, .got = y.content / per_chunk, .wanted = x.content / per_chunk});
      return {Value::kSpoilt, RankSets::kEmpty, 0};
    }
    const auto both = view_.sets.disjoint_union(x.set, y.set);
    if (!both) {
      findings_.add({.rule = Rule::kDoubleContribution, .at = place(b), .other = {}, .got = x.content / per_chunk, .got_set = x.set, .wanted_set = y.set});
      return {Value::kSpoilt, RankSets::kEmpty, 0};
    }
    return {x.content, *both, scrambled(x.tree + y.tree + (x.tree ^ y.tree) * 0x9e3779b97f4a7c15ULL)};
  }

  void begin_event(std::uint32_t b) {
    if constexpr (mode == Mode::kLogged) {
      blocks_[b].event = static_cast<std::uint32_t>(events_.size());
      events_.push_back({place(b)});
      first_parent_.push_back(static_cast<std::uint32_t>(parents_.size()));
    }
  }
  void parent(std::uint32_t event) {
    if constexpr (mode == Mode::kLogged)
      if (event != kNone) parents_.push_back(event);
  }

  // Instructions

  bool execute(std::uint32_t b, const Row& row) {
    switch (row.op) {
      case Op::kSend:
      case Op::kRecv:
      case Op::kRecvCopySend:
      case Op::kRecvReduceCopy:
      case Op::kRecvReduceSend:
      case Op::kRecvReduceCopySend: return through_fifo(b, row);
      case Op::kCopy: return each_pair(b, row, false, false);
      case Op::kPut: return each_pair(b, row, false, true);
      case Op::kPutSignal:
      case Op::kPutSignalFlush:
        each_pair(b, row, false, true);
        signal(b, row, Order::kRelease);
        if (row.op == Op::kPutSignalFlush) flush(b, row);
        return true;
      case Op::kGet: return each_pair(b, row, true, false);
      case Op::kSignal: return signal(b, row, row.order);
      case Op::kWait: return wait(b, row);
      case Op::kFlush: return flush(b, row);
      case Op::kPack: return each_pair(b, row, false, false, false, true);
      case Op::kUnpack: return each_pair(b, row, false, false, true, false);
      case Op::kPutPackets: return each_pair(b, row, false, true, false, true);
      case Op::kForwardPackets: return each_pair(b, row, false, true, true, true);
      case Op::kReduce: return reduce(b, row, false);
      case Op::kReducePackets: return reduce(b, row, true);
      case Op::kMulticast:
      case Op::kMulticastPackets:
      case Op::kGroupReduce:
      case Op::kGroupReduceMulticast: return through_switch(b, row);
      case Op::kSync: sync(b); return true;
      case Op::kBarrier: return barrier(b, row);
      case Op::kFlagSet: return set_flag(b, row);
      case Op::kFlagWait: return wait_flag(b, row);
      case Op::kRelease: return release(b, row);
      case Op::kAcquire: return acquire_semaphores(b, row);
      default: return true;
    }
  }

  bool through_fifo(std::uint32_t b, const Row& row) {
    State& s = blocks_[b];
    const bool receives = row.op != Op::kSend;
    const bool sends = row.op == Op::kSend || row.op == Op::kRecvCopySend || row.op == Op::kRecvReduceSend || row.op == Op::kRecvReduceCopySend;
    const bool reduces = row.op == Op::kRecvReduceCopy || row.op == Op::kRecvReduceSend || row.op == Op::kRecvReduceCopySend;
    const bool stores = row.op != Op::kSend && row.op != Op::kRecvReduceSend;
    const std::int32_t from = receives ? via(s, row) : kLocal;
    const std::int32_t onto = row.op == Op::kSend ? via(s, row) : sends && row.more == 1 ? via(s, row_of(s, 1)) : kLocal;
    const Connection* in = receives ? connection(s, from) : nullptr;
    const Connection* out = sends ? connection(s, onto) : nullptr;
    if ((receives && (in == nullptr || in->kind != ConnectionKind::kFifoIn)) || (sends && (out == nullptr || out->kind != ConnectionKind::kFifoOut))) {
      no_connection(b);
      return true;
    }
    Range src;
    Range dst;
    if (row.op == Op::kSend || reduces) {
      src = local(b, row, true);
      if (!src.good) return skip_messages(b, row, receives ? from : kLocal);
    }
    if (stores) {
      dst = local(b, row, false);
      if (!dst.good) return skip_messages(b, row, from);
    }
    const std::int64_t pieces = src.good ? src.pieces : dst.pieces;
    if (row.op == Op::kRecvCopySend || row.op == Op::kRecv || src.good) {
      if (src.good && dst.good && !same_size(b, src, dst)) return true;
    }
    const std::int64_t at_once = pieces % row.count != 0 ? row.count : std::min<std::int64_t>(row.count, view_.options.chunks_per_message);
    const auto messages = static_cast<std::uint32_t>((row.count + at_once - 1) / at_once);
    const std::int64_t most = at_once * (pieces / row.count) + (at_once == row.count ? pieces % row.count : 0);
    Fifo* source = receives ? &fifos_[view_.links.ends(s.rank, from).in] : nullptr;
    const std::uint32_t sink_id = sends ? view_.links.ends(s.rank, onto).out : 0;
    Fifo* sink = sends ? &fifos_[sink_id] : nullptr;
    if (source != nullptr) own(b, source->reader);
    if (sink != nullptr) own(b, sink->writer);
    for (; s.progress < messages; ++s.progress) {
      if (source != nullptr && source->taken == source->messages.size()) {
        source->waiting_reader = b;
        return false;
      }
      if (sink != nullptr && sink->messages.size() - sink->taken >= view_.links.fifos()[sink_id].slots) {
        sink->waiting_writer = b;
        return false;
      }
      if (s.event == kNone) begin_event(b);
      const std::int64_t done = s.progress * most;
      const std::int64_t each = std::min(most, pieces - done);
      const Message* message = source == nullptr ? nullptr : &source->messages[source->taken];
      if (message != nullptr) {
        if (message->total != messages || message->index != s.progress || message->pieces != each) {
          findings_.add({.rule = Rule::kCountsDiffer, .at = place(b), .other = message->from, .got = message->total, .wanted = messages});
          spoil(b, dst);
          source->taken = source->messages.size();
          wake(source->waiting_writer);
          return true;
        }
        parent(message->event);
        if constexpr (mode == Mode::kClocks) {
          clocks_[b].acquire(pool_, message->all);
          if (!view_.options.blocks_in_order) seen_by_threads_[b].acquire(pool_, message->all);
          pool_.drop(message->all.snapshot);
        }
      }
      if (s.progress == 0) {  // behind what the message tells
        if (src.good) touch(b, src, false);
        if (dst.good) touch(b, dst, true);
      }
      if (sink != nullptr) {
        Message next;
        next.index = s.progress;
        next.total = messages;
        next.pieces = static_cast<std::uint32_t>(each);
        next.first = sink->values.size();
        next.from = place(b);
        if constexpr (mode == Mode::kClocks) next.all = own_knowledge(b, s.time);
        if constexpr (mode == Mode::kLogged) next.event = s.event;
        sink->messages.push_back(next);
      }
      if constexpr (mode != Mode::kClocks) {
        for (std::int64_t p = 0; p < each; ++p) {
          const std::int64_t offset = done + p;
          Value value;
          if (message != nullptr) value = source->values[message->first + static_cast<std::size_t>(p)];
          if (src.good) {
            const Value mine = read(b, src, src.first + offset);
            value = message != nullptr ? reduced(b, value, mine) : mine;
          }
          if (dst.good) write(b, dst.first + offset, value);
          if (sink != nullptr) sink->values.push_back(value);
        }
      }
      if (source != nullptr) {
        ++source->taken;
        if (source->taken == source->messages.size()) source->messages.clear(), source->values.clear(), source->taken = 0;
        wake(source->waiting_writer);
      }
      if (sink != nullptr) wake(sink->waiting_reader);
    }
    return true;
  }

  /// After an operand that does not exist: the stream goes on, so that one mistake is reported once.
  bool skip_messages(std::uint32_t b, const Row&, std::int32_t from) {
    if (from == kLocal) return true;
    Fifo& source = fifos_[view_.links.ends(blocks_[b].rank, from).in];
    if (source.taken == source.messages.size()) {
      source.waiting_reader = b;
      return false;
    }
    ++source.taken;
    if (source.taken == source.messages.size()) source.messages.clear(), source.values.clear(), source.taken = 0;
    wake(source.waiting_writer);
    return true;
  }

  void own(std::uint32_t b, std::uint32_t& holder) {
    if (holder == kNone) holder = b;
    if (holder != b) {
      findings_.add({.rule = Rule::kConnectionShared, .at = place(b), .other = place(holder)});
      holder = b;
    }
  }

  void spoil(std::uint32_t b, const Range& range) {
    if constexpr (mode != Mode::kClocks)
      for (std::int64_t p = range.first; range.good && p < range.first + range.pieces; ++p) write(b, p, {Value::kSpoilt, RankSets::kEmpty, 0});
  }

  /// Rows of pairs: dst = src, one side perhaps in the peer's memory, either side perhaps packets.
  bool each_pair(std::uint32_t b, const Row& first, bool from_peer, bool to_peer, bool src_packets = false, bool dst_packets = false) {
    State& s = blocks_[b];
    const Connection* through = to_peer ? connection(s, via(s, first)) : nullptr;
    // A port moves bytes: packets that it puts are packets already, and it does not look at their flags.
    const bool raw = first.op == Op::kPutPackets && through != nullptr && through->kind == ConnectionKind::kPort;
    for (; s.progress <= first.more; ++s.progress) {
      const Row& row = row_of(s, s.progress);
      const Range src = from_peer ? remote(b, row, true) : local(b, row, true);
      if (src_packets && src.good && !packets_arrived(b, src)) return false;
      const Range dst = to_peer ? remote(b, row, false) : local(b, row, false);
      if (!same_size(b, src, dst)) continue;
      begin_event(b);
      const std::uint32_t proxy = to_peer ? view_.links.ends(s.rank, via(s, row)).proxy : kNone;
      post(b, proxy);
      if (src_packets)
        take_packets(b, src);
      else
        touch(b, src, false, proxy);
      touch(b, dst, true, proxy);
      if constexpr (mode != Mode::kClocks)
        for (std::int64_t p = 0; p < src.pieces; ++p) write(b, dst.first + p, data(b, src, src.first + p, src_packets || raw));
      dst_packets ? put_packets(b, dst, proxy) : clear_packets(dst);
    }
    return true;
  }

  /// The proxy of a port takes an order: what follows happens in its own time.
  void post(std::uint32_t b, std::uint32_t proxy) {
    if constexpr (mode == Mode::kClocks)
      if (proxy != kNone) {
        take(clocks_[proxy_actor(proxy)], own_knowledge(b, covered(b)));
        ++proxy_time_[proxy];
      }
  }

  bool reduce(std::uint32_t b, const Row& first, bool packets) {
    State& s = blocks_[b];
    for (; packets && s.progress <= first.more; ++s.progress) {
      const Row& row = row_of(s, s.progress);
      if (s.progress == 0 || row.src_buffer == Buffer::kNone) continue;
      const Range src = local(b, row, true);
      if (src.good && !packets_arrived(b, src)) return false;
    }
    const Range base = local(b, first, true);
    const Range into = local(b, first, false);
    if (!same_size(b, base, into)) return true;
    begin_event(b);
    std::vector<std::pair<Range, bool>> targets{{into, false}};
    std::vector<Range> sources;
    for (std::uint32_t i = 1; i <= first.more; ++i) {
      const Row& row = row_of(s, i);
      if (row.src_buffer != Buffer::kNone) {
        const Range src = packets ? local(b, row, true) : either(b, row, true);
        if (same_size(b, base, src)) sources.push_back(src);
      }
      if (row.dst_buffer != Buffer::kNone) {
        const Range dst = either(b, row, false);
        if (same_size(b, base, dst)) targets.push_back({dst, packets});
      }
    }
    touch(b, base, false);
    for (const auto& src : sources) packets ? take_packets(b, src) : touch(b, src, false);
    for (const auto& target : targets) touch(b, target.first, true);
    if constexpr (mode != Mode::kClocks)
      for (std::int64_t p = 0; p < base.pieces; ++p) {
        Value value = read(b, base, base.first + p);
        for (const auto& src : sources) value = reduced(b, value, data(b, src, src.first + p, packets));
        for (const auto& target : targets) write(b, target.first.first + p, value);
      }
    for (const auto& target : targets) target.second ? put_packets(b, target.first) : clear_packets(target.first);
    return true;
  }

  bool through_switch(std::uint32_t b, const Row& first) {
    State& s = blocks_[b];
    const bool packets = first.op == Op::kMulticastPackets;
    for (std::uint32_t i = 0; i <= first.more; ++i) {
      const Row& row = row_of(s, i);
      const Connection* to = connection(s, via(s, row));
      if (to == nullptr || to->kind != ConnectionKind::kSwitch) {
        no_connection(b);
        continue;
      }
      const auto& members = view_.ranks[s.rank].groups[static_cast<std::size_t>(to->peer)].ranks;
      std::vector<Range> sources;
      std::vector<Range> targets;
      const bool gathers = first.op == Op::kGroupReduce || first.op == Op::kGroupReduceMulticast;
      const bool spreads = first.op != Op::kGroupReduce;
      for (const auto member : members) {
        if (gathers) sources.push_back(range(b, row, true, static_cast<std::size_t>(member)));
        if (spreads) targets.push_back(range(b, row, false, static_cast<std::size_t>(member)));
      }
      if (!gathers) sources.push_back(local(b, row, true));
      if (!spreads) targets.push_back(local(b, row, false));
      bool good = true;
      for (const auto* side : {&sources, &targets})
        for (const auto& one : *side) good = good && same_size(b, sources[0], one);
      if (!good) continue;
      begin_event(b);
      for (const auto& src : sources) touch(b, src, false);
      for (const auto& dst : targets) touch(b, dst, true);
      if constexpr (mode != Mode::kClocks)
        for (std::int64_t p = 0; p < sources[0].pieces; ++p) {
          Value value = read(b, sources[0], sources[0].first + p);
          for (std::size_t m = 1; m < sources.size(); ++m) value = reduced(b, value, read(b, sources[m], sources[m].first + p));
          for (const auto& dst : targets) write(b, dst.first + p, value);
        }
      for (const auto& dst : targets) packets ? put_packets(b, dst) : clear_packets(dst);
    }
    return true;
  }

  // Packets: the flag of a piece is the launch that wrote it.

  bool packets_arrived(std::uint32_t b, const Range& range) {
    for (std::int64_t p = range.first; p < range.first + range.pieces; ++p) {
      const auto known = packets_.find(p);
      // A packet of a later launch has overwritten the one that was meant: it is read, and found to race.
      if (known != packets_.end() && known->second.launch >= blocks_[b].launch + 1) continue;
      packets_[p].waiting.push_back(b);
      return false;
    }
    return true;
  }
  /// Data and flag are one store: who reads it is ordered behind that store and behind what its writer had learnt, not behind what it did.
  void take_packets(std::uint32_t b, const Range& range) {
    if constexpr (mode == Mode::kClocks)
      for (std::int64_t p = range.first; p < range.first + range.pieces; ++p) {
        if (packets_[p].launch != blocks_[b].launch + 1) continue;
        clocks_[b].acquire(pool_, packets_[p].learnt);
        if (!view_.options.blocks_in_order) seen_by_threads_[b].acquire(pool_, packets_[p].learnt);
      }
    touch(b, range, false, kNone, true);
  }
  void put_packets(std::uint32_t b, const Range& range, std::uint32_t proxy = kNone) {
    for (std::int64_t p = range.first; p < range.first + range.pieces; ++p) {
      Packet& packet = packets_[p];
      if (packet.launch == blocks_[b].launch + 1) {
        const auto [buffer, chunk] = view_.memory.name(range.owner, p, view_.ranks[range.owner]);
        if constexpr (mode == Mode::kValues)
          findings_.add({.rule = Rule::kPacketRewritten, .at = place(b), .other = {}, .owner = static_cast<std::int32_t>(range.owner),
                         .buffer = static_cast<std::int32_t>(buffer), .chunk = chunk});
      }
      packet.launch = blocks_[b].launch + 1;
      touched_.packets = true;
      if constexpr (mode == Mode::kClocks) {
        const std::uint32_t actor = proxy == kNone ? b : proxy_actor(proxy);
        const Time time = proxy == kNone ? blocks_[b].time : proxy_time_[proxy];
        packet.writer = {view_.candidates->dimension[actor], time, 0};
        pool_.drop(packet.learnt.snapshot);
        packet.learnt = clocks_[actor].release(pool_, 0, time);
      }
      for (const auto waiting : packet.waiting) ready_.push_back(waiting);
      packet.waiting.clear();
    }
  }
  void clear_packets(const Range& range) {
    if (packets_.empty()) return;
    for (std::int64_t p = range.first; p < range.first + range.pieces; ++p)
      if (const auto known = packets_.find(p); known != packets_.end()) known->second.launch = 0;
  }

  /// The value of a piece that is read as packets or as plain data; the one is not the other.
  Value data(std::uint32_t b, const Range& range, std::int64_t piece, bool as_packets) {
    if (!as_packets && !packets_.empty())
      if (const auto known = packets_.find(piece); known != packets_.end() && known->second.launch != 0) {
        const auto [buffer, chunk] = view_.memory.name(range.owner, piece, view_.ranks[range.owner]);
        findings_.add({.rule = Rule::kPacketAsData, .at = place(b), .other = {}, .owner = static_cast<std::int32_t>(range.owner),
                       .buffer = static_cast<std::int32_t>(buffer), .chunk = chunk});
      }
    return read(b, range, piece);
  }

  // Counters

  void give(std::uint32_t b, Counter& counter, Token&& token) {
    ++counter.given;
    if (counter.releasers.empty() || counter.releasers.back().first != b) {
      auto known = std::ranges::find(counter.releasers, b, [](const auto& one) { return one.first; });
      if (known == counter.releasers.end()) known = counter.releasers.insert(counter.releasers.end(), {b, 0});
      std::iter_swap(known, counter.releasers.end() - 1);
    }
    ++counter.releasers.back().second;
    if constexpr (mode == Mode::kClocks) counter.tokens.push_back({b, token});
    for (const auto waiting : counter.waiting) ready_.push_back(waiting);
    counter.waiting.clear();
  }

  /// Whether the counter could be taken from; otherwise the block waits for it. `number`: its place among counters and semaphores.
  bool take_one(std::uint32_t b, Counter& counter, std::size_t number, Order order) {
    if (counter.acquirer != b) {
      if (counter.acquirer != kNone) second_acquirer(b, counter);
      counter.acquirer = b;
    }
    counter.acquired = blocks_[b].time;
    if (counter.initial + static_cast<std::int64_t>(counter.given) - static_cast<std::int64_t>(counter.taken) <= 0) {
      if (std::ranges::find(counter.waiting, b) == counter.waiting.end()) counter.waiting.push_back(b);
      return false;
    }
    ++counter.taken;
    if constexpr (mode == Mode::kClocks) acquire_from(b, counter, number, order);
    return true;
  }

  /// Takes of several blocks are all right if each happens before the next: asked before this one takes, because what it takes may tell of the other.
  void second_acquirer(std::uint32_t b, Counter& counter) {
    if constexpr (mode == Mode::kClocks) {
      const std::uint32_t dimension = view_.candidates->dimension[counter.acquirer];
      if (!view_.candidates->acquirers || dimension == kNoDimension || counter.reported) return;
      if (clocks_[b].knows({dimension, counter.acquired, 0})) return;
      counter.reported = true;
      findings_.add({.rule = Rule::kTwoAcquirers, .at = place(b), .other = place(counter.acquirer)});
    } else {
      touched_.acquirers.insert(touched_.acquirers.end(), {counter.acquirer, b});
      if (!counter.reported) second_acquirers_.push_back({place(b), place(counter.acquirer)});
      counter.reported = true;
    }
  }

  /// The nth take meets the nth giving of a single giver. Of several, only what must have been given whatever the order: the nth of
  /// one is certain once more were taken than all others give.
  void acquire_from(std::uint32_t b, Counter& counter, std::size_t number, Order order) {
    const auto n = static_cast<std::int64_t>(counter.taken) - counter.initial;
    if (n <= 0) return;
    const auto& givers = view_.candidates->touched->releases[number];
    if (givers.size() == 1) {
      Token& token = counter.tokens[static_cast<std::size_t>(n - 1)].second;
      acquire(b, token, order);
      drop(token);
      token = {};
      return;
    }
    std::int64_t each_launch = 0;
    for (const auto& [giver, times] : givers) each_launch += times;
    const std::int64_t launch = (n - 1) / each_launch;
    const std::int64_t within = n - launch * each_launch;
    for (const auto& [giver, times] : givers) {
      const std::int64_t certain = launch * times + std::max<std::int64_t>(0, within - (each_launch - times));
      std::int64_t seen = 0;
      for (const auto& [from, token] : counter.tokens)
        if (from == giver && ++seen == certain) acquire(b, token, order);
    }
  }

  bool signal(std::uint32_t b, const Row& first, Order order) {
    State& s = blocks_[b];
    for (std::uint32_t i = 0; i <= first.more; ++i) {
      const std::int32_t through = via(s, row_of(s, i));
      const Connection* to = connection(s, through);
      if (to == nullptr || (to->kind != ConnectionKind::kMemory && to->kind != ConnectionKind::kPort)) {
        no_connection(b);
        continue;
      }
      const auto& ends = view_.links.ends(s.rank, through);
      Token news = token(b, to->kind == ConnectionKind::kPort ? Order::kRelease : order);
      if constexpr (mode == Mode::kClocks)
        if (ends.proxy != kNone) {  // in the proxy's order, behind its puts
          const std::uint32_t actor = proxy_actor(ends.proxy);
          take(clocks_[actor], news.all);
          news.all = clocks_[actor].release(pool_, proxy_time_[ends.proxy]);
        }
      give(b, counters_[ends.out], std::move(news));
    }
    return true;
  }

  bool wait(std::uint32_t b, const Row& first) {
    State& s = blocks_[b];
    for (; s.progress <= first.more; ++s.progress) {
      const std::int32_t through = via(s, row_of(s, s.progress));
      const Connection* from = connection(s, through);
      if (from == nullptr || (from->kind != ConnectionKind::kMemory && from->kind != ConnectionKind::kPort)) {
        no_connection(b);
        continue;
      }
      const std::uint32_t number = view_.links.ends(s.rank, through).in;
      if (!take_one(b, counters_[number], number, from->kind == ConnectionKind::kPort ? Order::kAcquire : first.order)) return false;
    }
    return true;
  }

  bool flush(std::uint32_t b, const Row& first) {
    if constexpr (mode == Mode::kClocks) {
      State& s = blocks_[b];
      for (std::uint32_t i = 0; i <= first.more; ++i) {
        const std::int32_t through = via(s, row_of(s, i));
        if (connection(s, through) == nullptr) continue;
        const std::uint32_t proxy = view_.links.ends(s.rank, through).proxy;
        if (proxy == kNone) continue;
        take(clocks_[b], clocks_[proxy_actor(proxy)].release(pool_, proxy_time_[proxy]));
      }
    }
    return true;
  }

  bool release(std::uint32_t b, const Row& first) {
    State& s = blocks_[b];
    for (std::uint32_t i = 0; i <= first.more; ++i)
      if (Counter* counter = semaphore(b, row_of(s, i))) give(b, *counter, token(b, first.order));
    return true;
  }

  bool acquire_semaphores(std::uint32_t b, const Row& first) {
    State& s = blocks_[b];
    for (; s.progress <= first.more; ++s.progress) {
      Counter* counter = semaphore(b, row_of(s, s.progress));
      if (counter == nullptr) continue;
      const auto number = static_cast<std::size_t>(counter - semaphores_.data()) + counters_.size();
      if (!take_one(b, *counter, number, first.order)) return false;
    }
    return true;
  }

  Counter* semaphore(std::uint32_t b, const Row& row) {
    const State& s = blocks_[b];
    const std::int32_t number = via(s, row);
    if (number < 0 || static_cast<std::size_t>(number) >= view_.ranks[s.rank].semaphores.size()) {
      no_connection(b);
      return nullptr;
    }
    return &semaphores_[first_semaphore_[s.rank] + static_cast<std::uint32_t>(number)];
  }

  bool set_flag(std::uint32_t b, const Row& row) {
    FlagState& flag = flags_[b];
    ++flag.set;
    if constexpr (mode == Mode::kClocks) flag.tokens.push_back(token(b, row.order));
    std::erase_if(flag.waiting, [&](const auto& one) {
      if (one.second > flag.set) return false;
      ready_.push_back(one.first);
      return true;
    });
    return true;
  }

  bool wait_flag(std::uint32_t b, const Row& row) {
    State& s = blocks_[b];
    if (row.via < 0 || static_cast<std::size_t>(row.via) >= view_.ranks[s.rank].blocks.size()) {
      no_connection(b);
      return true;
    }
    std::int64_t times = row.src;
    if (row.walk != 0) times = moved(times, view_.ranks[s.rank].walks[row.walk].src_step, 0, 0, s);
    FlagState& flag = flags_[first_block_[s.rank] + static_cast<std::uint32_t>(row.via)];
    if (flag.set < times) {
      flag.waiting.push_back({b, times});
      s.progress = 1;  // the instruction has begun
      return false;
    }
    if constexpr (mode == Mode::kClocks)
      if (times > 0) acquire(b, flag.tokens[static_cast<std::size_t>(times - 1)], row.order);
    return true;
  }

  bool barrier(std::uint32_t b, const Row& row) {
    State& s = blocks_[b];
    Barrier& meeting = barriers_[static_cast<std::uint64_t>(s.rank) << 32 | static_cast<std::uint32_t>(row.via)];
    if (s.progress == 1) return true;  // woken
    if (meeting.count < 0) meeting.count = row.count;
    if (std::ranges::find(meeting.blocks, b) == meeting.blocks.end()) meeting.blocks.push_back(b);
    if ((meeting.count != row.count || meeting.blocks.size() > static_cast<std::size_t>(std::max(row.count, 0))) && !meeting.reported) {
      meeting.reported = true;
      findings_.add({.rule = Rule::kBarrierBlocks, .at = place(b), .other = {}, .got = static_cast<std::int64_t>(meeting.blocks.size()), .wanted = row.count});
    }
    sync(b);
    if (meeting.waiting.size() + 1 < static_cast<std::size_t>(std::max(row.count, 0))) {
      meeting.waiting.push_back(b);
      s.progress = 1;
      return false;
    }
    if constexpr (mode == Mode::kClocks) {
      std::vector<std::uint32_t> all = meeting.waiting;
      all.push_back(b);
      std::vector<Knowledge> known;
      for (const auto one : all) known.push_back(own_knowledge(one, covered(one)));
      for (const auto one : all)
        for (const auto& knowledge : known) clocks_[one].acquire(pool_, knowledge);
      for (const auto& knowledge : known) pool_.drop(knowledge.snapshot);
      if (!view_.options.blocks_in_order)
        for (const auto one : all) seen_by_threads_[one].acquire(pool_, clocks_[one]);
    }
    for (const auto one : meeting.waiting) ready_.push_back(one);
    meeting.waiting.clear();
    return true;
  }

  /// Who a blocked block waits for, as far as that is one block.
  Place who_could_wake(std::uint32_t b) const {
    const State& s = blocks_[b];
    const Row& row = row_of(s);
    const auto end_of = [&](std::int32_t through, bool writer) {
      const Connection* connected = connection(s, through);
      if (connected == nullptr) return Place{};
      const auto& ends = view_.links.ends(s.rank, through);
      if (connected->kind == ConnectionKind::kFifoIn) return view_.links.fifos()[ends.in].writer;
      if (connected->kind == ConnectionKind::kFifoOut) return view_.links.fifos()[ends.out].reader;
      if (ends.in != kNone && !writer) return view_.links.signaller(ends.in);
      return Place{};
    };
    switch (row.op) {
      case Op::kFlagWait:
        return row.via < 0 || static_cast<std::size_t>(row.via) >= view_.ranks[s.rank].blocks.size()
                   ? Place{}
                   : place(first_block_[s.rank] + static_cast<std::uint32_t>(row.via));
      case Op::kSend: return end_of(via(s, row), true);
      case Op::kWait: return end_of(via(s, row_of(s, std::min<std::uint32_t>(s.progress, row.more))), false);
      case Op::kRecv:
      case Op::kRecvReduceCopy: return end_of(via(s, row), true);
      case Op::kRecvCopySend:
      case Op::kRecvReduceSend:
      case Op::kRecvReduceCopySend: {
        const auto through = via(s, row);
        const auto& fifo = fifos_[view_.links.ends(s.rank, through).in];
        return fifo.waiting_reader == b ? end_of(through, true) : end_of(via(s, row_of(s, 1)), true);
      }
      default: return {};
    }
  }

  struct Packet {
    std::uint32_t launch = 0;  ///< + 1; 0: no packet
    std::vector<std::uint32_t> waiting;
    Access writer;
    Knowledge learnt;
  };

  View view_;
  Findings& findings_;
  SnapshotPool pool_;
  std::vector<std::uint32_t> first_block_;
  std::vector<std::uint32_t> first_semaphore_;
  std::vector<State> blocks_;
  std::vector<Fifo> fifos_;
  std::vector<Counter> counters_;
  std::vector<std::pair<Place, Place>> second_acquirers_;  ///< who took, and who took before; one of each counter
  std::vector<Counter> semaphores_;
  std::vector<FlagState> flags_;
  std::unordered_map<std::uint64_t, Barrier> barriers_;
  std::unordered_map<std::int64_t, Packet> packets_;
  std::vector<std::uint32_t> ready_;
  std::uint64_t executed_ = 0;
  std::uint64_t attempts_ = 0;
  bool deadlocked_ = false;
  bool too_long_ = false;
  std::uint32_t too_long_block_ = 0;
  std::uint32_t launches_ = 1;

  // kValues, kLogged
  std::vector<Value> values_;
  std::vector<RankSets::Id> holders_;
  Touched touched_;
  std::vector<std::uint32_t> made_by_;
  std::vector<Event> events_;
  std::vector<std::uint32_t> first_parent_;
  std::vector<std::uint32_t> parents_;

  // kClocks
  std::vector<Clock> clocks_;           ///< of blocks, proxies, users
  std::vector<Clock> seen_by_threads_;  ///< what a block's data instructions see, if blocks are not in order
  std::vector<Time> synced_;
  std::vector<Time> proxy_time_;
  std::vector<Time> user_time_;
  std::vector<std::uint32_t> finished_;
  std::vector<Knowledge> start_;
  std::vector<History> history_;
};

/// Clocks in which nothing counts but who has entered the call.
inline Candidates entries(const Touched& touched, const Links& links, const std::vector<RankRows>& ranks) {
  std::size_t blocks = 0;
  for (const auto& rank : ranks) blocks += rank.blocks.size();
  Candidates out;
  out.ids = std::make_shared<std::vector<std::uint32_t>>(touched.flags.size(), kNone);
  out.dimension.assign(blocks + links.proxies() + ranks.size(), kNoDimension);
  for (std::size_t r = 0; r < ranks.size(); ++r) out.dimension[blocks + links.proxies() + r] = static_cast<std::uint32_t>(out.dimensions++);
  out.read_dimension = out.dimension;
  out.users = true;
  out.touched = &touched;
  return out;
}

/// The blocks that took from a counter from which others took, in batches whose clocks stay short.
inline std::vector<Candidates> acquirers(const Touched& touched, const Links& links, const std::vector<RankRows>& ranks) {
  constexpr std::size_t kLongClock = 512;  // as below
  std::vector<std::uint32_t> blocks = touched.acquirers;
  std::ranges::sort(blocks);
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  std::vector<Candidates> batches;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % kLongClock == 0) {
      batches.push_back(entries(touched, links, ranks));
      Candidates& batch = batches.back();
      std::ranges::fill(batch.dimension, kNoDimension);
      batch.read_dimension = batch.dimension;
      batch.dimensions = 0;
      batch.users = false;
      batch.acquirers = true;
    }
    Candidates& batch = batches.back();
    batch.dimension[blocks[i]] = batch.read_dimension[blocks[i]] = static_cast<std::uint32_t>(batch.dimensions++);
  }
  return batches;
}

/// Pieces that two actors touch and one writes, in batches of ranks whose actors' clocks stay short.
inline std::vector<Candidates> candidates(const Touched& touched, const Links& links, const Memory& memory, const std::vector<RankRows>& ranks,
                                          const RunOptions& options) {
  constexpr std::size_t kLongClock = 512;  // 2 KiB a clock: a guess at where joins leave the first cache
  std::vector<std::uint32_t> first_block{0};
  for (const auto& rank : ranks) first_block.push_back(first_block.back() + static_cast<std::uint32_t>(rank.blocks.size()));
  const std::size_t actors = first_block.back() + links.proxies() + ranks.size();
  auto ids = std::make_shared<std::vector<std::uint32_t>>(touched.flags.size(), kNone);
  std::vector<Candidates> batches;
  std::uint32_t next = 0;
  Candidates batch;
  const auto fresh = [&] {
    batch = {};
    batch.first = next;
    batch.dimension.assign(actors, kNoDimension);
    batch.read_dimension.assign(actors, kNoDimension);
  };
  const auto close = [&] {
    batch.last = next;
    if (batch.last > batch.first) batches.push_back(batch);
    fresh();
  };
  fresh();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::uint32_t before = next;
    for (std::int64_t p = memory.begin(r); p < memory.end(r); ++p) {
      const std::uint8_t flags = touched.flags[static_cast<std::size_t>(p)];
      const bool several = (flags & Touched::kSeveral) != 0 || !options.blocks_in_order;
      if ((flags & Touched::kRemote) != 0 || ((flags & Touched::kWritten) != 0 && several)) (*ids)[static_cast<std::size_t>(p)] = next++;
    }
    if (next == before) continue;
    std::vector<std::uint32_t> here = touched.remote_actors[r];
    for (std::uint32_t b = first_block[r]; b < first_block[r + 1]; ++b) here.push_back(b);
    if (touched.remote) here.push_back(static_cast<std::uint32_t>(first_block.back() + links.proxies() + r));
    std::ranges::sort(here);
    here.erase(std::unique(here.begin(), here.end()), here.end());
    std::size_t added = 0;
    for (const auto actor : here) added += batch.dimension[actor] == kNoDimension ? 1 : 0;
    if (batch.dimensions > 0 && added > 0 && batch.dimensions + added > kLongClock) {
      std::uint32_t held = next;
      next = before;
      close();
      next = held;
    }
    for (const auto actor : here)
      if (batch.dimension[actor] == kNoDimension) {
        batch.dimension[actor] = static_cast<std::uint32_t>(batch.dimensions++);
        batch.read_dimension[actor] = touched.packets ? static_cast<std::uint32_t>(batch.dimensions++) : batch.dimension[actor];
      }
  }
  close();
  const std::uint32_t launches = !touched.remote ? 1 : options.double_scratch ? 3 : 2;
  for (auto& one : batches) {
    one.ids = ids;
    one.launches = launches;
    one.users = touched.remote;
    one.touched = &touched;
  }
  return batches;
}

}  // namespace busbw::schedule::detail
