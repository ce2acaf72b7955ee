/// A program: streams of instructions that exchange messages over channels, in columns. Loops stay loops, so it is small whatever it does.
///
/// A stream runs its instructions in order, one at a time: a rank, one of its thread blocks, or a switch that reduces. A channel carries
/// messages in order, one after another, along one way of links; each message arrives at every port of the channel, a port's latency after its
/// last byte left (cut-through). Streams post messages without waiting and wait for arrivals at their own ports.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "busbw/sim/column.hpp"
#include "busbw/sim/fair_rates.hpp"
#include "busbw/sim/time.hpp"

namespace busbw::sim {

enum class Op : std::int32_t {
  kSend = 0,      ///< posts a message of `amount` bytes on each of `count` channels from `first`; waits for slots where a channel has them
  kReceive = 1,   ///< waits for one arrival at each of `count` ports from `first`
  kDrain = 2,     ///< waits until all messages posted on each of `count` channels from `first` have left
  kDelay = 3,     ///< `amount` picoseconds
  kCompute = 4,   ///< `amount` picoseconds at the stream's full speed
  kLoop = 5,      ///< the instructions up to the matching kEnd, `amount` times; at most kDeepest loops deep
  kEnd = 6,       ///< `first`: index of the matching kLoop
  kStop = 7,
  kPut = 8,       ///< like kSend, but nobody is told when it arrives: what follows on the channel tells of it
  kTake = 9,      ///< like kReceive, but the slots stay taken until kFree
  kFree = 10,     ///< gives back one slot of each channel that leads to `count` ports from `first`
};

/// first, count: of the stream's own tables of channels and ports. amount < 0: the channel's own size.
struct Instruction {
  Op op;
  std::int32_t first;
  std::int32_t count;
  std::int32_t unused;
  std::int64_t amount;
};

constexpr std::int32_t kDeepest = 6;  ///< a plan's three, around them its tiles, in them slices; one to spare

struct StreamColumns {
  Column<std::int32_t> entry;        ///< (S,) first instruction
  Column<std::int64_t> channels;     ///< (S + 1,) where each stream's channels begin in channel_of
  Column<std::int32_t> channel_of;   ///< channels that streams send on
  Column<std::int64_t> ports;        ///< (S + 1,) where each stream's ports begin in port_of
  Column<std::int32_t> port_of;      ///< ports that streams receive at
  Column<std::int64_t> slowness;     ///< (S,) time of computing over that at full speed, in 2^-20; empty: full speed
  Column<std::int8_t> background;    ///< (S,) 1: nobody waits for it to end; empty: none
};

struct ChannelColumns {
  Column<std::int32_t> way;          ///< (C,) of WayColumns; -1 idle until the first re-route
  Column<std::int64_t> size_bytes;   ///< (C,) of messages whose instruction leaves it open; empty: none does
  Column<std::int32_t> weight;       ///< (C,) empty: 1
  Column<std::int32_t> slots;        ///< (C,) messages posted and not yet received, 0 unbounded; empty: unbounded
  Column<std::int32_t> injector;     ///< (C,) what limits its message rate, -1 nothing; empty: nothing
  Column<std::int64_t> ports;        ///< (C + 1,) where each channel's ports begin; empty: channel c has port c and no other
  Column<std::int64_t> overhead_ps;  ///< (C,) from when a message's turn comes to its first byte; empty: no time
  Column<std::int64_t> credit_ps;    ///< (C,) how long a slot takes to come back to the sender; empty: no time
};

struct PortColumns {
  Column<std::int32_t> stream;       ///< (P,) who receives
  Column<std::int64_t> latency_ps;   ///< (P,)
};

/// What befalls the network at a time. Rows of one time happen in their order.
struct ChangeColumns {
  Column<std::int64_t> time_ps;      ///< (E,) ascending
  Column<std::int32_t> link;         ///< (E,) whose capacity changes; -1: a channel changes its way
  Column<std::int64_t> capacity;     ///< (E,) new, in units of Rate
  Column<std::int32_t> channel;      ///< (E,)
  Column<std::int32_t> way;          ///< (E,)
};

struct Program {
  std::vector<Instruction> code;
  StreamColumns streams;
  ChannelColumns channels;
  PortColumns ports;
  WayColumns ways;
  std::vector<Rate> capacity;             ///< (L,)
  std::int64_t share_unit = 1;
  std::vector<std::int64_t> injector_gap_ps;  ///< (I,) least time between messages
  ChangeColumns changes;
};

namespace detail {

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

inline void check_code(const Program& program) {
  std::vector<std::int32_t> open;
  for (std::size_t at = 0; at < program.code.size(); ++at) {
    const Instruction& i = program.code[at];
    require(static_cast<std::int32_t>(i.op) >= 0 && i.op <= Op::kFree, "an instruction is unknown");
    if (i.op == Op::kLoop) {
      require(i.amount >= 0, "a loop runs a negative number of times");
      open.push_back(static_cast<std::int32_t>(at));
      require(open.size() <= static_cast<std::size_t>(kDeepest), "loops are nested too deeply");
    } else if (i.op == Op::kEnd) {
      require(!open.empty() && i.first == open.back(), "an end without its loop");
      open.pop_back();
    } else if (i.op == Op::kStop) {
      require(open.empty(), "a loop without an end");
    } else if (i.op == Op::kDelay || i.op == Op::kCompute) {
      require(i.amount >= 0, "a delay is negative");
    } else {
      require(i.first >= 0 && i.count >= 0, "an instruction names a negative channel or port");
    }
  }
  require(!program.code.empty() && program.code.back().op == Op::kStop, "the code does not stop");
}

inline void check_offsets(const Column<std::int64_t>& begin, std::size_t rows, std::size_t end, const char* what) {
  require(begin.size() == rows + 1 && begin.front() == 0 && begin.back() == static_cast<std::int64_t>(end), what);
  for (std::size_t i = 0; i < rows; ++i) require(begin[i] <= begin[i + 1], what);
}

template <class Values>
void check_length(const Values& column, std::size_t rows, const char* what) {
  require(column.empty() || column.size() == rows, what);
}

/// The least and the greatest value of a column, so that a million values are compared without a branch each; {0, 0} of none.
template <class Values>
std::pair<std::int64_t, std::int64_t> range_of(const Values& column) {
  if (column.empty()) return {0, 0};
  auto least = column.front(), greatest = column.front();
  for (const auto value : column) {
    least = value < least ? value : least;
    greatest = value > greatest ? value : greatest;
  }
  return {least, greatest};
}

template <class Values>
void check_range(const Values& column, std::int64_t least, std::size_t end, const char* what) {
  const auto [first, last] = range_of(column);
  require(column.empty() || (first >= least && last < static_cast<std::int64_t>(end)), what);
}

template <class Values>
void check_positive(const Values& column, const char* what) {
  require(range_of(column).first >= 0, what);
}

}  // namespace detail

/// Throws std::invalid_argument if any index points nowhere, columns differ in length, or a stream uses channels or ports it does not have.
inline void check(const Program& program) {
  using detail::require;
  const std::size_t streams = program.streams.entry.size();
  const std::size_t channels = program.channels.way.size();
  const std::size_t ports = program.ports.stream.size();
  const std::size_t ways = program.ways.begin.empty() ? 0 : program.ways.begin.size() - 1;
  require(program.share_unit >= 1, "share_unit must be positive");
  require(streams < (std::size_t{1} << 29) && channels < (std::size_t{1} << 29) && ports < (std::size_t{1} << 29), "more streams, channels or ports than can be numbered");
  detail::check_code(program);
  detail::check_range(program.streams.entry, 0, program.code.size(), "a stream begins outside the code");
  detail::check_offsets(program.streams.channels, streams, program.streams.channel_of.size(), "offsets of streams' channels are wrong");
  detail::check_offsets(program.streams.ports, streams, program.streams.port_of.size(), "offsets of streams' ports are wrong");
  detail::check_range(program.streams.channel_of, 0, channels, "a stream has a channel that is not there");
  detail::check_range(program.streams.port_of, 0, ports, "a stream has a port that is not there");
  detail::check_length(program.streams.slowness, streams, "columns of streams differ in length");
  detail::check_length(program.streams.background, streams, "columns of streams differ in length");
  detail::check_length(program.channels.size_bytes, channels, "columns of channels differ in length");
  detail::check_length(program.channels.weight, channels, "columns of channels differ in length");
  detail::check_length(program.channels.slots, channels, "columns of channels differ in length");
  detail::check_length(program.channels.injector, channels, "columns of channels differ in length");
  detail::check_length(program.channels.credit_ps, channels, "columns of channels differ in length");
  detail::check_length(program.channels.overhead_ps, channels, "columns of channels differ in length");
  detail::check_positive(program.channels.overhead_ps, "an overhead is negative");
  detail::check_positive(program.channels.credit_ps, "a credit takes negative time");
  detail::check_range(program.channels.injector, -1, program.injector_gap_ps.size(), "a channel has an injector that is not there");
  if (program.channels.ports.empty())
    require(channels == ports, "offsets of channels' ports are wrong");
  else
    detail::check_offsets(program.channels.ports, channels, ports, "offsets of channels' ports are wrong");
  detail::check_range(program.channels.way, -1, ways, "a channel has a way that is not there");
  detail::check_range(program.ports.stream, 0, streams, "a port has a stream that is not there");
  require(program.ports.latency_ps.size() == ports, "columns of ports differ in length");
  detail::check_positive(program.ports.latency_ps, "a latency is negative");
  if (ways > 0) detail::check_offsets(program.ways.begin, ways, program.ways.crossings.size(), "offsets of ways are wrong");
  const std::size_t changes = program.changes.time_ps.size();
  require(program.changes.link.size() == changes && program.changes.capacity.size() == changes && program.changes.channel.size() == changes &&
              program.changes.way.size() == changes,
          "columns of changes differ in length");
  for (std::size_t e = 0; e < changes; ++e) {
    require(program.changes.time_ps[e] >= (e == 0 ? 0 : program.changes.time_ps[e - 1]), "changes are not in order");
    if (program.changes.link[e] >= 0) {
      require(static_cast<std::size_t>(program.changes.link[e]) < program.capacity.size() && program.changes.capacity[e] >= 0, "a change has a link that is not there, or a negative capacity");
    } else {
      require(program.changes.channel[e] >= 0 && static_cast<std::size_t>(program.changes.channel[e]) < channels, "a change has a channel that is not there");
      require(program.changes.way[e] >= 0 && static_cast<std::size_t>(program.changes.way[e]) < ways, "a change has a way that is not there");
    }
  }
  // What a stream's instructions name must be in its tables: the code from its entry to the next stop.
  std::vector<std::int32_t> most_channels(program.code.size() + 1, 0), most_ports(program.code.size() + 1, 0);
  for (std::size_t at = program.code.size(); at-- > 0;) {
    const Instruction& i = program.code[at];
    if (i.op == Op::kStop) continue;
    most_channels[at] = most_channels[at + 1];
    most_ports[at] = most_ports[at + 1];
    if (i.op == Op::kSend || i.op == Op::kPut || i.op == Op::kDrain) most_channels[at] = std::max(most_channels[at], i.first + i.count);
    if (i.op == Op::kReceive || i.op == Op::kTake || i.op == Op::kFree) most_ports[at] = std::max(most_ports[at], i.first + i.count);
  }
  for (std::size_t s = 0; s < streams; ++s) {
    const auto entry = static_cast<std::size_t>(program.streams.entry[s]);
    require(most_channels[entry] <= program.streams.channels[s + 1] - program.streams.channels[s], "an instruction names a channel that its stream does not have");
    require(most_ports[entry] <= program.streams.ports[s + 1] - program.streams.ports[s], "an instruction names a port that its stream does not have");
  }
  for (std::size_t s = 0; s < streams; ++s)
    for (auto p = program.streams.ports[s]; p < program.streams.ports[s + 1]; ++p)
      require(program.ports.stream[static_cast<std::size_t>(program.streams.port_of[static_cast<std::size_t>(p)])] == static_cast<std::int32_t>(s),
              "a stream receives at a port of another");
}

}  // namespace busbw::sim
