// Symmetries of a directed graph with coloured vertices and edges: colour refinement, and automorphisms found by it.
//
// Refinement splits classes of vertices until all members of a class have as many edges of each colour to and from each
// class (J. Hopcroft's partition refinement). Members of a class need not be alike: the classes are only where to look. So
// two copies of the graph are refined with one vertex after another singled out, in the first copy any, in the second a
// random one of the same class; when all classes are single vertices, the map between the copies is tried edge by edge. Only
// maps that pass are returned: each is an automorphism, whatever collided or went wrong before.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "busbw/schedule/capacity_graph.hpp"

namespace busbw::schedule {

struct ColouredGraph {
  std::vector<std::int32_t> colour;       ///< one entry a vertex
  std::vector<std::int32_t> src;
  std::vector<std::int32_t> dst;
  std::vector<std::int32_t> edge_colour;  ///< one entry an edge
};

/// An ordered partition of the vertices that can be refined. Its order depends on colours and structure, never on names.
class Refinement {
 public:
  explicit Refinement(const ColouredGraph& graph)
      : graph_(&graph), out_(graph.colour.size(), graph.src), in_(graph.colour.size(), graph.dst) {
    const std::size_t n = graph.colour.size();
    order_.resize(n);
    for (std::size_t v = 0; v < n; ++v) order_[v] = static_cast<std::int32_t>(v);
    std::stable_sort(order_.begin(), order_.end(), [&](auto a, auto b) { return graph.colour[at(a)] < graph.colour[at(b)]; });
    place_.resize(n);
    cell_.resize(n);
    size_.assign(n, 0);
    queued_.assign(n, 0);
    key_.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      place_[at(order_[i])] = i;
      const bool starts = i == 0 || graph.colour[at(order_[i])] != graph.colour[at(order_[i - 1])];
      cell_[at(order_[i])] = starts ? i : cell_[at(order_[i - 1])];
      ++size_[cell_[at(order_[i])]];
      if (starts) {
        ++cells_;
        push(i);
      }
    }
    refine();
  }

  [[nodiscard]] std::size_t cells() const { return cells_; }
  [[nodiscard]] bool is_discrete() const { return cells_ == order_.size(); }
  /// The class of a vertex: where its members begin in `order`.
  [[nodiscard]] std::size_t cell(std::size_t vertex) const { return cell_[vertex]; }
  [[nodiscard]] std::size_t size(std::size_t cell) const { return size_[cell]; }
  [[nodiscard]] const std::vector<std::int32_t>& order() const { return order_; }

  /// The first class of several members, from class `from` on. There must be one.
  [[nodiscard]] std::size_t first_open(std::size_t from) const {
    while (size_[from] == 1) ++from;
    return from;
  }

  /// Makes a vertex a class of its own and refines.
  void single_out(std::int32_t vertex) {
    const std::size_t begin = cell_[at(vertex)];
    const std::size_t last = begin + size_[begin] - 1;
    swap_places(place_[at(vertex)], last);
    --size_[begin];
    size_[last] = 1;
    cell_[at(vertex)] = last;
    ++cells_;
    push(last);
    refine();
  }

 private:
  static std::size_t at(std::int32_t v) { return static_cast<std::size_t>(v); }

  /// A well-mixed 64-bit value of an edge's colour and direction (the finaliser of splitmix64). Keys add up, so order is nothing.
  static std::uint64_t mix(std::int32_t colour, std::uint64_t direction) {
    std::uint64_t x = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(colour)) << 1 | direction) + 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return (x ^ (x >> 31)) | 1U;
  }

  void push(std::size_t cell) {
    if (queued_[cell]) return;
    queued_[cell] = 1;
    queue_.push_back(cell);
  }

  void swap_places(std::size_t a, std::size_t b) {
    std::swap(order_[a], order_[b]);
    place_[at(order_[a])] = a;
    place_[at(order_[b])] = b;
  }

  void refine() {
    while (!queue_.empty()) {
      const std::size_t splitter = queue_.front();
      queue_.pop_front();
      queued_[splitter] = 0;
      members_.assign(order_.begin() + static_cast<std::ptrdiff_t>(splitter), order_.begin() + static_cast<std::ptrdiff_t>(splitter + size_[splitter]));
      touched_.clear();
      for (const auto w : members_) {
        for (auto i = in_.begin[at(w)]; i < in_.begin[at(w) + 1]; ++i) touch(graph_->src[at(in_.edge[at(i)])], mix(graph_->edge_colour[at(in_.edge[at(i)])], 0));
        for (auto i = out_.begin[at(w)]; i < out_.begin[at(w) + 1]; ++i) touch(graph_->dst[at(out_.edge[at(i)])], mix(graph_->edge_colour[at(out_.edge[at(i)])], 1));
      }
      std::sort(touched_.begin(), touched_.end(), [&](auto a, auto b) {
        return std::pair(cell_[at(a)], key_[at(a)]) < std::pair(cell_[at(b)], key_[at(b)]);
      });
      for (std::size_t i = 0; i < touched_.size();) {
        std::size_t j = i;
        const std::size_t cell = cell_[at(touched_[i])];
        while (j < touched_.size() && cell_[at(touched_[j])] == cell) ++j;
        split(cell, i, j);
        i = j;
      }
      for (const auto v : touched_) key_[at(v)] = 0;
    }
  }

  void touch(std::int32_t v, std::uint64_t amount) {
    if (size_[cell_[at(v)]] == 1) return;
    if (key_[at(v)] == 0) touched_.push_back(v);
    key_[at(v)] += amount;
    if (key_[at(v)] == 0) key_[at(v)] = 1;
  }

  /// Splits a class by the keys of its touched members, touched_[i..j), which are sorted by key; the others have key 0.
  void split(std::size_t cell, std::size_t i, std::size_t j) {
    const std::size_t whole = size_[cell];
    if (j - i == whole && key_[at(touched_[i])] == key_[at(touched_[j - 1])]) return;
    std::size_t end = cell + whole;
    const bool was_queued = queued_[cell] != 0;
    parts_.clear();
    for (std::size_t b = j; b > i;) {  // groups from the last, each put at the end of what is left
      std::size_t a = b;
      while (a > i && key_[at(touched_[a - 1])] == key_[at(touched_[b - 1])]) --a;
      const std::size_t begin = end - (b - a);
      if (begin == cell) break;  // the group that is left keeps the class
      for (std::size_t k = a; k < b; ++k) swap_places(place_[at(touched_[k])], begin + (k - a));
      for (std::size_t k = a; k < b; ++k) cell_[at(touched_[k])] = begin;
      size_[begin] = b - a;
      size_[cell] -= b - a;
      ++cells_;
      parts_.push_back(begin);
      end = begin;
      b = a;
    }
    if (parts_.empty()) return;
    if (!was_queued) {  // all but a largest part suffice
      std::size_t largest = cell;
      for (const auto part : parts_)
        if (size_[part] > size_[largest]) largest = part;
      if (largest != cell) push(cell);
      for (const auto part : parts_)
        if (part != largest) push(part);
    } else {
      for (const auto part : parts_) push(part);
    }
  }

  const ColouredGraph* graph_;
  EdgesOf out_, in_;
  std::vector<std::int32_t> order_, members_, touched_;
  std::vector<std::size_t> place_, cell_, size_, parts_;
  std::vector<std::uint8_t> queued_;
  std::vector<std::uint64_t> key_;
  std::deque<std::size_t> queue_;
  std::size_t cells_ = 0;
};

/// Automorphisms of the graph; together their orbits are as large as random tries could make them. Each entry maps vertex
/// v to [v]. Stops when every class of vertices and of edges of the refined graph is one orbit, or after `patience` tries
/// without progress. The graph has at most one edge a pair of vertices.
class Automorphisms {
 public:
  explicit Automorphisms(const ColouredGraph& graph) : graph_(&graph), start_(graph) {
    edge_at_.reserve(graph.src.size());
    for (std::size_t e = 0; e < graph.src.size(); ++e) edge_at_.emplace(pair_of(graph.src[e], graph.dst[e]), e);
  }

  std::vector<std::vector<std::int32_t>> find(std::uint64_t seed, int patience) {
    std::vector<std::vector<std::int32_t>> found;
    const std::size_t n = graph_->colour.size();
    if (start_.cells() == n || edge_at_.size() != graph_->src.size()) return found;
    const std::size_t least = start_.cells() + edge_classes();
    Orbits vertices(n);
    Orbits edges(graph_->src.size());
    std::mt19937_64 random(seed);
    Refinement first = start_;
    std::vector<std::pair<std::size_t, std::size_t>> trail;  // class singled out, its size
    for (std::size_t open = 0; !first.is_discrete();) {
      open = first.first_open(open);
      trail.emplace_back(open, first.size(open));
      first.single_out(first.order()[open]);
    }
    std::vector<std::int32_t> image(n);
    std::vector<std::int32_t> edge_image;
    for (int failed = 0; failed < patience && vertices.count + edges.count > least; ++failed) {
      Refinement second = start_;
      bool alike = true;
      for (const auto& [cell, size] : trail) {
        alike = !second.is_discrete() && second.size(cell) == size;
        if (!alike) break;
        second.single_out(second.order()[cell + random() % size]);
      }
      if (!alike || !second.is_discrete()) continue;
      for (std::size_t i = 0; i < n; ++i) image[static_cast<std::size_t>(first.order()[i])] = second.order()[i];
      if (!is_automorphism(image, edge_image)) continue;
      const std::size_t before = vertices.count + edges.count;
      for (std::size_t v = 0; v < n; ++v) vertices.join(v, static_cast<std::size_t>(image[v]));
      for (std::size_t e = 0; e < edge_image.size(); ++e) edges.join(e, static_cast<std::size_t>(edge_image[e]));
      if (vertices.count + edges.count < before) {
        found.push_back(image);
        failed = -1;
      }
    }
    return found;
  }

  /// Whether a map keeps the colours of vertices and takes every edge to one of its colour; and to which.
  [[nodiscard]] bool is_automorphism(const std::vector<std::int32_t>& image, std::vector<std::int32_t>& edge_image) const {
    std::vector<std::uint8_t> seen(image.size(), 0);
    for (std::size_t v = 0; v < image.size(); ++v) {
      const auto to = static_cast<std::size_t>(image[v]);
      if (seen[to] || graph_->colour[v] != graph_->colour[to]) return false;
      seen[to] = 1;
    }
    edge_image.resize(graph_->src.size());
    for (std::size_t e = 0; e < graph_->src.size(); ++e) {
      const auto there = edge_at_.find(pair_of(image[static_cast<std::size_t>(graph_->src[e])], image[static_cast<std::size_t>(graph_->dst[e])]));
      if (there == edge_at_.end() || graph_->edge_colour[there->second] != graph_->edge_colour[e]) return false;
      edge_image[e] = static_cast<std::int32_t>(there->second);
    }
    return true;
  }

 private:
  struct Orbits {
    explicit Orbits(std::size_t members) : parent(members), count(members) {
      for (std::size_t i = 0; i < members; ++i) parent[i] = i;
    }
    std::size_t root(std::size_t i) {
      while (parent[i] != i) i = parent[i] = parent[parent[i]];
      return i;
    }
    void join(std::size_t a, std::size_t b) {
      a = root(a);
      b = root(b);
      if (a == b) return;
      parent[a] = b;
      --count;
    }
    std::vector<std::size_t> parent;
    std::size_t count;
  };

  static std::uint64_t pair_of(std::int32_t a, std::int32_t b) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(a)) << 32 | static_cast<std::uint32_t>(b);
  }

  /// Edges told apart by the classes of their ends and their colour: no group has fewer orbits of edges.
  [[nodiscard]] std::size_t edge_classes() const {
    std::vector<std::array<std::size_t, 3>> kinds(graph_->src.size());
    for (std::size_t e = 0; e < kinds.size(); ++e)
      kinds[e] = {start_.cell(static_cast<std::size_t>(graph_->src[e])), start_.cell(static_cast<std::size_t>(graph_->dst[e])),
                  static_cast<std::size_t>(static_cast<std::uint32_t>(graph_->edge_colour[e]))};
    std::sort(kinds.begin(), kinds.end());
    return static_cast<std::size_t>(std::unique(kinds.begin(), kinds.end()) - kinds.begin());
  }

  const ColouredGraph* graph_;
  Refinement start_;
  std::unordered_map<std::uint64_t, std::size_t> edge_at_;
};

}  // namespace busbw::schedule
