/// Ways through fat trees for millions of flows at once: the links that `busbw.hardware.routing` gives, with its numbers of links.
///
/// A tree is PGFT(h; m; w; p) as in busbw/hardware/fabrics/fat_tree.py. With D-mod-k the links down depend on the destination alone, and a link up
/// on the subtree of the source and the destination, so both come out of tables. Tests compare with the Python that states the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "busbw/sim/program.hpp"

namespace busbw::sim {

struct TreeShape {
  std::vector<std::int64_t> down, up, parallel;  ///< m, w, p by level
};

class TreeWays {
 public:
  explicit TreeWays(TreeShape shape) : shape_(std::move(shape)) {
    const std::size_t levels = shape_.down.size();
    if (levels == 0 || shape_.up.size() != levels || shape_.parallel.size() != levels) throw std::invalid_argument("a tree needs one number a level");
    subtree_.push_back(1);
    places_.push_back(1);
    for (std::size_t l = 0; l < levels; ++l) {
      if (shape_.down[l] < 1 || shape_.up[l] < 1 || shape_.parallel[l] < 1) throw std::invalid_argument("children, parents and cables must be at least 1");
      subtree_.push_back(subtree_[l] * shape_.down[l]);
      places_.push_back(places_[l] * shape_.up[l]);
    }
    slots_ = subtree_.back();
    for (std::size_t l = 0; l <= levels; ++l) {
      subtree_of_.emplace_back(static_cast<std::size_t>(slots_));
      for (std::int64_t slot = 0; slot < slots_; ++slot) subtree_of_[l][static_cast<std::size_t>(slot)] = slot / subtree_[l];
    }
    first_vertex_.push_back(0);
    first_cable_.push_back(0);
    for (std::size_t l = 0; l <= levels; ++l) {
      const std::int64_t vertices = slots_ / subtree_[l] * places_[l];
      first_vertex_.push_back(first_vertex_.back() + vertices);
      if (l < levels) first_cable_.push_back(first_cable_.back() + vertices * ways_up(l));
    }
  }

  std::int64_t slots() const { return slots_; }
  std::int64_t links() const { return 2 * first_cable_.back(); }

  /// Appends the way of each pair of slots, by D-mod-k. src, dst: (flows,).
  void d_mod_k(const std::int64_t* src, const std::int64_t* dst, std::size_t sources, std::size_t destinations, WayColumns& out) const {
    const Tables tables = destination_tables();
    append(src, dst, sources, destinations, out, [&](std::size_t level, std::size_t, std::int64_t from, std::int64_t to) {
      return 2 * (first_cable_[level] + subtree_of(level, from) * places_[level] * ways_up(level) + tables.up[level][static_cast<std::size_t>(to)]);
    }, [&](std::size_t level, std::size_t, std::int64_t to) { return tables.down[level][static_cast<std::size_t>(to)]; });
  }

  /// Appends the way of each pair by ECMP: the hash of busbw/hardware/routing/ecmp.py. key: (flows,) as `key` gives them.
  void ecmp(const std::int64_t* src, const std::int64_t* dst, std::size_t sources, std::size_t destinations, const std::vector<std::uint64_t>& key, WayColumns& out) const {
    std::vector<std::int64_t> place(shape_.down.size() + 1, 0);
    append(src, dst, sources, destinations, out, [&](std::size_t level, std::size_t flow, std::int64_t from, std::int64_t) {
      const std::int64_t index = subtree_of(level, from) * places_[level] + place[level];
      const std::int64_t ways = ways_up(level);
      const auto way = static_cast<std::int64_t>(hash(first_vertex_[level] + index, key[flow]) % static_cast<std::uint64_t>(ways));
      place[level + 1] = place[level] + places_[level] * (way % shape_.up[level]);
      return 2 * (first_cable_[level] + index * ways + way);
    }, [&](std::size_t level, std::size_t flow, std::int64_t to) {
      const std::int64_t above = first_vertex_[level + 1] + subtree_of(level + 1, to) * places_[level + 1] + place[level + 1];
      const std::int64_t child = subtree_of(level, to) * places_[level] + place[level + 1] % places_[level];
      const std::int64_t cables = shape_.parallel[level];
      const auto which = cables == 1 ? 0 : static_cast<std::int64_t>(hash(above, key[flow]) % static_cast<std::uint64_t>(cables));
      return 2 * (first_cable_[level] + child * ways_up(level) + place[level + 1] / places_[level] + shape_.up[level] * which) + 1;
    });
  }

  static std::uint64_t key(std::int64_t src, std::int64_t dst, std::int64_t flow, std::uint64_t seed) {
    return mixed(mixed(mixed(mixed(static_cast<std::uint64_t>(src)) ^ static_cast<std::uint64_t>(dst)) ^ static_cast<std::uint64_t>(flow)) ^ seed);
  }

 private:
  struct Tables {
    std::vector<std::vector<std::int64_t>> up;    ///< by level and destination: what to add to the source's part of a link
    std::vector<std::vector<std::int64_t>> down;  ///< by level and destination: the link
  };

  /// The subtree of a level that a slot lies in.
  std::int64_t subtree_of(std::size_t level, std::int64_t slot) const { return subtree_of_[level][static_cast<std::size_t>(slot)]; }
  std::int64_t ways_up(std::size_t level) const { return shape_.up[level] * shape_.parallel[level]; }

  Tables destination_tables() const {
    Tables tables;
    const std::size_t levels = shape_.down.size();
    std::vector<std::int64_t> place(static_cast<std::size_t>(slots_), 0);
    for (std::size_t l = 0; l < levels; ++l) {
      std::vector<std::int64_t> up(static_cast<std::size_t>(slots_)), down(static_cast<std::size_t>(slots_));
      for (std::int64_t to = 0; to < slots_; ++to) {
        const auto t = static_cast<std::size_t>(to);
        const std::int64_t way = to / places_[l] % ways_up(l);
        up[t] = place[t] * ways_up(l) + way;
        const std::int64_t child = to / subtree_[l] * places_[l] + place[t];
        place[t] += places_[l] * (way % shape_.up[l]);
        const std::int64_t which = way / shape_.up[l] % shape_.parallel[l];
        down[t] = 2 * (first_cable_[l] + child * ways_up(l) + place[t] / places_[l] + shape_.up[l] * which) + 1;
      }
      tables.up.push_back(std::move(up));
      tables.down.push_back(std::move(down));
    }
    return tables;
  }

  template <class Up, class Down>
  void append(const std::int64_t* src, const std::int64_t* dst, std::size_t sources, std::size_t destinations, WayColumns& out, Up up, Down down) const {
    if (sources != destinations) throw std::invalid_argument("sources and destinations differ in number");
    if (out.begin.empty()) out.begin.push_back(0);
    out.begin.reserve(out.begin.size() + sources);
    out.crossings.reserve(out.crossings.size() + sources * 2 * shape_.down.size());
    for (std::size_t f = 0; f < sources; ++f) {
      const std::int64_t from = src[f], to = dst[f];
      if (from < 0 || from >= slots_ || to < 0 || to >= slots_) throw std::invalid_argument("a flow begins or ends outside the tree");
      std::size_t top = 0;
      for (; subtree_of(top, from) != subtree_of(top, to); ++top) out.crossings.push_back({static_cast<LinkId>(up(top, f, from, to)), 1});
      for (std::size_t level = top; level-- > 0;) out.crossings.push_back({static_cast<LinkId>(down(level, f, to)), 1});
      out.begin.push_back(static_cast<std::int64_t>(out.crossings.size()));
    }
  }

  static std::uint64_t hash(std::int64_t vertex, std::uint64_t key) { return mixed(key ^ mixed(static_cast<std::uint64_t>(vertex) + 1)); }

  /// splitmix64. Source: S. Vigna, splitmix64.c (public domain), the finaliser.
  static std::uint64_t mixed(std::uint64_t value) {
    value += 0x9E3779B97F4A7C15U;
    value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31U);
  }

  TreeShape shape_;
  std::vector<std::int64_t> subtree_, places_, first_vertex_, first_cable_;
  std::vector<std::vector<std::int64_t>> subtree_of_;  ///< by level and slot: a division for each flow and level costs more than the rest
  std::int64_t slots_ = 0;
};

}  // namespace busbw::sim
