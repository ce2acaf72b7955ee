/// Vector clocks of actors, and the last accesses of a place: what happened before what.
///
/// Only actors that can race get a dimension; where plans use packets, a second one for what they read: a packet tells that its writer has
/// read what it sends, but nothing of what its writer wrote. What a message carries is a shared snapshot of the sender's clock, made again only when
/// the sender has learnt something since; the sender's own time travels beside it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace busbw::schedule {

using Time = std::uint32_t;
inline constexpr std::uint32_t kNoDimension = ~std::uint32_t{0};

/// Snapshots of clocks, counted by reference.
class SnapshotPool {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNone = ~Id{0};

  explicit SnapshotPool(std::size_t dimensions) : dimensions_(dimensions) {}

  Id make(const std::vector<Time>& clock) {
    Id id;
    if (free_.empty()) {
      id = static_cast<Id>(held_.size());
      held_.push_back({});
    } else {
      id = free_.back();
      free_.pop_back();
    }
    held_[id].clock.assign(clock.begin(), clock.begin() + static_cast<std::ptrdiff_t>(dimensions_));
    held_[id].users = 1;
    return id;
  }
  Id share(Id id) {
    if (id != kNone) ++held_[id].users;
    return id;
  }
  void drop(Id id) {
    if (id != kNone && --held_[id].users == 0) free_.push_back(id);
  }
  const std::vector<Time>& clock(Id id) const { return held_[id].clock; }

 private:
  struct Held {
    std::vector<Time> clock;
    std::uint32_t users = 0;
  };
  std::size_t dimensions_;
  std::vector<Held> held_;
  std::vector<Id> free_;
};

/// What a release hands to the acquire that meets it.
struct Knowledge {
  SnapshotPool::Id snapshot = SnapshotPool::kNone;
  std::uint32_t dimension = kNoDimension;  ///< of the releasing actor
  Time time = 0;                           ///< up to which its own events are covered
  std::uint32_t read_dimension = kNoDimension;
  Time read_time = 0;                      ///< up to which its own reads are covered
};

/// One access: who, when, and a token that says where in the plan.
struct Access {
  std::uint32_t dimension = kNoDimension;  ///< of the actor's reads for a read
  Time time = 0;
  std::uint64_t token = 0;
};

/// The clock of one actor.
class Clock {
 public:
  static constexpr Time kAlways = ~Time{0};

  /// own_ordered: up to which time the actor's own events are ordered among themselves; kAlways if it is one thread.
  Clock(std::size_t dimensions, std::uint32_t own, std::uint32_t own_reads, Time own_ordered)
      : seen_(dimensions), own_(own), own_reads_(own_reads), own_ordered_(own_ordered) {}

  bool knows(const Access& access) const {
    const bool mine = access.dimension == own_ || access.dimension == own_reads_;
    return seen_[access.dimension] >= access.time || (mine && own_ordered_ >= access.time);
  }
  void order_own(Time time) { own_ordered_ = std::max(own_ordered_, time); }

  /// Everything known so far, and the actor's own events up to time.
  Knowledge release(SnapshotPool& pool, Time time) { return release(pool, time, time); }
  Knowledge release(SnapshotPool& pool, Time time, Time read_time) {
    if (snapshot_ == SnapshotPool::kNone) snapshot_ = pool.make(seen_);
    return {pool.share(snapshot_), own_, time, own_reads_, read_time};
  }
  void acquire(SnapshotPool& pool, const Knowledge& from) {
    bool learnt = false;
    if (from.snapshot != SnapshotPool::kNone && from.snapshot != snapshot_) learnt = raise(pool.clock(from.snapshot));
    for (const auto& [dimension, time] : {std::pair{from.dimension, from.time}, std::pair{from.read_dimension, from.read_time}})
      if (dimension != kNoDimension && dimension != own_ && dimension != own_reads_ && seen_[dimension] < time) {
        seen_[dimension] = time;
        learnt = true;
      }
    if (learnt) forget_snapshot(pool);
  }
  void acquire(SnapshotPool& pool, const Clock& from) {
    if (raise(from.seen_)) forget_snapshot(pool);
  }

 private:
  bool raise(const std::vector<Time>& other) {
    Time* mine = seen_.data();
    const Time* theirs = other.data();
    Time more = 0;
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      more |= static_cast<Time>(theirs[i] > mine[i]);
      mine[i] = std::max(mine[i], theirs[i]);
    }
    return more != 0;
  }
  void forget_snapshot(SnapshotPool& pool) {
    pool.drop(snapshot_);
    snapshot_ = SnapshotPool::kNone;
  }

  std::vector<Time> seen_;
  std::uint32_t own_;
  std::uint32_t own_reads_;
  Time own_ordered_;
  SnapshotPool::Id snapshot_ = SnapshotPool::kNone;
};

/// The last write of a place and the reads since. An access is compared with those that could race with it; the first race is enough,
/// because ordered accesses are ordered with all before (FastTrack, Flanagan and Freund, PLDI 2009).
class History {
 public:
  /// The access that races with this read, if any. arrived: the write whose arrival the reader has seen for itself.
  const Access* read(const Access& access, const Clock& clock, const Access* arrived = nullptr) {
    const bool seen = arrived != nullptr && arrived->dimension == write_.dimension && arrived->time == write_.time;
    const Access* race = seen ? nullptr : unordered(write_, access, clock);
    for (auto& known : reads_)
      if (known.dimension == access.dimension) {
        known = access;
        return race;
      }
    reads_.push_back(access);
    return race;
  }
  /// The access that races with this write, if any.
  const Access* write(const Access& access, const Clock& clock) {
    raced_ = Access{};
    if (const Access* race = unordered(write_, access, clock)) raced_ = *race;
    for (const auto& read : reads_)
      if (raced_.dimension == kNoDimension)
        if (const Access* race = unordered(read, access, clock)) raced_ = *race;
    reads_.clear();
    write_ = access;
    return raced_.dimension == kNoDimension ? nullptr : &raced_;
  }

 private:
  /// Accesses of one instruction are ordered: each thread moves its own elements.
  static const Access* unordered(const Access& before, const Access& now, const Clock& clock) {
    if (before.dimension == kNoDimension || (before.token == now.token && before.time == now.time)) return nullptr;
    return clock.knows(before) ? nullptr : &before;
  }
  Access write_;
  Access raced_;
  std::vector<Access> reads_;
};

}  // namespace busbw::schedule
