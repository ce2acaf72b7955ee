/// Events in the order (time, sequence): those of one time come in the order in which they were pushed.
///
/// A radix heap (Ahuja, Mehlhorn, Orlin, Tarjan, "Faster algorithms for the shortest path problem", 1990): what is pushed is never earlier
/// than what was popped last, so an event waits in the bucket of the highest bit in which its time differs from that. Equal times share a
/// bucket and stay in order when it is dealt out, so no sequence number is stored. An Event with a method `bool join(const Event& next)` may take
/// in one that is pushed for the same time right after it: a million messages that end together are one item.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "busbw/sim/time.hpp"

namespace busbw::sim {

template <class Event>
class EventQueue {
 public:
  /// Throws std::logic_error for a time before the last one found.
  void push(Picoseconds time, Event event) {
    if (time < last_) throw std::logic_error("an event lies in the past");
    const std::size_t bucket = bucket_of(time);
    if constexpr (requires(Event last) { last.join(event); }) {
      std::vector<Item>& items = buckets_[bucket];
      if (items.size() > (bucket == 0 ? taken_ : 0) && items.back().time == time && items.back().event.join(event)) return;
    }
    buckets_[bucket].push_back({time, event});
    if (bucket != 0) filled_ |= std::uint64_t{1} << (bucket - 1);
    ++size_;
  }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }

  /// Whether an event of the time popped last waits.
  bool more_now() const { return taken_ < buckets_[0].size(); }

  /// The earliest time; kNever if there is none. What it finds becomes the time before which nothing may be pushed.
  Picoseconds next_time() {
    if (size_ == 0) return kNever;
    if (taken_ == buckets_[0].size()) deal();
    return last_;
  }

  /// The first event at next_time(), which must not be kNever.
  Event pop() {
    if (taken_ == buckets_[0].size()) deal();
    --size_;
    return buckets_[0][taken_++].event;
  }

  /// Every event that waits, in no order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
      for (std::size_t i = bucket == 0 ? taken_ : 0; i < buckets_[bucket].size(); ++i) visit(buckets_[bucket][i].time, buckets_[bucket][i].event);
  }

  /// The clock and all waiting events that `moves` picks go on by a time; the others stay, and must not be before the clock then.
  template <class Moves>
  void shift(Picoseconds by, Moves moves) {
    std::vector<Item> items;
    items.reserve(size_);
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      for (std::size_t i = bucket == 0 ? taken_ : 0; i < buckets_[bucket].size(); ++i) items.push_back(buckets_[bucket][i]);
      buckets_[bucket].clear();
    }
    taken_ = size_ = 0;
    filled_ = 0;
    last_ = last_ + by;
    for (const Item& item : items) push(moves(item.event) ? item.time + by : item.time, item.event);
  }

 private:
  struct Item {
    Picoseconds time;
    Event event;
  };

  std::size_t bucket_of(Picoseconds time) const {
    return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(count(time)) ^ static_cast<std::uint64_t>(count(last_))));
  }

  /// Deals out the lowest filled bucket around its earliest time, which fills bucket 0.
  void deal() {
    buckets_[0].clear();
    taken_ = 0;
    const auto bucket = static_cast<std::size_t>(std::countr_zero(filled_)) + 1;
    std::vector<Item>& from = buckets_[bucket];
    Picoseconds least = from.front().time;
    for (const Item& item : from)
      if (item.time < least) least = item.time;
    last_ = least;
    filled_ &= ~(std::uint64_t{1} << (bucket - 1));
    for (const Item& item : from) {
      const std::size_t to = bucket_of(item.time);
      buckets_[to].push_back(item);
      if (to != 0) filled_ |= std::uint64_t{1} << (to - 1);
    }
    from.clear();
  }

  std::array<std::vector<Item>, 65> buckets_;
  std::uint64_t filled_ = 0;  ///< bit b - 1: bucket b is not empty
  std::size_t taken_ = 0;     ///< of bucket 0
  std::size_t size_ = 0;
  Picoseconds last_{0};
};

}  // namespace busbw::sim
