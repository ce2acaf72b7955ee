/// A simulated machine with weak memory, on which device code runs as written: every thread of every block of every rank is a
/// fiber, one OS thread runs them all, and a seed decides who goes on and how old a value a load may see.
///
/// Memory model: C++20 release/acquire and relaxed atomics, as vector clocks and histories of messages.
/// - A word that `SystemAtomic` touches keeps its last values. A load takes any of them that is not older than one that happens before
///   it, nor than one that this thread has seen there (coherence); so stores seem delayed and reordered, and loads early.
/// - An acquire that reads from a release, or from a read-modify-write after it, orders the two threads.
/// - Weak accesses are checked for races: two accesses of one place by two threads, one of them a store, not ordered. A race is
///   reported with its place whether or not this schedule turned it into a wrong value.
/// - A block barrier orders the threads of its block.
/// What it does not show: load buffering (a load that reads from a store after it in its own thread's order), the PTX itself, the async
/// proxy, atomicity of 128-byte packets, multimem's rounding, time.
///
/// Two ways to choose: at random by a seed, or depth first through all choices with a bound on how many of a run differ from "go on, see
/// the newest" (`Explorer`). Co-residency: `most_live_blocks` blocks of a rank run at a time, in order, as a GPU would that is full.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "busbw/device/order.hpp"

namespace busbw::device::sim {

/// Who takes the choices of a run.
class Chooser {
 public:
  virtual ~Chooser() = default;
  /// A number below count; 0 is the calm choice.
  virtual std::uint32_t choose(std::uint32_t count) = 0;
};

/// By a seed: the same seed, the same run. SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
class SeededChooser final : public Chooser {
 public:
  explicit SeededChooser(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  std::uint32_t choose(std::uint32_t count) override {
    state_ += 0x9E3779B97F4A7C15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return static_cast<std::uint32_t>(((z >> 32) * count) >> 32);
  }

 private:
  std::uint64_t state_;
};

/// Every run once, depth first, among those with at most `most_deviations` choices other than 0.
///
///     Explorer explorer(2);
///     do { World world(options, explorer); world.run(kernel); } while (explorer.next());
class Explorer final : public Chooser {
 public:
  explicit Explorer(std::uint32_t most_deviations) : most_deviations_(most_deviations) {}

  std::uint32_t choose(std::uint32_t count) override {
    if (count < 2) return 0;
    if (at_ == path_.size()) path_.push_back({0, deviations_ < most_deviations_ ? count : 1});
    const auto taken = path_[at_++].taken;
    deviations_ += taken != 0;
    return taken;
  }

  /// Turns to the next run; false after the last.
  bool next() {
    path_.resize(at_ < path_.size() ? at_ : path_.size());
    while (!path_.empty() && path_.back().taken + 1 >= path_.back().count) path_.pop_back();
    at_ = 0;
    deviations_ = 0;
    if (path_.empty()) return false;
    ++path_.back().taken;
    return true;
  }

 private:
  struct Choice {
    std::uint32_t taken, count;
  };
  std::uint32_t most_deviations_;
  std::vector<Choice> path_;
  std::size_t at_ = 0;
  std::uint32_t deviations_ = 0;
};

struct Options {
  std::uint32_t ranks = 2;
  std::uint32_t blocks = 1;
  std::uint32_t threads = 2;
  std::size_t heap_bytes = 1 << 16;     ///< of one rank
  std::uint32_t most_live_blocks = 0;   ///< of a rank at a time; 0: all
  std::uint32_t granule_bytes = 4;      ///< the smallest access; races are told apart down to it
  bool launch_is_fence = false;         ///< whatever a launch stores tells, even relaxed, what was before the launch, as a GPU's launches do
};

/// Where a thread stands.
struct Place {
  std::uint32_t rank = 0, block = 0, thread = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << "rank " << place.rank << " block " << place.block << " thread " << place.thread;
}

/// What a run showed.
struct Result {
  std::vector<std::string> races;  ///< the first few, in words
  std::string deadlock;            ///< where every thread stood; empty if all ended
  std::uint64_t primitives = 0;    ///< accesses of memory and block barriers
  bool clean() const { return races.empty() && deadlock.empty(); }
};

class World;
inline World* world = nullptr;  ///< the one that runs now; fibers have no other way to know

using VectorClock = std::vector<std::uint32_t>;

class World {
 public:
  World(const Options& options, Chooser& chooser)
      : options_(options), chooser_(chooser), heap_(options.ranks * options.heap_bytes / sizeof(Line) + 1),
        fibers_(static_cast<std::size_t>(options.ranks) * options.blocks * options.threads),
        barriers_(static_cast<std::size_t>(options.ranks) * options.blocks), launches_(options.ranks) {
    const std::size_t cells = options.ranks * options.heap_bytes / options.granule_bytes;
    writes_.assign(cells, {});
    reads_.assign(cells * fibers_.size(), 0);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The heap of a rank: zeros at first, kept from run to run.
  std::byte* heap(std::uint32_t rank) { return reinterpret_cast<std::byte*>(heap_.data()) + rank * options_.heap_bytes; }

  /// Runs kernel(place) in every thread, all starting at once and ordered after what came before; false if something was found.
  /// May be called again: a launch is ordered after the one before it on the same rank only, as in a stream.
  bool run(const std::function<void(const Place&)>& kernel) {
    kernel_ = &kernel;
    World* const outer = std::exchange(world, this);
    start_all();
    while (live_ > 0 && result_.deadlock.empty()) {
      current_ = next_runnable();
      if (!result_.deadlock.empty()) break;  // nobody is left to go on
      swapcontext(&scheduler_, &fibers_[current_].context);
      if (fibers_[current_].state == State::ended) end_of_fiber();
    }
    world = outer;
    return result_.clean();
  }

  const Result& result() const { return result_; }
  const Place& place() const { return fibers_[current_].place; }

  // What target_sim.hpp calls.

  template <class T>
  T atomic_load(T& word, Order order) {
    step();
    Fiber& me = fibers_[current_];
    History& history = history_of(&word, word);
    std::size_t oldest = history.messages.size() - 1;
    const std::size_t seen = history.seen[current_];
    while (oldest > 0 && history.first + oldest > seen && !happens_before(history.messages[oldest], me)) --oldest;
    const std::size_t range = history.messages.size() - oldest;
    const std::size_t back = me.calm ? 0 : chooser_.choose(static_cast<std::uint32_t>(range));
    const Message& message = history.messages[history.messages.size() - 1 - back];
    history.seen[current_] = history.first + history.messages.size() - 1 - back;
    if (message.started) join(me.clock, *message.started);
    join(me.taken, message.taken);
    if (order == Order::acquire) join(me.clock, message.released);
    return static_cast<T>(message.value);
  }

  template <class T>
  void atomic_store(T& word, T value, Order order) {
    step();
    Fiber& me = fibers_[current_];
    History& history = history_of(&word, word);
    append(history, static_cast<std::uint64_t>(value), order == Order::release ? me.clock : VectorClock{});
    word = value;
  }

  template <class T>
  T atomic_fetch_add(T& word, T value, Order order) {
    step();
    Fiber& me = fibers_[current_];
    History& history = history_of(&word, word);
    const Message last = history.messages.back();
    VectorClock released = last.released;  // a read-modify-write carries on the release before it
    if (order == Order::release) join(released, me.clock);
    if (order == Order::acquire) join(me.clock, last.released);
    if (last.started) join(me.clock, *last.started);
    append(history, last.value + static_cast<std::uint64_t>(value), std::move(released));
    if (last.started && last.started != me.started) {
      auto both = std::make_shared<VectorClock>(*last.started);
      if (me.started) join(*both, *me.started);
      history.messages.back().started = std::move(both);
    }
    word = static_cast<T>(last.value + static_cast<std::uint64_t>(value));
    return static_cast<T>(last.value);
  }

  void weak_read(const void* p, std::size_t bytes) { check(p, bytes, false); }
  void weak_write(const void* p, std::size_t bytes) { check(p, bytes, true); }

  /// A packet's words were what a thread waited for: from here on it counts on them until it tells somebody.
  void packet_taken(const void* p, std::size_t bytes) {
    each_cell(p, bytes, [&](std::size_t cell) { reads_[cell * fibers_.size() + current_] = fibers_[current_].clock[current_]; });
  }
  /// A packet is stored: whoever took the one before must have told this thread. Its words are atomic, so this is no race, but a packet lost. Packets
  /// themselves tell what their sender had taken: a store that depends on a load does not overtake it, on a GPU or a CPU. Of other memory they tell nothing.
  void packet_overwritten(const void* p, std::size_t bytes) {
    packets_ = true;
    const Fiber& me = fibers_[current_];
    each_cell(p, bytes, [&](std::size_t cell) {
      for (std::size_t i = 0; i < fibers_.size(); ++i)
        if (i != current_ && reads_[cell * fibers_.size() + i] > me.clock[i] && (i >= me.taken.size() || reads_[cell * fibers_.size() + i] > me.taken[i]))
          race(cell, static_cast<std::uint32_t>(i), "a packet that is stored while another may still be taken from it", true);
    });
  }

  /// A number below count, for agents that may do things in any order.
  std::uint32_t choose(std::uint32_t count) { return chooser_.choose(count); }
  /// How often this thread has asked: the same on all threads of a block that make the same calls.
  std::uint32_t next_call() { return fibers_[current_].calls++; }

  void block_barrier() { block_barrier_or(false); }
  /// The same; whether any thread of the block said so.
  bool block_barrier_or(bool mine) {
    const std::size_t block = current_ / options_.threads;
    barriers_[block].any = barriers_[block].any || mine;
    meet(barriers_[block], block * options_.threads, options_.threads);
    return fibers_[current_].any;
  }

  /// What stands between two launches of a rank's stream: all its threads meet. All blocks must be live.
  void next_launch() {
    const std::size_t of_rank = fibers_.size() / options_.ranks;
    const std::size_t rank = current_ / of_rank;
    meet(launches_[rank], rank * of_rank, of_rank);
    if (options_.launch_is_fence) fibers_[current_].started = std::make_shared<const VectorClock>(fibers_[current_].clock);
  }

  void spin() {
    Fiber& me = fibers_[current_];
    me.calm = ++me.looks > kLooksBeforeNewest;  // what was stored is seen in the end
    if (++idle_ > kIdleTurns * fibers_.size()) {
      std::ostringstream said;
      for (const Fiber& fiber : fibers_)
        if (fiber.state == State::runnable || fiber.state == State::in_barrier)
          said << fiber.place << (fiber.state == State::in_barrier ? " in a block barrier" : " spins") << (fiber.at ? " at " : "")
               << (fiber.at ? fiber.at : "") << "; ";
      result_.deadlock = said.str();
    }
    yield();
  }

  /// Names what this thread does now, for the report of a deadlock.
  void at(const char* primitive) { fibers_[current_].at = primitive; }
  std::uint64_t now() const { return result_.primitives; }

 private:
  static constexpr std::uint32_t kLooksBeforeNewest = 8;
  static constexpr std::uint64_t kIdleTurns = 1024;  // of each fiber, without a store of anyone: well beyond the deadlines that tests set
  static constexpr std::size_t kMostMessages = 12;
  static constexpr std::size_t kStackBytes = 1 << 16;
  static constexpr std::size_t kMostRaces = 8;

  enum class State : unsigned char { waiting_for_room, runnable, in_barrier, ended };

  struct alignas(64) Line {
    std::byte bytes[64]{};
  };
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack;
    Place place;
    VectorClock clock;
    std::shared_ptr<const VectorClock> started;  ///< what was before its launch
    VectorClock taken;     ///< of packets: as `clock`, by dependencies too
    State state = State::ended;
    const char* at = nullptr;
    std::uint32_t looks = 0;
    std::uint32_t calls = 0;
    bool calm = false;
    bool any = false;  ///< of the block barrier that it left last
  };
  struct Message {
    std::uint64_t value = 0;
    std::uint32_t writer = 0, epoch = 0;
    VectorClock released;  ///< empty: relaxed
    std::shared_ptr<const VectorClock> started;
    VectorClock taken;     ///< once there are packets: what the writer knew others to have taken, its own time included
  };
  struct History {
    std::vector<Message> messages;
    std::size_t first = 0;            ///< number of messages[0]
    std::vector<std::size_t> seen;    ///< by fiber: the newest that it has read or written
  };
  struct Barrier {
    std::uint32_t arrived = 0;
    bool any = false;
    VectorClock gathered, taken;
  };
  struct Epoch {
    std::uint32_t writer = 0, clock = 0;  ///< clock 0: never written in a run
  };

  void meet(Barrier& barrier, std::size_t first, std::size_t count) {
    ++result_.primitives;
    Fiber& me = fibers_[current_];
    join(barrier.gathered, me.clock);
    join(barrier.taken, me.taken);
    if (++barrier.arrived < count) {
      me.state = State::in_barrier;
      yield();
      return;
    }
    for (std::size_t i = first; i < first + count; ++i) {
      fibers_[i].clock = barrier.gathered;
      fibers_[i].taken = barrier.taken;
      fibers_[i].any = barrier.any;
      tick(i);
      fibers_[i].state = State::runnable;
    }
    barrier = {};
    changed();
    yield();
  }

  static void join(VectorClock& into, const VectorClock& other) {
    if (into.size() < other.size()) into.resize(other.size(), 0);
    for (std::size_t i = 0; i < other.size(); ++i)
      if (other[i] > into[i]) into[i] = other[i];
  }
  void tick(std::size_t fiber) { ++fibers_[fiber].clock[fiber]; }
  bool happens_before(const Message& message, const Fiber& me) const { return message.epoch <= me.clock[message.writer]; }

  void start_all() {
    live_ = fibers_.size();
    const std::size_t of_rank = static_cast<std::size_t>(options_.blocks) * options_.threads;
    const std::size_t room = (options_.most_live_blocks ? options_.most_live_blocks : options_.blocks) * options_.threads;
    for (std::size_t rank = 0; rank < options_.ranks; ++rank) {  // a launch follows the last one of its rank
      VectorClock before(fibers_.size(), 0);
      for (std::size_t i = rank * of_rank; i < (rank + 1) * of_rank; ++i) join(before, fibers_[i].clock);
      for (std::size_t i = 0; i < of_rank; ++i) {
        const std::size_t id = rank * of_rank + i;
        start(id, before, {static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(i / options_.threads),
                           static_cast<std::uint32_t>(i % options_.threads)});
        fibers_[id].state = i < room ? State::runnable : State::waiting_for_room;
      }
    }
    for (Barrier& barrier : barriers_) barrier = {};
    for (Barrier& barrier : launches_) barrier = {};
    idle_ = 0;
  }

  void start(std::size_t id, const VectorClock& before, const Place& place) {
    Fiber& fiber = fibers_[id];
    fiber.place = place;
    fiber.clock = before;
    fiber.started = options_.launch_is_fence ? std::make_shared<const VectorClock>(before) : nullptr;
    fiber.at = nullptr;
    fiber.calls = 0;
    tick(id);
    if (!fiber.stack) fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, &World::enter, 0);
  }

  static void enter() {
    World& me = *world;
    (*me.kernel_)(me.place());
    me.fibers_[me.current_].state = State::ended;
    // uc_link leads back to the scheduler.
  }

  void end_of_fiber() {
    --live_;
    changed();
    const std::size_t of_rank = static_cast<std::size_t>(options_.blocks) * options_.threads;
    const std::size_t block = current_ / options_.threads * options_.threads;
    for (std::size_t i = block; i < block + options_.threads; ++i)
      if (fibers_[i].state != State::ended) return;
    const std::size_t rank = current_ / of_rank * of_rank;  // the block has left: the next one of its rank gets its room
    for (std::size_t i = rank; i < rank + of_rank; ++i)
      if (fibers_[i].state == State::waiting_for_room) {
        for (std::size_t k = i; k < i + options_.threads; ++k) fibers_[k].state = State::runnable;
        return;
      }
  }

  std::size_t next_runnable() {
    if (fibers_[current_].state != State::runnable) {
      runnable_.clear();
      for (std::size_t i = 0; i < fibers_.size(); ++i)
        if (fibers_[i].state == State::runnable) runnable_.push_back(i);
      if (runnable_.empty()) {  // all stand in barriers that some have left for good
        result_.deadlock = "every thread that is left stands in a block barrier that others of its block will not reach";
        return current_;
      }
      return runnable_[chooser_.choose(static_cast<std::uint32_t>(runnable_.size()))];
    }
    runnable_.assign(1, current_);  // 0: go on
    for (std::size_t i = 0; i < fibers_.size(); ++i)
      if (i != current_ && fibers_[i].state == State::runnable) runnable_.push_back(i);
    // Who spins hands over in turn, so that a depth-first run ends.
    if (fibers_[current_].looks > 0 && runnable_.size() > 1) {
      for (std::size_t k = 1; k < runnable_.size(); ++k)
        if (runnable_[k] > current_) {
          std::swap(runnable_[0], runnable_[k]);
          break;
        }
      if (runnable_[0] == current_) std::swap(runnable_[0], runnable_[1]);
    }
    return runnable_[chooser_.choose(static_cast<std::uint32_t>(runnable_.size()))];
  }

  void yield() {
    swapcontext(&fibers_[current_].context, &scheduler_);
  }

  void step() {
    ++result_.primitives;
    yield();
  }

  void changed() {
    idle_ = 0;
    for (Fiber& fiber : fibers_) fiber.looks = 0, fiber.calm = false;
  }

  template <class T>
  History& history_of(const T* address, T now) {
    History& history = histories_[address];
    if (history.messages.empty()) {
      history.messages.push_back({static_cast<std::uint64_t>(now), 0, 0, {}, nullptr, {}});
      history.seen.assign(fibers_.size(), 0);
    }
    return history;
  }

  void append(History& history, std::uint64_t value, VectorClock released) {
    Fiber& me = fibers_[current_];
    history.messages.push_back({value, static_cast<std::uint32_t>(current_), me.clock[current_], std::move(released), me.started, {}});
    if (packets_) {
      history.messages.back().taken = me.taken;
      join(history.messages.back().taken, me.clock);
    }
    tick(current_);
    history.seen[current_] = history.first + history.messages.size() - 1;
    if (history.messages.size() > kMostMessages) {
      history.messages.erase(history.messages.begin());
      ++history.first;
    }
    changed();
  }

  /// body(cell) of each cell of the heap that a place touches; none in a thread's own memory.
  template <class Body>
  void each_cell(const void* p, std::size_t bytes, Body body) {
    const auto* const begin = reinterpret_cast<const std::byte*>(heap_.data());
    const auto* const address = static_cast<const std::byte*>(p);
    const std::size_t offset = static_cast<std::size_t>(address - begin);
    if (address < begin || offset + bytes > options_.ranks * options_.heap_bytes) return;
    const std::size_t last = (offset + bytes - 1) / options_.granule_bytes;
    for (std::size_t cell = offset / options_.granule_bytes; cell <= last; ++cell) body(cell);
  }

  void check(const void* p, std::size_t bytes, bool store) {
    ++result_.primitives;
    const Fiber& me = fibers_[current_];
    each_cell(p, bytes, [&](std::size_t cell) {
      const Epoch write = writes_[cell];
      if (write.clock > me.clock[write.writer]) race(cell, write.writer, store ? "stored by two" : "read while it is stored", store);
      std::uint32_t* const reads = reads_.data() + cell * fibers_.size();
      if (!store) {
        reads[current_] = me.clock[current_];
        return;
      }
      for (std::size_t i = 0; i < fibers_.size(); ++i)
        if (reads[i] > me.clock[i] && i != current_) race(cell, static_cast<std::uint32_t>(i), "stored while it is read", store);
      writes_[cell] = {static_cast<std::uint32_t>(current_), me.clock[current_]};
    });
  }

  void race(std::size_t cell, std::uint32_t other, const char* how, bool store) {
    if (result_.races.size() >= kMostRaces) return;
    const std::size_t offset = cell * options_.granule_bytes;
    std::ostringstream said;
    said << "byte " << offset % options_.heap_bytes << " of rank " << offset / options_.heap_bytes << "'s heap is " << how << ": "
         << fibers_[current_].place << (store ? " stores" : " loads") << (fibers_[current_].at ? " in " : "")
         << (fibers_[current_].at ? fibers_[current_].at : "") << ", " << fibers_[other].place << " is not ordered before it";
    result_.races.push_back(said.str());
  }

  Options options_;
  Chooser& chooser_;
  std::vector<Line> heap_;
  std::vector<Fiber> fibers_;
  std::vector<Barrier> barriers_;
  std::vector<Barrier> launches_;
  std::unordered_map<const void*, History> histories_;
  std::vector<Epoch> writes_;
  std::vector<std::uint32_t> reads_;
  std::vector<std::size_t> runnable_;
  const std::function<void(const Place&)>* kernel_ = nullptr;
  ucontext_t scheduler_{};
  std::size_t current_ = 0;
  std::size_t live_ = 0;
  std::uint64_t idle_ = 0;
  bool packets_ = false;
  Result result_;
};

}  // namespace busbw::device::sim
