// Spanning trees, one or more a root, that together load no link beyond what it may carry.
//
// A tree reaches every GPU; between a GPU and its parent the data pass through switches, which copy nothing. Trees are grown
// one after another along the cheapest links, where a link's price rises with its load; then vertices that hang on an
// overloaded link move elsewhere, with what hangs below them, as long as that is cheaper, and prices of links that stay
// overloaded rise (negotiated congestion, as L. McMurchie and C. Ebeling, "PathFinder", 1995, route wires). Whether that ends
// well is for the loads to say, which are exact; that it can end well is what the throughput bound says.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <random>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "busbw/schedule/capacity_graph.hpp"

namespace busbw::schedule {

struct PackingLimits {
  std::int32_t depth = std::numeric_limits<std::int32_t>::max();  ///< longest way from a root, in GPUs
  std::int32_t sweeps = 200;                                      ///< rounds of moving
  double depth_price = 1e-4;                                      ///< what a step further from the root costs, a full link costing 1 / its limit
};

/// graph.capacity holds the number of trees that each edge may be part of.
class ForestPacking {
 public:
  ForestPacking(const CapacityGraph& graph, std::vector<std::int32_t> roots, PackingLimits limits, std::uint64_t seed)
      : graph_(graph), roots_(std::move(roots)), limits_(limits), out_(graph_.vertices(), graph_.src), in_(graph_.vertices(), graph_.dst), random_(seed) {
    graph_.check();
    for (std::size_t v = 0; v < graph_.vertices(); ++v)
      if ((graph_.is_gpu[v] != 0) != (v < graph_.gpus())) throw std::invalid_argument("GPUs must come before switches");
    gpus_ = graph_.gpus();
    for (const auto root : roots_)
      if (root < 0 || static_cast<std::size_t>(root) >= gpus_) throw std::invalid_argument("a root is no GPU");
    const std::size_t m = graph_.edges();
    load_.assign(m, 0);
    base_.resize(m);
    history_.assign(m, 0);
    for (std::size_t e = 0; e < m; ++e) base_[e] = 1.0 / static_cast<double>(std::max<std::int64_t>(1, graph_.capacity[e]));
    price_.resize(m);
    for (std::size_t e = 0; e < m; ++e) set_price(e);
    limit_of_.assign(gpus_, 0);
    parent_.assign(roots_.size() * gpus_, -1);
    path_.assign(roots_.size() * gpus_, -1);
    depth_.assign(roots_.size() * gpus_, -1);
    cost_.assign(graph_.vertices(), kFar);
    next_.assign(graph_.vertices(), -1);
    head_.assign(graph_.vertices(), -1);
    inside_.assign(gpus_, 0);
    place_.assign(gpus_, 0);
    reverse_.assign(m, -1);
    std::unordered_map<std::uint64_t, std::int32_t> at;
    for (std::size_t e = 0; e < m; ++e) at.emplace(pair_of(graph_.src[e], graph_.dst[e]), static_cast<std::int32_t>(e));
    for (std::size_t e = 0; e < m; ++e)
      if (const auto back = at.find(pair_of(graph_.dst[e], graph_.src[e])); back != at.end()) reverse_[e] = back->second;
  }

  /// Grows and moves. Returns the trees beyond limits that are left, over all edges; 0 where all fit.
  std::int64_t pack() {
    for (std::size_t t = 0; t < roots_.size(); ++t) grow(t);
    std::int64_t left = excess();
    std::int64_t best = left;
    for (std::int32_t sweep = 0, stale = 0; sweep < limits_.sweeps && left > 0 && stale < 40; ++sweep) {
      move_all();
      left = excess();
      stale = left < best ? 0 : stale + 1;
      best = std::min(best, left);
      for (std::size_t e = 0; e < load_.size(); ++e)
        if (load_[e] > graph_.capacity[e]) {
          history_[e] += base_[e] * kPressure;
          set_price(e);
        }
    }
    if (left == 0) flatten();
    return excess();
  }

  [[nodiscard]] const std::vector<std::int32_t>& parents() const { return parent_; }  ///< trees x GPUs; -1 at the root
  [[nodiscard]] const std::vector<std::int32_t>& paths() const { return path_; }      ///< trees x GPUs: the way from the parent
  [[nodiscard]] const std::vector<std::int32_t>& depths() const { return depth_; }    ///< trees x GPUs
  [[nodiscard]] const std::vector<std::int64_t>& load() const { return load_; }       ///< trees an edge
  [[nodiscard]] const std::vector<std::int32_t>& path_begin() const { return path_begin_; }
  [[nodiscard]] const std::vector<std::int32_t>& path_edges() const { return path_edges_; }

 private:
  static constexpr double kFar = std::numeric_limits<double>::infinity();
  /// How steeply prices rise with load, and with each round of overload. Guesses, tried on rails, tori and random graphs.
  static constexpr double kSteep = 4.0;
  static constexpr double kPressure = 0.5;
  static constexpr double kOver = 4.0;
  static constexpr double kDearer = 2.5;
  /// How often a GPU may be put back while a tree grows.
  static constexpr std::uint8_t kPutBack = 2;
  static constexpr double kForbidden = 1e6;
  static constexpr double kLess = 1e-12;
  /// The largest subtree whose every vertex is tried as its new head.
  static constexpr std::size_t kWholeSubtree = 128;

  static std::size_t at(std::int32_t v) { return static_cast<std::size_t>(v); }
  static std::uint64_t pair_of(std::int32_t a, std::int32_t b) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(a)) << 32 | static_cast<std::uint32_t>(b);
  }

  /// What one more tree on an edge costs.
  [[nodiscard]] double price(std::size_t e) const { return price_[e]; }

  void set_price(std::size_t e) {
    const double share = static_cast<double>(load_[e]) * base_[e];
    double p = base_[e] * (1.0 + std::exp(kSteep * (std::min(share, 2.0) - 1.0)));
    if (load_[e] >= graph_.capacity[e]) p += kOver * base_[e] * (1.0 + static_cast<double>(load_[e] - graph_.capacity[e])) + history_[e];
    if (graph_.capacity[e] == 0) p += kForbidden;
    price_[e] = p;
  }

  [[nodiscard]] std::int64_t excess() const {
    std::int64_t sum = 0;
    for (std::size_t e = 0; e < load_.size(); ++e) sum += std::max<std::int64_t>(0, load_[e] - graph_.capacity[e]);
    return sum;
  }

  void add_load(std::int32_t path, std::int64_t by) {
    for (auto i = path_begin_[at(path)]; i < path_begin_[at(path) + 1]; ++i) {
      const auto e = at(path_edges_[at(i)]);
      load_[e] += by;
      set_price(e);
    }
  }

  [[nodiscard]] double path_price(std::int32_t path) const {
    double sum = 0;
    for (auto i = path_begin_[at(path)]; i < path_begin_[at(path) + 1]; ++i) sum += price(at(path_edges_[at(i)]));
    return sum;
  }

  std::int32_t path_number(const std::vector<std::int32_t>& edges) {
    std::uint64_t key = 1469598103934665603U;
    for (const auto e : edges) key = (key ^ static_cast<std::uint32_t>(e)) * 1099511628211U;
    auto [begin, end] = path_at_.equal_range(key);
    for (; begin != end; ++begin) {
      const auto p = at(begin->second);
      if (std::equal(edges.begin(), edges.end(), path_edges_.begin() + path_begin_[p], path_edges_.begin() + path_begin_[p + 1])) return begin->second;
    }
    const auto number = static_cast<std::int32_t>(path_begin_.size() - 1);
    path_edges_.insert(path_edges_.end(), edges.begin(), edges.end());
    path_begin_.push_back(static_cast<std::int32_t>(path_edges_.size()));
    path_at_.emplace(key, number);
    return number;
  }

  using Entry = std::pair<double, std::int32_t>;
  using Heap = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;

  struct Way {
    double cost = kFar;
    std::int32_t parent = -1;             // the GPU it begins at
    std::int32_t head = -1;               // the GPU of the group it ends at
    std::vector<std::int32_t> edges = {};  // from parent to head
  };

  /// The cheapest way from a GPU of tree t that is not marked to one of `heads`, each with a cost of its own and the most
  /// depth its parent may have. Searches backwards through switches.
  Way cheapest_way(std::size_t t, const std::vector<Entry>& heads, const std::vector<std::int32_t>& deepest) {
    Way best;
    std::int32_t best_last = -1;  // the first edge of the way
    Heap heap;
    touched_.clear();
    const auto* depth = depth_.data() + t * gpus_;
    const auto relax = [&](std::int32_t v, double cost, std::int32_t head, std::int32_t limit) {
      // Begin anywhere among equals, so that ties are not always broken to the same side.
      const auto begin = in_.begin[at(v)];
      const auto count = in_.begin[at(v) + 1] - begin;
      if (count == 0) return;
      const auto offset = static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(count));
      for (std::int32_t k = 0; k < count; ++k) {
        const auto i = begin + (k + offset) % count;
        const auto e = in_.edge[at(i)];
        const auto u = graph_.src[at(e)];
        if (at(u) < gpus_) {
          if (inside_[at(u)] || depth[u] < 0 || depth[u] > limit) continue;
          const double total = cost + price(at(e)) + limits_.depth_price * depth[u];
          if (total < best.cost - kLess) {
            best.cost = total;
            best.parent = u;
            best.head = head;
            best_last = e;
          }
        } else {
          const double total = cost + price(at(e));
          if (total < cost_[at(u)] - kLess && total < best.cost) {
            if (cost_[at(u)] == kFar) touched_.push_back(u);
            cost_[at(u)] = total;
            next_[at(u)] = e;
            head_[at(u)] = head;
            heap.emplace(total, u);
          }
        }
      }
    };
    for (std::size_t h = 0; h < heads.size(); ++h) {
      relax(heads[h].second, heads[h].first, heads[h].second, deepest[h]);
      limit_of_[at(heads[h].second)] = deepest[h];
    }
    while (!heap.empty() && heap.top().first < best.cost) {
      const auto [cost, v] = heap.top();
      heap.pop();
      if (cost > cost_[at(v)]) continue;
      relax(v, cost, head_[at(v)], limit_of_[at(head_[at(v)])]);
    }
    if (best.parent >= 0) {
      for (auto e = best_last;;) {
        best.edges.push_back(e);
        const auto v = graph_.dst[at(e)];
        if (at(v) < gpus_) break;
        e = next_[at(v)];
      }
      best.head = graph_.dst[at(best.edges.back())];
    }
    for (const auto u : touched_) cost_[at(u)] = kFar;
    return best;
  }

  void attach(std::size_t t, std::int32_t v, std::int32_t parent, std::int32_t path) {
    const std::size_t i = t * gpus_ + at(v);
    parent_[i] = parent;
    path_[i] = path;
    add_load(path, 1);
  }

  /// Adds the GPU that is cheapest to reach until all are in. Prices rise while the tree grows: a way that has become much
  /// dearer than when it was found is searched anew.
  void grow(std::size_t t) {
    auto* depth = depth_.data() + t * gpus_;
    depth[roots_[t]] = 0;
    std::size_t count = 1;
    Heap heap;
    key_.assign(graph_.vertices(), kFar);
    pred_.assign(graph_.vertices(), -1);
    put_back_.assign(gpus_, 0);
    const auto spread = [&](std::int32_t from, double start) {
      Heap wave;
      wave.emplace(start, from);
      while (!wave.empty()) {
        const auto [cost, v] = wave.top();
        wave.pop();
        if (v != from && cost > key_[at(v)]) continue;
        for (auto i = out_.begin[at(v)]; i < out_.begin[at(v) + 1]; ++i) {
          const auto e = out_.edge[at(i)];
          const auto w = graph_.dst[at(e)];
          const double total = cost + price(at(e));
          if (total >= key_[at(w)] - kLess || (at(w) < gpus_ && depth[w] >= 0)) continue;
          key_[at(w)] = total;
          pred_[at(w)] = e;
          if (at(w) < gpus_)
            heap.emplace(total, w);
          else
            wave.emplace(total, w);
        }
      }
    };
    if (limits_.depth > 0) spread(roots_[t], 0);
    while (count < gpus_) {
      if (heap.empty()) throw std::invalid_argument("some GPU cannot be reached within the depth allowed");
      const auto [cost, v] = heap.top();
      heap.pop();
      if (depth[v] >= 0 || cost > key_[at(v)]) continue;
      Way way;
      way.cost = 0;
      for (auto at_vertex = v; at_vertex == v || at(at_vertex) >= gpus_; at_vertex = way.parent) {
        const auto e = pred_[at(at_vertex)];
        way.edges.push_back(e);
        way.cost += price(at(e));
        way.parent = graph_.src[at(e)];
      }
      std::reverse(way.edges.begin(), way.edges.end());
      way.cost += limits_.depth_price * depth[way.parent];
      if (way.cost > kDearer * cost + kLess) {
        way = cheapest_way(t, {{0.0, v}}, {limits_.depth - 1});
        if (way.parent < 0) throw std::invalid_argument("some GPU cannot be reached within the depth allowed");
        if (way.cost > kDearer * cost && !heap.empty() && way.cost > heap.top().first && put_back_[at(v)]++ < kPutBack) {
          key_[at(v)] = way.cost;
          heap.emplace(way.cost, v);
          continue;
        }
      }
      attach(t, v, way.parent, path_number(way.edges));
      depth[v] = depth[way.parent] + 1;
      ++count;
      if (depth[v] < limits_.depth) spread(v, limits_.depth_price * depth[v]);
    }
  }

  /// Marks the vertices below and at v; lists them parents first.
  void mark_subtree(std::size_t t, std::int32_t v) {
    const auto* parent = parent_.data() + t * gpus_;
    first_child_.assign(gpus_, -1);
    sibling_.resize(gpus_);
    for (std::size_t w = 0; w < gpus_; ++w)
      if (parent[w] >= 0) {
        sibling_[w] = first_child_[at(parent[w])];
        first_child_[at(parent[w])] = static_cast<std::int32_t>(w);
      }
    subtree_.assign(1, v);
    for (std::size_t i = 0; i < subtree_.size(); ++i) {
      inside_[at(subtree_[i])] = 1;
      place_[at(subtree_[i])] = i;
      for (auto w = first_child_[at(subtree_[i])]; w >= 0; w = sibling_[at(w)]) subtree_.push_back(w);
    }
  }

  void clear_marks() {
    for (const auto w : subtree_) inside_[at(w)] = 0;
  }

  /// The longest way down from each vertex of the marked subtree when w is its head.
  std::int32_t height_from(std::size_t t, std::int32_t w) {
    const auto* parent = parent_.data() + t * gpus_;
    const auto top = subtree_.front();
    // Distances from w within the subtree: up its chain, then down.
    std::int32_t most = 0;
    distance_.resize(gpus_);
    on_chain_.resize(gpus_);
    for (const auto x : subtree_) on_chain_[at(x)] = 0;
    std::int32_t steps = 0;
    for (auto x = w;; x = parent[x]) {
      on_chain_[at(x)] = 1;
      distance_[at(x)] = steps++;
      if (x == top) break;
    }
    for (const auto x : subtree_) {
      if (!on_chain_[at(x)]) distance_[at(x)] = distance_[at(parent[x])] + 1;
      most = std::max(most, distance_[at(x)]);
    }
    return most;
  }

  /// Moves the subtree at v to where it is cheapest, under any of its vertices as head. Returns whether that was better.
  bool move(std::size_t t, std::int32_t v, bool only_up = false) {
    auto* parent = parent_.data() + t * gpus_;
    auto* path = path_.data() + t * gpus_;
    auto* depth = depth_.data() + t * gpus_;
    mark_subtree(t, v);
    const auto old = path[v];
    const auto old_parent = parent[v];
    add_load(old, -1);
    const double old_cost = path_price(old) + limits_.depth_price * depth[old_parent];
    heads_.clear();
    deepest_.clear();
    gain_.assign(1, 0.0);
    const bool whole = subtree_.size() <= kWholeSubtree && !only_up;
    for (std::size_t i = 0; i < subtree_.size(); ++i) {
      const auto w = subtree_[i];
      if (i > 0) {
        if (!whole) break;
        // To hang on w, its chain up to v turns round.
        const auto back = reversed_path(path[w]);
        const std::size_t above = place_[at(parent[w])];
        gain_.push_back(back < 0 || gain_[above] == kFar ? kFar : gain_[above] + path_price(back) - path_price(path[w]));
        if (gain_.back() == kFar) continue;
      }
      std::int32_t room = std::numeric_limits<std::int32_t>::max();
      if (limits_.depth != std::numeric_limits<std::int32_t>::max() || only_up) room = limits_.depth - 1 - height_from(t, w);
      if (only_up) room = std::min(room, depth[old_parent] - 1);
      heads_.emplace_back(gain_[i], w);
      deepest_.push_back(room);
    }
    const Way way = cheapest_way(t, heads_, deepest_);
    bool better = way.parent >= 0 && way.cost < old_cost - 1e-9 * old_cost;
    if (only_up && way.parent >= 0) {
      better = true;
      for (const auto e : way.edges) better = better && load_[at(e)] < graph_.capacity[at(e)];
    }
    if (!better) {
      add_load(old, 1);
      clear_marks();
      return false;
    }
    // Turn the chain from the new head up to v.
    for (auto w = way.head; w != v;) {
      const auto up = parent[w];
      const auto forward = path[w];
      turned_.emplace_back(up, w);
      add_load(forward, -1);
      chain_paths_.push_back(reversed_path(forward));
      w = up;
    }
    for (std::size_t i = 0; i < turned_.size(); ++i) attach(t, turned_[i].first, turned_[i].second, chain_paths_[i]);
    turned_.clear();
    chain_paths_.clear();
    attach(t, way.head, way.parent, path_number(way.edges));
    clear_marks();
    mark_subtree(t, way.head);
    for (const auto w : subtree_) depth[w] = depth[parent[w]] + 1;
    clear_marks();
    return true;
  }

  /// The path over the same links the other way; -1 where one has no other direction.
  std::int32_t reversed_path(std::int32_t path) {
    if (const auto known = turned_path_.find(path); known != turned_path_.end()) return known->second;
    std::vector<std::int32_t> edges;
    for (auto i = path_begin_[at(path) + 1]; i-- > path_begin_[at(path)];) {
      const auto back = reverse_[at(path_edges_[at(i)])];
      if (back < 0) {
        turned_path_[path] = -1;
        return -1;
      }
      edges.push_back(back);
    }
    const auto number = path_number(edges);
    turned_path_[path] = number;
    return number;
  }

  /// Tries to move whatever hangs on an overloaded link.
  void move_all() {
    std::vector<std::uint8_t> over_path(path_begin_.size() - 1, 0);
    for (std::size_t p = 0; p + 1 < path_begin_.size(); ++p)
      for (auto i = path_begin_[p]; i < path_begin_[p + 1]; ++i) {
        const auto e = at(path_edges_[at(i)]);
        if (load_[e] > graph_.capacity[e]) over_path[p] = 1;
      }
    std::vector<std::size_t> users;
    for (std::size_t i = 0; i < path_.size(); ++i)
      if (path_[i] >= 0 && over_path[at(path_[i])]) users.push_back(i);
    std::shuffle(users.begin(), users.end(), random_);
    for (const auto i : users) {
      if (path_[i] < 0) continue;
      bool over = false;
      for (auto k = path_begin_[at(path_[i])]; k < path_begin_[at(path_[i]) + 1]; ++k) {
        const auto e = at(path_edges_[at(k)]);
        over = over || load_[e] > graph_.capacity[e];
      }
      if (over) move(i / gpus_, static_cast<std::int32_t>(i % gpus_));
    }
  }

  /// Makes the deepest trees flatter where links have room, until some vertex must stay as deep as it is.
  void flatten() {
    for (;;) {
      const auto most = *std::max_element(depth_.begin(), depth_.end());
      if (most <= 1) return;
      for (std::size_t i = 0; i < path_.size(); ++i) {
        if (depth_[i] < most) continue;
        // The vertex itself, or one of those it hangs on, moves nearer to the root.
        const std::size_t t = i / gpus_;
        for (auto v = static_cast<std::int32_t>(i % gpus_); v != roots_[t] && depth_[i] >= most; v = parent_[t * gpus_ + at(v)]) move(t, v, true);
        if (depth_[i] >= most) return;
      }
    }
  }

  CapacityGraph graph_;
  std::vector<std::int32_t> roots_;
  PackingLimits limits_;
  EdgesOf out_, in_;
  std::mt19937_64 random_;
  std::size_t gpus_ = 0;
  std::vector<std::int64_t> load_;
  std::vector<double> base_, history_, price_, key_, cost_, gain_;
  std::vector<std::int32_t> parent_, path_, depth_, next_, pred_, head_, reverse_, touched_, subtree_, first_child_, sibling_, deepest_, distance_, chain_paths_, limit_of_;
  std::vector<std::uint8_t> inside_, on_chain_, put_back_;
  std::vector<std::size_t> place_;
  std::vector<Entry> heads_;
  std::vector<std::pair<std::int32_t, std::int32_t>> turned_;
  std::vector<std::int32_t> path_begin_{0}, path_edges_;
  std::unordered_multimap<std::uint64_t, std::int32_t> path_at_;
  std::unordered_map<std::int32_t, std::int32_t> turned_path_;
};

}  // namespace busbw::schedule
