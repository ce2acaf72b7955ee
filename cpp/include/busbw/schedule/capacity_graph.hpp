// A directed graph with capacities: GPUs, which hold and forward data, and switches, which only forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace busbw::schedule {

/// Edge e goes from vertex src[e] to dst[e] and carries capacity[e] units at most. All columns have one entry an edge.
struct CapacityGraph {
  std::vector<std::uint8_t> is_gpu;  ///< one entry a vertex
  std::vector<std::int32_t> src;
  std::vector<std::int32_t> dst;
  std::vector<std::int64_t> capacity;

  [[nodiscard]] std::size_t vertices() const { return is_gpu.size(); }
  [[nodiscard]] std::size_t edges() const { return src.size(); }
  [[nodiscard]] std::size_t gpus() const {
    std::size_t n = 0;
    for (const auto gpu : is_gpu) n += gpu != 0;
    return n;
  }

  /// Throws std::invalid_argument where columns differ in length, an end is no vertex, or a capacity is negative.
  void check() const {
    if (dst.size() != src.size() || capacity.size() != src.size()) throw std::invalid_argument("columns of edges differ in length");
    const auto n = static_cast<std::int64_t>(is_gpu.size());
    for (std::size_t e = 0; e < src.size(); ++e) {
      if (src[e] < 0 || src[e] >= n || dst[e] < 0 || dst[e] >= n) throw std::invalid_argument("an edge ends at a vertex that does not exist");
      if (capacity[e] < 0) throw std::invalid_argument("a capacity is negative");
    }
  }
};

/// The edges at each vertex: those of vertex v are edge[begin[v]] to edge[begin[v + 1] - 1].
struct EdgesOf {
  std::vector<std::int32_t> begin;
  std::vector<std::int32_t> edge;

  EdgesOf(std::size_t vertices, const std::vector<std::int32_t>& end_of_edge) : begin(vertices + 1, 0), edge(end_of_edge.size()) {
    for (const auto v : end_of_edge) ++begin[static_cast<std::size_t>(v) + 1];
    for (std::size_t v = 0; v < vertices; ++v) begin[v + 1] += begin[v];
    std::vector<std::int32_t> next(begin.begin(), begin.end() - 1);
    for (std::size_t e = 0; e < end_of_edge.size(); ++e) edge[static_cast<std::size_t>(next[static_cast<std::size_t>(end_of_edge[e])]++)] = static_cast<std::int32_t>(e);
  }
};

}  // namespace busbw::schedule
