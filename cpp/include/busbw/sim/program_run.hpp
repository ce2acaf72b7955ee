/// Runs a program: when each message left and arrived, when each stream ended, and who waited for whom.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "busbw/sim/column.hpp"
#include "busbw/sim/event_queue.hpp"
#include "busbw/sim/fair_rates.hpp"
#include "busbw/sim/program.hpp"
#include "busbw/sim/time.hpp"

namespace busbw::sim {

enum class Status : std::int32_t {
  kRunning = 0,  ///< the budget of events ended first
  kDone = 1,
  kStalled = 2,  ///< streams wait, and nothing is under way that could wake them
};

/// What was done, row by row in the order in which it began. A row is a message, or a stream's delay or computing.
struct TaskColumns {
  Column<std::int32_t> channel;     ///< -1: a delay
  Column<std::int32_t> stream;      ///< of a delay; of a message the one that posted it
  Column<std::int64_t> posted_ps;   ///< when the stream asked for it
  Column<std::int64_t> begin_ps;    ///< when its first byte left
  Column<std::int64_t> end_ps;      ///< when its last byte left; the delay's end. -1: not yet
  Column<std::int64_t> size_bytes;
  Column<std::int32_t> bottleneck;  ///< the link that set its rate when it ended; -1 none
  Column<std::int32_t> cause;       ///< the row that had to end for this one to begin; -1 none
};

/// Rows that were seen once and happened more often: rows first to last - 1 again `times` times, each period_ps later.
struct Repeat {
  std::int64_t first, last, times, period_ps;
};

class ProgramRun {
 public:
  struct Options {
    bool record = false;
    bool fast_forward = true;
    std::int64_t most_rows = INT32_MAX - 1;
  };

  explicit ProgramRun(Program program, Options options)
      : program_(checked(std::move(program))),
        options_(options),
        rates_(program_.capacity, program_.share_unit, program_.ways, program_.channels.way, program_.channels.weight) {
    build();
  }

  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  /// Goes on until done, stalled, or about `events` events have been handled.
  Status run(std::int64_t events) {
    budget_ = events;
    if (!begun_) {
      begun_ = true;
      for (std::size_t e = 0; e < program_.changes.time_ps.size(); ++e) queue_.push(Picoseconds{program_.changes.time_ps[e]}, {kChange, static_cast<std::uint32_t>(e) & kIdMask, 0});
      for (std::size_t s = 0; s < streams_.size(); ++s) advance(static_cast<std::int32_t>(s));
      resume();
      settle();
    }
    while (waiting_ > 0 && budget_ > 0) {
      const Picoseconds time = queue_.next_time();
      if (time == kNever) return Status::kStalled;
      now_ = time;
      do {
        const Event run = queue_.pop();
        budget_ -= run.count;
        events_ += run.count;
        for (std::uint32_t n = 0; n < run.count; ++n) {
          handle(run.at(n));
          if (!resumed_.empty()) resume();
        }
      } while (queue_.more_now());
      settle();
      if (loop_turned_) {
        loop_turned_ = false;
        if (options_.fast_forward) look_for_period();
      }
    }
    return waiting_ == 0 ? Status::kDone : Status::kRunning;
  }

  Picoseconds now() const { return now_; }
  std::uint64_t events() const { return events_; }
  std::uint64_t messages() const { return messages_; }
  /// Messages of periods that were counted, not run.
  std::uint64_t messages_skipped() const { return messages_skipped_; }
  std::uint64_t solves() const { return rates_.solves(); }
  const TaskColumns& tasks() const { return tasks_; }
  const std::vector<Repeat>& repeats() const { return repeats_; }
  bool rows_left_out() const { return rows_left_out_; }

  /// (S,) when each stream ended; -1 if it has not.
  std::vector<std::int64_t> ends_ps() const {
    std::vector<std::int64_t> out;
    out.reserve(streams_.size());
    for (const Stream& stream : streams_) out.push_back(stream.ended ? count(stream.end) : -1);
    return out;
  }

  /// (S,) the row that let each stream end; -1 none. Empty without record.
  std::vector<std::int32_t> causes() const {
    std::vector<std::int32_t> out;
    out.reserve(streams_.size());
    for (const Stream& stream : streams_) out.push_back(stream.cause);
    return out;
  }

  struct Wait {
    std::int32_t stream;
    Op op;
    std::int32_t channel;  ///< that it waits for; -1: time
    std::int32_t bottleneck;  ///< the link without capacity that the channel's message stands before; -1 none
  };

  /// Streams that have not ended, and what each waits for.
  std::vector<Wait> waits() const {
    std::vector<Wait> out;
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      const Stream& stream = streams_[s];
      if (stream.ended) continue;
      Wait wait{static_cast<std::int32_t>(s), program_.code[static_cast<std::size_t>(stream.pc)].op, -1, -1};
      if (stream.waits_port >= 0) wait.channel = channel_of_port(stream.waits_port);
      if (stream.waits_channel >= 0) wait.channel = stream.waits_channel;
      if (wait.channel >= 0) wait.bottleneck = rates_.bottleneck(wait.channel);
      out.push_back(wait);
    }
    return out;
  }

  /// (C,) bytes that left on each channel, those of skipped periods included.
  const Column<std::int64_t>& channel_bytes() const { return channel_bytes_; }

 private:
  static constexpr std::uint32_t kIdMask = (std::uint32_t{1} << 29) - 1;

  enum Kind : std::uint32_t { kDrained = 0, kArrived = 1, kWake = 2, kChange = 3, kInject = 4, kCredit = 5 };

  /// One event, or a run of them with one id after another.
  struct Event {
    std::uint32_t kind : 3;
    std::uint32_t id : 29;
    std::uint32_t aux;        ///< generation of a flow, row of an arrival
    std::uint32_t count = 1;
    std::uint32_t step = 0;   ///< of aux from one to the next

    bool join(const Event& next) {
      if (next.count != 1 || next.kind != kind || next.id != id + count || count == UINT32_MAX) return false;
      if (count == 1) {
        if (next.aux - aux > 1) return false;
        step = next.aux - aux;
      } else if (next.aux != aux + count * step) {
        return false;
      }
      ++count;
      return true;
    }
    Event at(std::uint32_t n) const { return {kind, (id + n) & kIdMask, aux + n * step}; }
  };

  struct Channel {
    Work work = 0;  ///< left at `since`
    Picoseconds since{0};
    std::int64_t size_bytes = 0;
    std::uint32_t generation = 0;
    std::int32_t posted = 0;   ///< posted and not yet under way
    std::int32_t row = -1;     ///< of the message under way
    std::int32_t first_port = 0;
    std::int32_t queue_head = -1, queue_tail = -1;
    bool busy = false;
    bool has_way = false;
    bool one_port = true;
    bool told = true;  ///< whether the message under way is announced where it arrives
  };

  struct Port {
    std::int64_t latency = 0;
    std::int32_t stream = 0;
    std::int32_t arrived = 0;
  };

  struct Stream {
    std::int32_t pc = 0;
    std::int32_t at = 0;  ///< how many channels or ports of the instruction are done
    std::int32_t waits_port = -1;
    std::int32_t waits_channel = -1;
    std::int32_t depth = 0;
    std::int32_t cause = -1;
    bool ended = false;
    bool asleep = false;
    std::int64_t turns[kDeepest] = {};  ///< left of each open loop
    Picoseconds end{0};
  };

  struct Posted {
    std::int64_t size_bytes;
    std::int32_t stream;
    std::int32_t cause;
    Picoseconds time;
    std::int32_t next;
    bool told;
  };

  void build() {
    const std::size_t channels = program_.channels.way.size();
    const std::size_t ports = program_.ports.stream.size();
    channels_.reserve(channels);
    ports_.reserve(ports);
    if (!program_.channels.ports.empty()) port_channel_.resize(ports);
    for (std::size_t c = 0; c < channels; ++c) {
      Channel channel;
      channel.has_way = has_links(program_.channels.way[c]);
      channel.first_port = static_cast<std::int32_t>(first_port(c));
      channel.one_port = first_port(c + 1) - first_port(c) == 1;
      if (!port_channel_.empty())
        for (auto p = first_port(c); p < first_port(c + 1); ++p) port_channel_[static_cast<std::size_t>(p)] = static_cast<std::int32_t>(c);
      channels_.push_back(channel);
    }
    for (std::size_t p = 0; p < ports; ++p) ports_.push_back({program_.ports.latency_ps[p], program_.ports.stream[p], 0});
    streams_.resize(program_.streams.entry.size());
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      streams_[s].pc = program_.streams.entry[s];
      if (!is_background(static_cast<std::int32_t>(s))) ++waiting_;
    }
    channel_bytes_.assign(channels, 0);
    if (!program_.channels.slots.empty()) {
      outstanding_.assign(channels, 0);
      slot_waiter_.assign(channels, -1);
    }
    injector_free_.assign(program_.injector_gap_ps.size(), Picoseconds{0});
  }

  std::int64_t first_port(std::size_t channel) const {
    return program_.channels.ports.empty() ? static_cast<std::int64_t>(channel) : program_.channels.ports[channel];
  }

  std::int32_t channel_of_port(std::int32_t port) const { return port_channel_.empty() ? port : port_channel_[static_cast<std::size_t>(port)]; }

  static Program checked(Program program) {
    check(program);
    return program;
  }

  bool has_links(std::int32_t way) const {
    return way >= 0 && program_.ways.begin[static_cast<std::size_t>(way)] < program_.ways.begin[static_cast<std::size_t>(way) + 1];
  }

  bool is_background(std::int32_t stream) const { return !program_.streams.background.empty() && program_.streams.background[static_cast<std::size_t>(stream)] != 0; }

  void handle(Event event) {
    switch (event.kind) {
      case kDrained:
        if (channels_[event.id].busy && channels_[event.id].generation == event.aux) drained(static_cast<std::int32_t>(event.id));
        break;
      case kArrived: arrived(static_cast<std::int32_t>(event.id), static_cast<std::int32_t>(event.aux)); break;
      case kWake: {
        Stream& stream = streams_[event.id];
        stream.asleep = false;
        stream.cause = static_cast<std::int32_t>(event.aux);
        ++stream.pc;
        advance(static_cast<std::int32_t>(event.id));
        break;
      }
      case kChange: change(event.id); break;
      case kInject: inject(static_cast<std::int32_t>(event.id)); break;
      case kCredit: credit(static_cast<std::int32_t>(event.id), static_cast<std::int32_t>(event.aux)); break;
      default: break;
    }
  }

  /// Runs a stream until it has to wait.
  void advance(std::int32_t id) {
    Stream& stream = streams_[static_cast<std::size_t>(id)];
    const std::int32_t* channel_of = program_.streams.channel_of.data() + program_.streams.channels[static_cast<std::size_t>(id)];
    const std::int32_t* port_of = program_.streams.port_of.data() + program_.streams.ports[static_cast<std::size_t>(id)];
    for (;;) {
      const Instruction& i = program_.code[static_cast<std::size_t>(stream.pc)];
      switch (i.op) {
        case Op::kSend:
        case Op::kPut:
          for (; stream.at < i.count; ++stream.at)
            if (!post(id, channel_of[i.first + stream.at], i.amount, i.op == Op::kSend)) return;
          stream.at = 0;
          break;
        case Op::kReceive:
        case Op::kTake:
          for (; stream.at < i.count; ++stream.at)
            if (!receive(stream, port_of[i.first + stream.at], i.op == Op::kReceive)) return;
          stream.at = 0;
          break;
        case Op::kFree:
          for (std::int32_t p = 0; p < i.count && !outstanding_.empty(); ++p)
            give_slot_back(channel_of_port(port_of[i.first + p]), stream.cause);
          break;
        case Op::kDrain:
          for (; stream.at < i.count; ++stream.at) {
            const std::int32_t channel = channel_of[i.first + stream.at];
            const Channel& one = channels_[static_cast<std::size_t>(channel)];
            if (one.busy || one.posted > 0) {
              stream.waits_channel = channel;
              drain_waiter_[channel].push_back(id);
              return;
            }
          }
          stream.at = 0;
          break;
        case Op::kDelay:
        case Op::kCompute: {
          if (i.amount == 0) break;
          std::int64_t time = i.amount;
          if (i.op == Op::kCompute && !program_.streams.slowness.empty())
            time = static_cast<std::int64_t>((Work{time} * program_.streams.slowness[static_cast<std::size_t>(id)] + (1 << 19)) >> 20);
          const std::int32_t row = note(-1, id, now_, stream.cause, 0);
          if (row >= 0) {
            tasks_.begin_ps[static_cast<std::size_t>(row)] = count(now_);
            tasks_.end_ps[static_cast<std::size_t>(row)] = count(now_) + time;
          }
          stream.asleep = true;
          queue_.push(now_ + Picoseconds{time}, {kWake, static_cast<std::uint32_t>(id) & kIdMask, static_cast<std::uint32_t>(row)});
          return;
        }
        case Op::kLoop:
          if (i.amount == 0) {
            skip_loop(stream);
            continue;
          }
          stream.turns[stream.depth++] = i.amount;
          break;
        case Op::kEnd:
          if (--stream.turns[stream.depth - 1] > 0) {
            stream.pc = i.first;
            if (stream.depth == 1 && (marker_ == id || marker_ < 0)) {
              marker_ = id;
              loop_turned_ = true;
            }
          } else {
            --stream.depth;
            if (marker_ == id && stream.depth == 0) forget_period();
          }
          break;
        case Op::kStop:
          stream.ended = true;
          stream.end = now_;
          if (!is_background(id)) --waiting_;
          return;
      }
      ++stream.pc;
    }
  }

  /// Streams that got a slot back go on.
  void resume() {
    for (std::size_t i = 0; i < resumed_.size(); ++i) advance(resumed_[i]);
    resumed_.clear();
  }

  void skip_loop(Stream& stream) {
    std::int32_t depth = 0;
    do {
      const Op op = program_.code[static_cast<std::size_t>(stream.pc)].op;
      depth += op == Op::kLoop ? 1 : op == Op::kEnd ? -1 : 0;
      ++stream.pc;
    } while (depth > 0);
  }

  bool post(std::int32_t id, std::int32_t to, std::int64_t size_bytes, bool told) {
    if (!outstanding_.empty()) {
      const std::int32_t slots = program_.channels.slots[static_cast<std::size_t>(to)];
      if (slots > 0) {
        if (outstanding_[static_cast<std::size_t>(to)] >= slots) {
          slot_waiter_[static_cast<std::size_t>(to)] = id;
          streams_[static_cast<std::size_t>(id)].waits_channel = to;
          return false;
        }
        ++outstanding_[static_cast<std::size_t>(to)];
      }
    }
    Channel& channel = channels_[static_cast<std::size_t>(to)];
    if (size_bytes < 0) size_bytes = program_.channels.size_bytes.empty() ? 0 : program_.channels.size_bytes[static_cast<std::size_t>(to)];
    const std::int32_t cause = streams_[static_cast<std::size_t>(id)].cause;
    if (channel.busy || channel.posted > 0) {
      enqueue(channel, {size_bytes, id, cause, now_, -1, told});
      return true;
    }
    begin(to, {size_bytes, id, cause, now_, -1, told});
    return true;
  }

  void enqueue(Channel& channel, const Posted& message) {
    if (posted_.size() >= kMostPosted) throw std::length_error("more than 100 million messages wait to be sent; let streams wait for them with drain, or give channels slots");
    std::int32_t node = free_posted_;
    if (node >= 0) {
      free_posted_ = posted_[static_cast<std::size_t>(node)].next;
      posted_[static_cast<std::size_t>(node)] = message;
    } else {
      node = static_cast<std::int32_t>(posted_.size());
      posted_.push_back(message);
    }
    if (channel.queue_tail >= 0)
      posted_[static_cast<std::size_t>(channel.queue_tail)].next = node;
    else
      channel.queue_head = node;
    channel.queue_tail = node;
    ++channel.posted;
  }

  Posted dequeue(Channel& channel) {
    const std::int32_t node = channel.queue_head;
    const Posted message = posted_[static_cast<std::size_t>(node)];
    channel.queue_head = message.next;
    if (channel.queue_head < 0) channel.queue_tail = -1;
    posted_[static_cast<std::size_t>(node)].next = free_posted_;
    free_posted_ = node;
    --channel.posted;
    return message;
  }

  /// The next message of a channel takes its way, as soon as its injector lets it.
  void begin(std::int32_t id, const Posted& message) {
    Channel& channel = channels_[static_cast<std::size_t>(id)];
    channel.busy = true;
    channel.size_bytes = message.size_bytes;
    channel.told = message.told;
    channel.row = note(id, message.stream, message.time, message.cause, message.size_bytes);
    ++messages_;
    const Picoseconds start = may_begin(id);
    if (start > now_) {
      queue_.push(start, {kInject, static_cast<std::uint32_t>(id) & kIdMask, 0});
      return;
    }
    inject(id);
  }

  /// When a channel's next message may send its first byte: after its overhead, and when its injector has a turn.
  Picoseconds may_begin(std::int32_t id) {
    Picoseconds start = now_;
    if (!program_.channels.overhead_ps.empty()) start = start + Picoseconds{program_.channels.overhead_ps[static_cast<std::size_t>(id)]};
    if (program_.channels.injector.empty()) return start;
    const std::int32_t injector = program_.channels.injector[static_cast<std::size_t>(id)];
    if (injector < 0) return start;
    Picoseconds& free = injector_free_[static_cast<std::size_t>(injector)];
    start = std::max(free, start);
    free = start + Picoseconds{program_.injector_gap_ps[static_cast<std::size_t>(injector)]};
    return start;
  }

  void inject(std::int32_t id) {
    Channel& channel = channels_[static_cast<std::size_t>(id)];
    if (channel.row >= 0) tasks_.begin_ps[static_cast<std::size_t>(channel.row)] = count(now_) - correction(channel.row);
    channel.work = work_of(channel.size_bytes);
    channel.since = now_;
    if (channel.work == 0 || !channel.has_way) {
      // Nothing to carry, or nothing to carry it over: it leaves at once, but in the order of events.
      ++channel.generation;
      queue_.push(now_, {kDrained, static_cast<std::uint32_t>(id) & kIdMask, channel.generation});
      return;
    }
    rates_.start(id);
  }

  void drained(std::int32_t id) {
    Channel& channel = channels_[static_cast<std::size_t>(id)];
    if (rates_.active(id)) {
      if (channel.row >= 0) tasks_.bottleneck[static_cast<std::size_t>(channel.row)] = rates_.bottleneck(id);
      rates_.stop(id);
    }
    channel.busy = false;
    turn_sum_ += scrambled(static_cast<std::uint64_t>(id) ^ scrambled(static_cast<std::uint64_t>(count(now_) - count(turn_began_))));
    channel_bytes_[static_cast<std::size_t>(id)] += channel.size_bytes;
    const std::int32_t row = channel.row;
    if (row >= 0) tasks_.end_ps[static_cast<std::size_t>(row)] = count(now_) - correction(row);
    const std::int64_t end = !channel.told ? channel.first_port : channel.one_port ? channel.first_port + 1 : first_port(static_cast<std::size_t>(id) + 1);
    for (std::int64_t p = channel.first_port; p < end; ++p) {
      const std::int64_t latency = ports_[static_cast<std::size_t>(p)].latency;
      queue_.push(now_ + Picoseconds{latency}, {kArrived, static_cast<std::uint32_t>(p) & kIdMask, static_cast<std::uint32_t>(row)});
    }
    if (channel.posted > 0) {
      Posted next = dequeue(channel);
      if (row >= 0) next.cause = row;
      begin(id, next);
    } else if (!drain_waiter_.empty()) {
      wake_drain_waiters(id, row);
    }
  }

  void wake_drain_waiters(std::int32_t id, std::int32_t row) {
    const auto found = drain_waiter_.find(id);
    if (found == drain_waiter_.end()) return;
    const std::vector<std::int32_t> waiters = std::move(found->second);
    drain_waiter_.erase(found);
    for (const std::int32_t waiter : waiters) {
      Stream& stream = streams_[static_cast<std::size_t>(waiter)];
      stream.waits_channel = -1;
      stream.cause = row;
      advance(waiter);
    }
  }

  void arrived(std::int32_t id, std::int32_t row) {
    Port& port = ports_[static_cast<std::size_t>(id)];
    ++port.arrived;
    Stream& stream = streams_[static_cast<std::size_t>(port.stream)];
    if (stream.waits_port != id) return;
    stream.waits_port = -1;
    stream.cause = row;
    advance(port.stream);
  }

  bool receive(Stream& stream, std::int32_t id, bool frees) {
    Port& port = ports_[static_cast<std::size_t>(id)];
    if (port.arrived == 0) {
      stream.waits_port = id;
      return false;
    }
    --port.arrived;
    if (frees && !outstanding_.empty()) give_slot_back(channel_of_port(id), stream.cause);
    return true;
  }

  void give_slot_back(std::int32_t id, std::int32_t cause) {
    if (program_.channels.slots[static_cast<std::size_t>(id)] == 0) return;
    const std::int64_t way_back = program_.channels.credit_ps.empty() ? 0 : program_.channels.credit_ps[static_cast<std::size_t>(id)];
    if (way_back > 0)
      queue_.push(now_ + Picoseconds{way_back}, {kCredit, static_cast<std::uint32_t>(id) & kIdMask, static_cast<std::uint32_t>(cause)});
    else
      credit(id, cause);
  }

  void credit(std::int32_t id, std::int32_t cause) {
    --outstanding_[static_cast<std::size_t>(id)];
    const std::int32_t waiter = std::exchange(slot_waiter_[static_cast<std::size_t>(id)], -1);
    if (waiter < 0) return;
    Stream& stream = streams_[static_cast<std::size_t>(waiter)];
    stream.waits_channel = -1;
    stream.cause = cause;
    // Not advanced from here: the receiver is in the middle of its instruction, and may wait for itself.
    resumed_.push_back(waiter);
  }

  void change(std::size_t row) {
    const auto& changes = program_.changes;
    if (changes.link[row] >= 0) {
      rates_.set_capacity(changes.link[row], Rate{changes.capacity[row]});
      return;
    }
    const std::int32_t id = changes.channel[row];
    Channel& channel = channels_[static_cast<std::size_t>(id)];
    const bool under_way = rates_.active(id);
    if (under_way) {
      advance_work(id, rates_.rate(id));
      rates_.stop(id);
    }
    rates_.set_way(id, changes.way[row]);
    channel.has_way = has_links(changes.way[row]);
    program_.channels.way[static_cast<std::size_t>(id)] = changes.way[row];
    if (under_way) {
      ++channel.generation;
      rates_.start(id);
    }
  }

  void advance_work(std::int32_t id, Rate rate) {
    Channel& channel = channels_[static_cast<std::size_t>(id)];
    channel.work -= rate * (now_ - channel.since);
    channel.since = now_;
  }

  /// Ends the moment: rates follow what started and stopped in it.
  void settle() {
    rates_.settle([this](FlowId id, Rate before, Rate now) {
      Channel& channel = channels_[static_cast<std::size_t>(id)];
      advance_work(id, before);
      ++channel.generation;
      if (channel.work != last_work_ || now != last_rate_) {
        last_work_ = channel.work;
        last_rate_ = now;
        last_duration_ = duration(last_work_, last_rate_);
      }
      const Picoseconds left = last_duration_;
      if (left != kNever) queue_.push(now_ + left, {kDrained, static_cast<std::uint32_t>(id) & kIdMask, channel.generation});
    });
  }

  std::int32_t note(std::int32_t channel, std::int32_t stream, Picoseconds posted, std::int32_t cause, std::int64_t size_bytes) {
    if (!options_.record) return -1;
    if (static_cast<std::int64_t>(tasks_.channel.size()) >= options_.most_rows) {
      rows_left_out_ = true;
      return -1;
    }
    const auto row = static_cast<std::int32_t>(tasks_.channel.size());
    tasks_.channel.push_back(channel);
    tasks_.stream.push_back(stream);
    tasks_.posted_ps.push_back(count(posted));
    tasks_.begin_ps.push_back(-1);
    tasks_.end_ps.push_back(-1);
    tasks_.size_bytes.push_back(size_bytes);
    tasks_.bottleneck.push_back(-1);
    tasks_.cause.push_back(cause);
    return row;
  }

  // Fast-forward. A run whose state repeats, but for the clock and the turns that outermost loops have left, repeats what it did in between
  // until a loop ends or the network changes. States are compared word by word, at every turn of one stream's outermost loop, where turns look alike
  // (found as in R. P. Brent, "An improved Monte Carlo factorization algorithm", 1980, section 2).

  struct State {
    std::vector<std::int64_t> words;
    std::vector<std::int64_t> turns;  ///< (S,) left of the outermost loop
    std::vector<std::int64_t> channel_bytes;
    Picoseconds time{0};
    std::uint64_t messages = 0;
    std::int64_t rows = 0;
    Picoseconds next_change = kNever;
  };

  void state_into(State& state) {
    state.time = now_;
    state.messages = messages_;
    state.rows = static_cast<std::int64_t>(tasks_.channel.size());
    state.words.clear();
    state.turns.clear();
    for (const Stream& stream : streams_) {
      state.turns.push_back(stream.ended ? 0 : stream.turns[0] * (stream.depth > 0));
      const std::int64_t flags = (stream.ended ? 1 : 0) | (stream.asleep ? 2 : 0) | (std::int64_t{stream.depth} << 2) | (std::int64_t{stream.at} << 8);
      state.words.insert(state.words.end(), {flags, stream.pc, (std::int64_t{stream.waits_port} << 32) ^ stream.waits_channel});
      for (std::int32_t depth = 1; depth < stream.depth; ++depth) state.words.push_back(stream.turns[depth]);
    }
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      const Channel& channel = channels_[c];
      if (!channel.busy && channel.posted == 0) continue;
      const Rate rate = rates_.rate(static_cast<FlowId>(c));
      const Work left = channel.work - rate * (now_ - channel.since);
      state.words.insert(state.words.end(), {-1 - static_cast<std::int64_t>(c), channel.size_bytes, static_cast<std::int64_t>(left >> 64),
                                             static_cast<std::int64_t>(static_cast<std::uint64_t>(left)), count(rate), channel.posted * 2 + channel.told});
      for (std::int32_t node = channel.queue_head; node >= 0; node = posted_[static_cast<std::size_t>(node)].next)
        state.words.push_back(posted_[static_cast<std::size_t>(node)].size_bytes * 2 + posted_[static_cast<std::size_t>(node)].told);
    }
    for (std::size_t p = 0; p < ports_.size(); ++p)
      if (ports_[p].arrived != 0) state.words.insert(state.words.end(), {static_cast<std::int64_t>(p), ports_[p].arrived});
    for (const std::int32_t taken : outstanding_) state.words.push_back(taken);
    for (const Picoseconds free : injector_free_) state.words.push_back(std::max<std::int64_t>(0, count(free) - count(now_)));
    state.next_change = kNever;
    waiting_events_.clear();
    queue_.for_each([&](Picoseconds time, const Event& event) {
      if (event.kind == kChange)
        state.next_change = std::min(state.next_change, time);
      else
        for (std::uint32_t n = 0; n < event.count; ++n) {
          const Event one = event.at(n);
          if (one.kind != kDrained || (channels_[one.id].busy && channels_[one.id].generation == one.aux))
            waiting_events_.emplace_back(count(time) - count(now_), (std::int64_t{one.kind} << 32) | one.id);
        }
    });
    // Rows that are repeated must begin in the same order, so where they are kept the order of one time's events is part of the state.
    if (options_.record)
      std::stable_sort(waiting_events_.begin(), waiting_events_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    else
      std::sort(waiting_events_.begin(), waiting_events_.end());
    for (const auto& [time, what] : waiting_events_) state.words.insert(state.words.end(), {time, what});
    state.channel_bytes.assign(channel_bytes_.begin(), channel_bytes_.end());
  }

  /// A turn is told by a sum over the messages that left in it: who, and when in the turn. A turn like one kept from a power of two of turns
  /// ago suggests a period; then the state is kept, and compared at the turns like it that follow.
  void look_for_period() {
    const std::uint64_t turn = std::exchange(turn_sum_, 0);
    turn_began_ = now_;
    if (misses_ >= kMostMisses) return;
    ++turns_seen_;
    if (compares_left_ > 0) {
      if (turn != kept_sum_) return;
      --compares_left_;
      state_into(current_);
      if (current_.words == kept_.words && skip_periods()) {
        forget_period();
        return;
      }
      if (compares_left_ > 0) return;
      ++misses_;
    }
    if (kept_turn_ > 0 && turn == kept_sum_) {
      state_into(kept_);
      compares_left_ = kMostCompares;
      return;
    }
    if (turns_seen_ >= next_kept_) {
      next_kept_ *= 2;
      kept_turn_ = turns_seen_;
      kept_sum_ = turn;
    }
  }

  void forget_period() {
    turns_seen_ = kept_turn_ = compares_left_ = misses_ = 0;
    next_kept_ = 1;
    turn_sum_ = 0;
    marker_ = -1;
  }

  bool skip_periods() {
    const std::int64_t period = count(current_.time) - count(kept_.time);
    std::int64_t times = INT64_MAX;
    if (period <= 0) return false;
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      const std::int64_t turned = kept_.turns[s] - current_.turns[s];
      if (turned < 0) return false;
      if (turned > 0) times = std::min(times, (current_.turns[s] - 1) / turned);
    }
    if (current_.next_change != kNever) times = std::min(times, (count(current_.next_change) - count(now_) - 1) / period);
    if (times < 1 || times == INT64_MAX || times > (INT64_MAX - count(now_)) / period / 2) return false;
    const Picoseconds by{times * period};
    now_ = now_ + by;
    queue_.shift(by, [](const Event& event) { return event.kind != kChange; });
    for (std::size_t s = 0; s < streams_.size(); ++s) streams_[s].turns[0] -= times * (kept_.turns[s] - current_.turns[s]);
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      Channel& channel = channels_[c];
      if (channel.busy) {
        channel.since = channel.since + by;
        if (channel.row >= kept_.rows) corrections_[channel.row] += count(by);
      }
      channel_bytes_[c] += times * (current_.channel_bytes[c] - kept_.channel_bytes[c]);
      for (std::int32_t node = channel.queue_head; node >= 0; node = posted_[static_cast<std::size_t>(node)].next)
        posted_[static_cast<std::size_t>(node)].time = posted_[static_cast<std::size_t>(node)].time + by;
    }
    for (Picoseconds& free : injector_free_) free = free + by;
    messages_skipped_ += static_cast<std::uint64_t>(times) * (current_.messages - kept_.messages);
    repeats_.push_back({kept_.rows, current_.rows, times, period});
    return true;
  }

  /// How much later a row that was under way when periods were skipped ends than the first time it happened.
  std::int64_t correction(std::int32_t row) {
    if (corrections_.empty()) return 0;
    const auto found = corrections_.find(row);
    return found == corrections_.end() ? 0 : found->second;
  }

  static constexpr std::int64_t kMostCompares = 64;  ///< of states, before another one is kept; a guess
  static constexpr std::int64_t kMostMisses = 16;    ///< after so many, a loop is not looked at any more; a guess

  static std::uint64_t scrambled(std::uint64_t value) {
    value *= 0x9E3779B97F4A7C15U;
    return (value ^ (value >> 29U)) * 0xBF58476D1CE4E5B9U;
  }

  static constexpr std::size_t kMostPosted = 100'000'000;

  Program program_;
  Options options_;
  FairRates rates_;
  EventQueue<Event> queue_;
  Column<Channel> channels_;
  Column<Port> ports_;
  Column<std::int32_t> port_channel_;  ///< empty: port p is of channel p
  std::vector<Stream> streams_;
  std::vector<Posted> posted_;
  std::int32_t free_posted_ = -1;
  std::vector<std::int32_t> outstanding_, slot_waiter_;
  std::vector<std::int32_t> resumed_;
  std::unordered_map<std::int32_t, std::vector<std::int32_t>> drain_waiter_;
  std::vector<Picoseconds> injector_free_;
  Column<std::int64_t> channel_bytes_;
  TaskColumns tasks_;
  std::vector<Repeat> repeats_;
  Picoseconds now_{0};
  Work last_work_ = 0;  ///< most messages of a moment are alike
  Rate last_rate_{0};
  Picoseconds last_duration_{0};
  std::int64_t budget_ = 0;
  std::int64_t waiting_ = 0;  ///< streams that have not ended, background left out
  std::uint64_t events_ = 0, messages_ = 0, messages_skipped_ = 0;
  std::int32_t marker_ = -1;  ///< the stream whose outermost loop is watched
  State kept_, current_;
  std::vector<std::pair<std::int64_t, std::int64_t>> waiting_events_;
  std::unordered_map<std::int32_t, std::int64_t> corrections_;
  std::int64_t turns_seen_ = 0, next_kept_ = 1, kept_turn_ = 0, compares_left_ = 0, misses_ = 0;
  std::uint64_t turn_sum_ = 0, kept_sum_ = 0;
  Picoseconds turn_began_{0};
  bool begun_ = false, loop_turned_ = false, rows_left_out_ = false;
};

}  // namespace busbw::sim
