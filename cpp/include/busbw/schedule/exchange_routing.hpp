// A way for every ordered pair of GPUs that together load no link beyond what it may carry.
//
// Every source's ways are a tree of cheapest ways at the prices that its predecessors left; then pairs on overloaded links
// take a cheaper way one by one, while prices of links that stay overloaded rise, as `forest_packing.hpp` does for trees.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "busbw/schedule/capacity_graph.hpp"

namespace busbw::schedule {

/// graph.capacity holds the number of pairs that each edge may carry.
class ExchangeRouting {
 public:
  ExchangeRouting(const CapacityGraph& graph, std::uint64_t seed) : graph_(graph), out_(graph_.vertices(), graph_.src), random_(seed) {
    graph_.check();
    gpus_ = graph_.gpus();
    for (std::size_t v = 0; v < graph_.vertices(); ++v)
      if ((graph_.is_gpu[v] != 0) != (v < gpus_)) throw std::invalid_argument("GPUs must come before switches");
    const std::size_t m = graph_.edges();
    load_.assign(m, 0);
    history_.assign(m, 0.0);
    price_.assign(m, 0.0);
    base_.resize(m);
    for (std::size_t e = 0; e < m; ++e) base_[e] = 1.0 / static_cast<double>(std::max<std::int64_t>(1, graph_.capacity[e]));
    for (std::size_t e = 0; e < m; ++e) set_price(e);
    ways_.resize(gpus_ * gpus_);
    cost_.resize(graph_.vertices());
    last_.resize(graph_.vertices());
  }

  /// Routes all pairs. Returns the pairs beyond limits that are left, over all edges.
  std::int64_t route(std::int32_t sweeps) {
    std::vector<std::int32_t> order(gpus_);
    for (std::size_t v = 0; v < gpus_; ++v) order[v] = static_cast<std::int32_t>(v);
    std::shuffle(order.begin(), order.end(), random_);
    for (const auto s : order) {
      search(s, -1);
      for (std::size_t t = 0; t < gpus_; ++t)
        if (t != at(s)) keep(s, static_cast<std::int32_t>(t));
      for (std::size_t e = 0; e < load_.size(); ++e) set_price(e);
    }
    std::int64_t left = excess();
    std::int64_t best = left;
    for (std::int32_t sweep = 0, stale = 0; sweep < sweeps && left > 0 && stale < 10; ++sweep) {
      for (std::size_t e = 0; e < load_.size(); ++e)
        if (load_[e] > graph_.capacity[e]) {
          history_[e] += base_[e] * kPressure;
          set_price(e);
        }
      move_all();
      left = excess();
      stale = left < best ? 0 : stale + 1;
      best = std::min(best, left);
    }
    return left;
  }

  /// The edges from source to destination, entry source * GPUs + destination.
  [[nodiscard]] const std::vector<std::vector<std::int32_t>>& ways() const { return ways_; }
  [[nodiscard]] const std::vector<std::int64_t>& load() const { return load_; }

 private:
  static constexpr double kFar = std::numeric_limits<double>::infinity();
  static constexpr double kSteep = 8.0;     // guesses, as those of forest_packing.hpp
  static constexpr double kPressure = 0.5;
  static constexpr double kOver = 8.0;
  static constexpr double kHop = 0.05;      // of the mean base price: what passing a GPU costs
  static std::size_t at(std::int32_t v) { return static_cast<std::size_t>(v); }

  void set_price(std::size_t e) {
    const double share = static_cast<double>(load_[e]) * base_[e];
    double p = base_[e] * (1.0 + std::exp(kSteep * (std::min(share, 2.0) - 1.0)));
    if (load_[e] >= graph_.capacity[e]) p += kOver * base_[e] * (1.0 + static_cast<double>(load_[e] - graph_.capacity[e]) * base_[e] * 10) + history_[e];
    if (graph_.capacity[e] == 0) p += 1e6;
    price_[e] = p;
  }

  [[nodiscard]] std::int64_t excess() const {
    std::int64_t sum = 0;
    for (std::size_t e = 0; e < load_.size(); ++e) sum += std::max<std::int64_t>(0, load_[e] - graph_.capacity[e]);
    return sum;
  }

  /// Cheapest ways from s, to all or until t is settled. Edges of a vertex are looked at from a random one on, so that ties fall anywhere.
  void search(std::int32_t s, std::int32_t t) {
    std::fill(cost_.begin(), cost_.end(), kFar);
    std::priority_queue<std::pair<double, std::int32_t>, std::vector<std::pair<double, std::int32_t>>, std::greater<>> heap;
    cost_[at(s)] = 0;
    last_[at(s)] = -1;
    heap.emplace(0.0, s);
    while (!heap.empty()) {
      const auto [cost, v] = heap.top();
      heap.pop();
      if (cost > cost_[at(v)]) continue;
      if (v == t) return;
      const auto begin = out_.begin[at(v)];
      const auto count = out_.begin[at(v) + 1] - begin;
      if (count == 0) continue;
      const auto offset = static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(count));
      for (std::int32_t k = 0; k < count; ++k) {
        const auto e = out_.edge[at(begin + (k + offset) % count)];
        const auto w = graph_.dst[at(e)];
        const double total = cost + price_[at(e)] + (at(w) < gpus_ ? kHop * base_[at(e)] : 0.0);
        if (total < cost_[at(w)]) {
          cost_[at(w)] = total;
          last_[at(w)] = e;
          heap.emplace(total, w);
        }
      }
    }
  }

  void keep(std::int32_t s, std::int32_t t) {
    if (cost_[at(t)] == kFar) throw std::invalid_argument("some GPUs cannot reach one another");
    auto& way = ways_[at(s) * gpus_ + at(t)];
    way.clear();
    for (auto v = t; v != s; v = graph_.src[at(last_[at(v)])]) {
      way.push_back(last_[at(v)]);
      ++load_[at(last_[at(v)])];
    }
    std::reverse(way.begin(), way.end());
  }

  [[nodiscard]] bool is_over(const std::vector<std::int32_t>& way) const {
    return std::any_of(way.begin(), way.end(), [&](auto e) { return load_[at(e)] > graph_.capacity[at(e)]; });
  }

  void move_all() {
    std::vector<std::size_t> users;
    for (std::size_t i = 0; i < ways_.size(); ++i)
      if (is_over(ways_[i])) users.push_back(i);
    std::shuffle(users.begin(), users.end(), random_);
    for (const auto i : users) {
      auto& way = ways_[i];
      if (!is_over(way)) continue;
      double old = 0;
      for (const auto e : way) {
        --load_[at(e)];
        set_price(at(e));
      }
      for (const auto e : way) old += price_[at(e)] + (at(graph_.dst[at(e)]) < gpus_ ? kHop * base_[at(e)] : 0.0);
      const auto s = static_cast<std::int32_t>(i / gpus_);
      const auto t = static_cast<std::int32_t>(i % gpus_);
      search(s, t);
      if (cost_[at(t)] < old * (1 - 1e-9))
        keep(s, t);
      else
        for (const auto e : way) ++load_[at(e)];
      for (const auto e : way) set_price(at(e));
    }
  }

  CapacityGraph graph_;
  EdgesOf out_;
  std::mt19937_64 random_;
  std::size_t gpus_ = 0;
  std::vector<std::int64_t> load_;
  std::vector<double> history_, price_, base_, cost_;
  std::vector<std::int32_t> last_;
  std::vector<std::vector<std::int32_t>> ways_;
};

}  // namespace busbw::schedule
