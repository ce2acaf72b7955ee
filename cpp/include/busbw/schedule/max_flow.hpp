// Maximum flow by Dinic's algorithm: shortest augmenting paths, all of one length at a time.
//
// E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970. Fabrics are
// shallow, so a flow takes a handful of rounds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace busbw::schedule {

/// A network whose arcs are fixed and whose capacities may be set again and again. Flow: a signed integer type in which the
/// sum of all capacities at the source fits.
template <class Flow>
class MaxFlow {
 public:
  explicit MaxFlow(std::size_t vertices) : vertices_(vertices) {}

  /// Adds an arc and its reverse of capacity 0; returns its number. All arcs come before the first flow.
  std::size_t add(std::int32_t from, std::int32_t to) {
    from_.push_back(from);
    to_.push_back(to);
    return from_.size() - 1;
  }

  /// Sets what arc i may carry, and takes back any flow on it.
  void set(std::size_t arc, Flow capacity) {
    if (begin_.empty()) arrange();
    left_[place_[2 * arc]] = capacity;
    left_[place_[2 * arc + 1]] = 0;
  }

  /// The largest flow from s to t under the capacities set; stops at `enough`.
  Flow run(std::int32_t s, std::int32_t t, Flow enough) {
    if (begin_.empty()) arrange();
    Flow total = 0;
    while (total < enough && levels(s, t)) {
      std::copy(begin_.begin(), begin_.end() - 1, next_.begin());
      total += blocking(s, t, enough - total);
    }
    return total;
  }

  /// What arc i carries after a run.
  [[nodiscard]] Flow flow(std::size_t arc) const { return left_[place_[2 * arc + 1]]; }

  /// After a run that did not reach `enough`: the vertices on the source's side of a least cut, the smallest such side.
  [[nodiscard]] std::vector<std::uint8_t> source_side(std::int32_t s) const {
    std::vector<std::uint8_t> side(vertices_, 0);
    std::vector<std::int32_t> queue{s};
    side[static_cast<std::size_t>(s)] = 1;
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const auto v = static_cast<std::size_t>(queue[head]);
      for (auto i = begin_[v]; i < begin_[v + 1]; ++i)
        if (left_[i] > 0 && !side[static_cast<std::size_t>(head_[i])]) {
          side[static_cast<std::size_t>(head_[i])] = 1;
          queue.push_back(head_[i]);
        }
    }
    return side;
  }

 private:
  void arrange() {
    const std::size_t arcs = from_.size();
    begin_.assign(vertices_ + 1, 0);
    for (std::size_t a = 0; a < arcs; ++a) {
      ++begin_[static_cast<std::size_t>(from_[a]) + 1];
      ++begin_[static_cast<std::size_t>(to_[a]) + 1];
    }
    for (std::size_t v = 0; v < vertices_; ++v) begin_[v + 1] += begin_[v];
    std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
    place_.resize(2 * arcs);
    head_.resize(2 * arcs);
    back_.resize(2 * arcs);
    left_.assign(2 * arcs, 0);
    for (std::size_t a = 0; a < arcs; ++a) {
      const std::size_t there = next[static_cast<std::size_t>(from_[a])]++;
      const std::size_t here = next[static_cast<std::size_t>(to_[a])]++;
      place_[2 * a] = there;
      place_[2 * a + 1] = here;
      head_[there] = to_[a];
      head_[here] = from_[a];
      back_[there] = here;
      back_[here] = there;
    }
    level_.resize(vertices_);
    next_.resize(vertices_);
  }

  /// Distances to t along arcs with room, found from t backwards: only what can still reach t is ever looked at.
  bool levels(std::int32_t s, std::int32_t t) {
    std::fill(level_.begin(), level_.end(), -1);
    queue_.assign(1, t);
    level_[static_cast<std::size_t>(t)] = 0;
    for (std::size_t head = 0; head < queue_.size(); ++head) {
      const auto v = static_cast<std::size_t>(queue_[head]);
      if (queue_[head] == s) return true;
      for (auto i = begin_[v]; i < begin_[v + 1]; ++i) {
        const auto u = static_cast<std::size_t>(head_[i]);
        if (level_[u] < 0 && left_[back_[i]] > 0) {
          level_[u] = level_[v] + 1;
          queue_.push_back(head_[i]);
        }
      }
    }
    return level_[static_cast<std::size_t>(s)] >= 0;
  }

  /// A flow that blocks every shortest path, by depth-first search without recursion.
  Flow blocking(std::int32_t s, std::int32_t t, Flow limit) {
    Flow total = 0;
    path_.clear();
    std::int32_t v = s;
    while (total < limit) {
      if (v == t) {
        Flow amount = limit - total;
        for (const auto i : path_) amount = std::min(amount, left_[i]);
        total += amount;
        std::size_t keep = path_.size();
        for (std::size_t p = path_.size(); p-- > 0;) {
          left_[path_[p]] -= amount;
          left_[back_[path_[p]]] += amount;
          if (left_[path_[p]] == 0) keep = p;
        }
        if (keep < path_.size()) {
          v = head_[back_[path_[keep]]];
          path_.resize(keep);
        } else {
          break;  // the limit is reached
        }
        continue;
      }
      const auto at = static_cast<std::size_t>(v);
      bool advanced = false;
      for (auto& i = next_[at]; i < begin_[at + 1]; ++i)
        if (left_[i] > 0 && level_[static_cast<std::size_t>(head_[i])] == level_[at] - 1) {
          path_.push_back(i);
          v = head_[i];
          advanced = true;
          break;
        }
      if (advanced) continue;
      if (path_.empty()) break;
      level_[at] = std::numeric_limits<std::int32_t>::max();
      const auto last = path_.back();
      path_.pop_back();
      v = head_[back_[last]];
      ++next_[static_cast<std::size_t>(v)];
    }
    return total;
  }

  std::size_t vertices_;
  std::vector<std::int32_t> from_, to_;
  std::vector<std::size_t> begin_, place_, back_, next_, path_;
  std::vector<std::int32_t> head_, level_, queue_;
  std::vector<Flow> left_;
};

}  // namespace busbw::schedule
