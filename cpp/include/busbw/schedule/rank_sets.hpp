/// Sets of ranks by number: equal sets have equal numbers. A set is a sorted list of intervals, because collectives make few.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace busbw::schedule {

/// Scrambles 64 bits. Source: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
constexpr std::uint64_t scrambled(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class RankSets {
 public:
  using Id = std::uint32_t;
  struct Interval {
    std::int32_t first;
    std::int32_t last;  ///< one past the end
    bool operator==(const Interval&) const = default;
  };
  static constexpr Id kEmpty = 0;

  RankSets() { begin_.push_back(0); add({}); }

  Id one(std::int32_t rank) {
    const Interval interval{rank, rank + 1};
    return add({&interval, 1});
  }

  /// Both together; nothing if they share a rank.
  std::optional<Id> disjoint_union(Id a, Id b) {
    joined_.clear();
    const auto first = of(a);
    const auto second = of(b);
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < first.size() || j < second.size()) {
      const bool from_first = j == second.size() || (i < first.size() && first[i].first < second[j].first);
      const Interval next = from_first ? first[i++] : second[j++];
      if (!joined_.empty() && next.first < joined_.back().last) return std::nullopt;
      if (!joined_.empty() && next.first == joined_.back().last)
        joined_.back().last = next.last;
      else
        joined_.push_back(next);
    }
    return add(joined_);
  }

  std::span<const Interval> of(Id id) const { return {arena_.data() + begin_[id], begin_[id + 1] - begin_[id]}; }

 private:
  Id add(std::span<const Interval> intervals) {
    std::uint64_t hash = intervals.size();
    for (const auto& i : intervals)
      hash = scrambled(hash ^ (static_cast<std::uint64_t>(static_cast<std::uint32_t>(i.first)) << 32 | static_cast<std::uint32_t>(i.last)));
    if (table_.size() < 2 * begin_.size()) grow();
    for (std::size_t at = hash & (table_.size() - 1);; at = (at + 1) & (table_.size() - 1)) {
      if (table_[at].set == kNone) {
        const Id id = static_cast<Id>(begin_.size() - 1);
        table_[at] = {hash, id};
        arena_.insert(arena_.end(), intervals.begin(), intervals.end());
        begin_.push_back(arena_.size());
        return id;
      }
      if (table_[at].hash == hash && std::ranges::equal(of(table_[at].set), intervals)) return table_[at].set;
    }
  }

  void grow() {
    std::vector<Slot> old(std::max<std::size_t>(64, table_.size() * 2));
    old.swap(table_);
    for (const auto& slot : old) {
      if (slot.set == kNone) continue;
      std::size_t at = slot.hash & (table_.size() - 1);
      while (table_[at].set != kNone) at = (at + 1) & (table_.size() - 1);
      table_[at] = slot;
    }
  }

  static constexpr Id kNone = ~Id{0};
  struct Slot {
    std::uint64_t hash = 0;
    Id set = kNone;
  };
  std::vector<Interval> arena_;
  std::vector<std::size_t> begin_;
  std::vector<Slot> table_;
  std::vector<Interval> joined_;
};

}  // namespace busbw::schedule
