/// Pending events in order (time, sequence), for events that lie close together: a wheel of slots, a coarser one, and a heap for what is far.
///
/// A slot of the wheel is about a nanosecond wide and holds a chain of chunks; it is sorted only when its time comes, so that adding an event
/// costs the same whether ten or a million are pending. Events of equal time come out in the order in which they were added.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "busbw/sim/time.hpp"

namespace busbw::sim::packet {

/// What happens: 4 bits of kind, 28 bits of whom it concerns.
struct Event {
  Picoseconds time;
  std::uint32_t what;

  static constexpr std::uint32_t kIndexBits = 28;
  static constexpr std::uint32_t kLargestIndex = (1U << kIndexBits) - 1;
  static constexpr std::uint32_t kind(std::uint32_t what) { return what >> kIndexBits; }
  static constexpr std::uint32_t index(std::uint32_t what) { return what & kLargestIndex; }
};

class EventWheel {
 public:
  EventWheel() {
    near_.fill(kNone);
    far_.fill(kNone);
  }

  bool empty() const { return pending_ == 0; }
  std::size_t pending() const { return pending_; }
  std::size_t bytes() const { return chunks_.capacity() * sizeof(Chunk) + (pool_.capacity() + beyond_.capacity()) * sizeof(Node) + sizeof(*this); }

  /// An event at a time not before that of the last one popped.
  void push(Picoseconds time, std::uint32_t what) {
    ++pending_;
    const std::int64_t slot = count(time) >> kSlotShift;
    if (slot > slot_ && slot < near_end_) [[likely]]
      put_near(slot, key(time, what));
    else
      push_elsewhere(time, what);
  }

  /// The next event. Precondition: not empty.
  Event pop() {
    if (batch_next_ == batch_.size()) refill();
    --pending_;
    const std::uint64_t next = batch_[batch_next_++];
    return {Picoseconds{(slot_ << kSlotShift) + static_cast<std::int64_t>(next >> kTimeShift)}, static_cast<std::uint32_t>(next)};
  }

  /// Events that come after the one popped last and lie in its slot, for prefetching: whether there are that many, and what one is.
  bool has_ahead(std::size_t ahead) const { return batch_next_ + ahead < batch_.size(); }
  std::uint32_t ahead(std::size_t ahead) const { return static_cast<std::uint32_t>(batch_[batch_next_ + ahead]); }
  /// Whether the event popped last was the first of its slot.
  bool slot_begins() const { return batch_next_ == 1; }
  /// What happens in the slot after the one being emptied, in no order; at most `most` of it.
  template <class Look>
  void look_into_next_slot(std::size_t most, Look look) const {
    const auto half = static_cast<std::size_t>(slot_ & kNearMask & ~kTurnMask);
    const std::size_t slot = next_used(near_used_, static_cast<std::size_t>(slot_ & kNearMask) + 1, half + kTurn);
    if (slot >= half + kTurn) return;
    for (std::uint32_t chunk = near_[slot]; chunk != kNone && most > 0; chunk = chunks_[chunk].next)
      for (std::uint32_t i = 0; i < chunks_[chunk].used && most > 0; ++i, --most) look(static_cast<std::uint32_t>(chunks_[chunk].keys[i]));
  }

 private:
  static constexpr std::int64_t kSlotShift = 10;  // 1.024 ns
  static constexpr std::int64_t kTurnBits = 12;   // 4096 slots, 4.2 us a turn; 4096 turns, 17 ms, of the coarse wheel
  static constexpr std::size_t kTurn = std::size_t{1} << kTurnBits;
  static constexpr std::int64_t kTurnMask = kTurn - 1;
  static constexpr std::int64_t kNearMask = 2 * kTurn - 1;
  static constexpr std::uint32_t kNone = ~0U;
  // A key is the time within its slot, the place in the slot, and what happens: sorted as a number it is in order.
  static constexpr std::uint32_t kTimeShift = 64 - kSlotShift;
  static constexpr std::uint32_t kPlaceShift = 32;
  static constexpr std::uint64_t kPlaces = std::uint64_t{1} << (kTimeShift - kPlaceShift);

  static constexpr std::uint64_t key(Picoseconds time, std::uint32_t what) {
    return static_cast<std::uint64_t>(count(time) & ((std::int64_t{1} << kSlotShift) - 1)) << kTimeShift | what;
  }

  static constexpr std::uint32_t kChunk = 7;
  struct alignas(64) Chunk {
    std::uint32_t next;  ///< the chunk filled before
    std::uint32_t used;
    std::array<std::uint64_t, kChunk> keys;
  };
  struct Node {
    Picoseconds time;
    std::uint32_t what;
    std::uint32_t next;  ///< of the list of a turn; in the heap the sequence
  };

  /// What is due in the slot being emptied, or beyond the fine wheel. Kept apart so that `push` stays small.
  [[gnu::noinline]] void push_elsewhere(Picoseconds time, std::uint32_t what) {
    const std::int64_t slot = count(time) >> kSlotShift;
    if (slot <= slot_) {
      insert_into_batch(time, what);
    } else if (slot >> (2 * kTurnBits) == slot_ >> (2 * kTurnBits)) {
      put_far(static_cast<std::size_t>((slot >> kTurnBits) & kTurnMask), take_node(time, what));
    } else {
      beyond_.push_back({time, what, sequence_++});
      std::push_heap(beyond_.begin(), beyond_.end(), later);
    }
  }

  static bool later(const Node& a, const Node& b) { return a.time != b.time ? a.time > b.time : a.next > b.next; }

  void put_near(std::int64_t slot, std::uint64_t what) {
    const auto at = static_cast<std::size_t>(slot & kNearMask);
    const std::uint32_t chunk = near_[at];
    if (chunk == kNone || chunks_[chunk].used == kChunk) {
      begin_chunk(at, what);
      return;
    }
    Chunk& into = chunks_[chunk];
    into.keys[into.used++] = what;
  }

  [[gnu::noinline]] void begin_chunk(std::size_t at, std::uint64_t what) {
    const std::uint32_t chunk = take_chunk();
    chunks_[chunk].next = near_[at];
    chunks_[chunk].used = 1;
    chunks_[chunk].keys[0] = what;
    near_[at] = chunk;
    near_used_[at / 64] |= std::uint64_t{1} << (at % 64);
  }

  std::uint32_t take_chunk() {
    if (free_chunk_ == kNone) {
      chunks_.emplace_back();
      return static_cast<std::uint32_t>(chunks_.size() - 1);
    }
    const std::uint32_t chunk = free_chunk_;
    free_chunk_ = chunks_[chunk].next;
    return chunk;
  }

  std::uint32_t take_node(Picoseconds time, std::uint32_t what) {
    if (free_node_ == kNone) {
      pool_.push_back({time, what, kNone});
      return static_cast<std::uint32_t>(pool_.size() - 1);
    }
    const std::uint32_t node = free_node_;
    free_node_ = pool_[node].next;
    pool_[node] = {time, what, kNone};
    return node;
  }

  void put_far(std::size_t turn, std::uint32_t node) {
    pool_[node].next = far_[turn];
    far_[turn] = node;
    far_used_[turn / 64] |= std::uint64_t{1} << (turn % 64);
  }

  /// The first bit set from `from` to before `to`, `to` if none.
  template <std::size_t Words>
  static std::size_t next_used(const std::array<std::uint64_t, Words>& used, std::size_t from, std::size_t to) {
    while (from < to) {
      const std::uint64_t bits = used[from / 64] >> (from % 64);
      if (bits != 0) return std::min(to, from + static_cast<std::size_t>(std::countr_zero(bits)));
      from = (from / 64 + 1) * 64;
    }
    return to;
  }

  void insert_into_batch(Picoseconds time, std::uint32_t what) {
    const std::uint64_t next = key(time, what) | place_++ << kPlaceShift;
    if (place_ == kPlaces) renumber();
    std::size_t at = batch_.size();
    batch_.push_back(next);
    while (at > batch_next_ && batch_[at - 1] > next) {
      batch_[at] = batch_[at - 1];
      --at;
    }
    batch_[at] = next;
  }

  /// More than 4 million events in one slot: places begin anew, in the order that stands.
  void renumber() {
    batch_.erase(batch_.begin(), batch_.begin() + static_cast<std::ptrdiff_t>(batch_next_));
    batch_next_ = 0;
    place_ = 0;
    if (batch_.size() >= kPlaces / 2) throw std::length_error("more than two million events within a nanosecond");
    for (std::uint64_t& one : batch_) one = (one & ~((kPlaces - 1) << kPlaceShift)) | place_++ << kPlaceShift;
  }

  /// Takes the next slot in use into the batch.
  void refill() {
    batch_.clear();
    batch_next_ = 0;
    for (;;) {
      // What is left of this turn, which lies in one half of the wheel.
      const auto half = static_cast<std::size_t>(slot_ & kNearMask & ~kTurnMask);
      const std::size_t slot = next_used(near_used_, static_cast<std::size_t>(slot_ & kNearMask), half + kTurn);
      if (slot < half + kTurn) {
        slot_ = (slot_ & ~kTurnMask) | static_cast<std::int64_t>(slot - half);
        empty_slot(slot);
        return;
      }
      turn();
    }
  }

  /// Goes to the next turn in which something may be. The one after it comes within reach of the wheel.
  void turn() {
    const std::size_t other = static_cast<std::size_t>(slot_ & kNearMask & ~kTurnMask) ^ kTurn;
    const std::int64_t at = slot_ >> kTurnBits;
    if (next_used(near_used_, other, other + kTurn) < other + kTurn) {
      begin_turn(at + 1);
      return;
    }
    // The other half is empty: on to the next turn of the coarse wheel, or of the heap.
    const std::size_t next = next_used(far_used_, static_cast<std::size_t>(at & kTurnMask) + 1, kTurn);
    if (next < kTurn)
      begin_turn((at & ~kTurnMask) + static_cast<std::int64_t>(next));
    else if ((at & kTurnMask) == kTurnMask || beyond_.empty())
      begin_turn(at + 1);
    else
      begin_turn(count(beyond_.front().time) >> (kSlotShift + kTurnBits));
  }

  void begin_turn(std::int64_t turn) {
    slot_ = turn << kTurnBits;
    near_end_ = (turn + 2) << kTurnBits;
    take_from_heap(turn >> kTurnBits);
    spread(turn);
    take_from_heap((turn + 1) >> kTurnBits);
    spread(turn + 1);
  }

  /// Puts what the heap holds of a round of the coarse wheel there.
  void take_from_heap(std::int64_t round) {
    while (!beyond_.empty() && count(beyond_.front().time) >> (kSlotShift + 2 * kTurnBits) == round) {
      const Node first = beyond_.front();
      std::pop_heap(beyond_.begin(), beyond_.end(), later);
      beyond_.pop_back();
      put_far(static_cast<std::size_t>((count(first.time) >> (kSlotShift + kTurnBits)) & kTurnMask), take_node(first.time, first.what));
    }
  }

  /// What the coarse wheel holds of a turn goes into the fine one, before anything is added there directly.
  void spread(std::int64_t turn) {
    const auto at = static_cast<std::size_t>(turn & kTurnMask);
    std::uint32_t list = kNone;
    for (std::uint32_t node = far_[at]; node != kNone;) {  // the list has the latest first
      const std::uint32_t next = pool_[node].next;
      pool_[node].next = list;
      list = node;
      node = next;
    }
    far_[at] = kNone;
    far_used_[at / 64] &= ~(std::uint64_t{1} << (at % 64));
    while (list != kNone) {
      const std::uint32_t node = list;
      list = pool_[node].next;
      put_near(count(pool_[node].time) >> kSlotShift, key(pool_[node].time, pool_[node].what));
      pool_[node].next = free_node_;
      free_node_ = node;
    }
  }

  void empty_slot(std::size_t slot) {
    // Chunks come latest first; keys within one are in order.
    std::uint32_t first = kNone;
    for (std::uint32_t chunk = near_[slot]; chunk != kNone;) {
      const std::uint32_t next = chunks_[chunk].next;
      chunks_[chunk].next = first;
      first = chunk;
      chunk = next;
    }
    near_[slot] = kNone;
    near_used_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
    place_ = 0;
    while (first != kNone) {
      const Chunk& chunk = chunks_[first];
      if (place_ + kChunk >= kPlaces) {
        std::sort(batch_.begin(), batch_.end());
        renumber();
      }
      const std::size_t from = batch_.size();
      batch_.resize(from + chunk.used);
      for (std::uint32_t i = 0; i < chunk.used; ++i) batch_[from + i] = chunk.keys[i] | (place_ + i) << kPlaceShift;
      place_ += chunk.used;
      const std::uint32_t next = chunk.next;
      chunks_[first].next = free_chunk_;
      free_chunk_ = first;
      first = next;
    }
    if (batch_.size() > kInsertionSort) {
      std::sort(batch_.begin(), batch_.end());
      return;
    }
    for (std::size_t i = 1; i < batch_.size(); ++i) {
      const std::uint64_t one = batch_[i];
      std::size_t at = i;
      for (; at > 0 && batch_[at - 1] > one; --at) batch_[at] = batch_[at - 1];
      batch_[at] = one;
    }
  }

  static constexpr std::size_t kInsertionSort = 32;  // a guess; above it a general sort wins

  std::int64_t slot_ = 0;
  std::int64_t near_end_ = 2 * static_cast<std::int64_t>(kTurn);  ///< the first slot beyond the fine wheel
  std::size_t pending_ = 0;
  std::uint64_t place_ = 0;            ///< keys of this slot so far
  std::vector<std::uint64_t> batch_;   ///< the slot being emptied, in order
  std::size_t batch_next_ = 0;
  std::array<std::uint32_t, 2 * kTurn> near_;  ///< this turn and the next
  std::array<std::uint32_t, kTurn> far_;
  std::array<std::uint64_t, 2 * kTurn / 64> near_used_{};
  std::array<std::uint64_t, kTurn / 64> far_used_{};
  std::vector<Chunk> chunks_;
  std::uint32_t free_chunk_ = kNone;
  std::vector<Node> pool_;
  std::uint32_t free_node_ = kNone;
  std::uint32_t sequence_ = 0;
  std::vector<Node> beyond_;
};

}  // namespace busbw::sim::packet
