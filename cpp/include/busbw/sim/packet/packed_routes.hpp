/// Routes as packets look them up: a step a node, and sets of links that many nodes share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "busbw/sim/packet/network.hpp"
#include "busbw/sim/packet/packet_pool.hpp"
#include "busbw/sim/packet/random.hpp"

namespace busbw::sim::packet {

class PackedRoutes {
 public:
  /// A node of one choice is that choice. One of several names a set of links, which many nodes share, and the node behind the first.
  struct Step {
    std::uint32_t link;  ///< with kSeveral a place in sets_: number, stride, links
    std::uint32_t node;  ///< behind the first link; those behind the others follow in steps of the stride
  };
  static constexpr bool is_several(Step step) { return (step.link & kSeveral) != 0; }

  PackedRoutes() = default;
  /// Throws std::invalid_argument where columns do not fit each other, or a choice points outside.
  PackedRoutes(const Routes& routes, std::size_t link_count) {
    check(routes, link_count);
    pack(routes);
  }

  const Step& operator[](std::uint32_t node) const { return steps_[node]; }
  /// Of a step of several: how many, a stride, the links.
  const std::uint32_t* choices(Step step) const { return &sets_[step.link & ~kSeveral]; }
  std::size_t bytes() const { return steps_.capacity() * sizeof(Step) + sets_.capacity() * 4; }

  /// What a choice of a node of several leads to.
  Step taken(Step step, std::uint32_t which) const {
    const std::uint32_t* set = &sets_[step.link & ~kSeveral];
    return {set[2 + which], set[1] == kListed ? set[2 + set[0] + which] : step.node + set[1] * which};
  }

 private:
  static constexpr std::uint32_t kSeveral = 1U << 31;
  static constexpr std::uint32_t kListed = ~0U;  ///< a stride: nodes are listed after the links

  static void check(const Routes& routes, std::size_t link_count) {
    if (routes.first.empty() || routes.first.front() != 0 || routes.first.back() != routes.link.size() || routes.link.size() != routes.node.size())
      throw std::invalid_argument("columns of routes do not fit each other");
    const std::size_t nodes = routes.first.size() - 1;
    for (std::size_t n = 0; n < nodes; ++n)
      if (routes.first[n + 1] <= routes.first[n]) throw std::invalid_argument("node " + std::to_string(n) + " of the routes leads nowhere");
    for (std::size_t c = 0; c < routes.link.size(); ++c)
      if (routes.link[c] >= link_count || (routes.node[c] != kNone && routes.node[c] >= nodes))
        throw std::invalid_argument("choice " + std::to_string(c) + " of the routes points outside");
  }

  void pack(const Routes& routes) {
    const std::size_t nodes = routes.first.size() - 1;
    steps_.resize(nodes);
    std::unordered_multimap<std::uint64_t, std::uint32_t> known;
    std::vector<std::uint32_t> set;
    for (std::size_t n = 0; n < nodes; ++n) {
      const std::uint32_t first = routes.first[n];
      const std::uint32_t choices = routes.first[n + 1] - first;
      steps_[n] = {routes.link[first], routes.node[first]};
      if (choices == 1) continue;
      const std::uint32_t stride = routes.node[first + 1] - routes.node[first];
      bool even = stride < kSeveral;
      for (std::uint32_t c = 1; c < choices; ++c) even = even && routes.node[first + c] - routes.node[first + c - 1] == stride;
      set.assign({choices, even ? stride : kListed});
      for (std::uint32_t c = 0; c < choices; ++c) set.push_back(routes.link[first + c]);
      if (!even)
        for (std::uint32_t c = 0; c < choices; ++c) set.push_back(routes.node[first + c]);
      steps_[n].link = kSeveral | place_of(set, known);
    }
  }

  std::uint32_t place_of(const std::vector<std::uint32_t>& set, std::unordered_multimap<std::uint64_t, std::uint32_t>& known) {
    std::uint64_t hash = 0;
    for (const std::uint32_t one : set) hash = mixed(hash ^ one);
    for (auto [at, end] = known.equal_range(hash); at != end; ++at)
      if (std::equal(set.begin(), set.end(), sets_.begin() + at->second)) return at->second;
    if (sets_.size() + set.size() >= kSeveral) throw std::invalid_argument("more than 2^31 choices of routes");
    const auto place = static_cast<std::uint32_t>(sets_.size());
    sets_.insert(sets_.end(), set.begin(), set.end());
    known.emplace(hash, place);
    return place;
  }

  std::vector<Step> steps_;
  std::vector<std::uint32_t> sets_;
};

}  // namespace busbw::sim::packet
