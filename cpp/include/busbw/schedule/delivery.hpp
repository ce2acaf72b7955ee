/// Greedy delivery in time: chunks with one destination each, over links between ranks that pass on what is not theirs.
///
/// For scatter and all_to_all, and in reversed time gather. A chunk only goes to ranks from which less of its way is left, by prices of links; that
/// is never round in a circle. Whenever a link is free it takes one of those for which it is among the cheapest ways on. Two rules take turns: the
/// chunk with the most of its way left (good where a root is the bottleneck), and first of all the chunk that has the fewest other links to go by (good
/// where all links are). Prices begin as the time a chunk takes; after both rules the busiest links become dearer, and the best round is kept.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "busbw/schedule/matching.hpp"

namespace busbw::schedule {

/// Chunk c goes from source[c] to destination[c].
struct DeliveryDemand {
  std::int32_t ranks = 0;
  std::vector<std::int32_t> source;
  std::vector<std::int32_t> destination;
};

struct DeliveryOptions {
  std::uint64_t seed = 0;
  std::int32_t most_chunks = 1;  ///< chunks a message may carry
  std::int32_t rounds = 4;       ///< two with the same prices
};

class Delivery {
 public:
  Delivery(MatchingLinks links, DeliveryDemand demand, DeliveryOptions options)
      : links_(std::move(links)), demand_(std::move(demand)), options_(options), lots_(options.seed) {
    detail::check_links(links_, demand_.ranks);
    if (demand_.source.size() != demand_.destination.size()) throw std::invalid_argument("source and destination differ in length");
    for (const auto* column : {&demand_.source, &demand_.destination})
      for (const auto rank : *column)
        if (rank < 0 || rank >= demand_.ranks) throw std::invalid_argument("a chunk begins or ends at no rank");
    if (options_.most_chunks < 1 || options_.rounds < 1) throw std::invalid_argument("most_chunks and rounds are at least 1");
    out_of_.resize(ranks());
    in_.resize(ranks());
    for (std::size_t i = 0; i < links_.src.size(); ++i) {
      out_of_[static_cast<std::size_t>(links_.src[i])].push_back(static_cast<std::int32_t>(i));
      in_[static_cast<std::size_t>(links_.dst[i])].push_back(static_cast<std::int32_t>(i));
      price_.push_back(static_cast<double>(links_.alpha_ps[i] + links_.chunk_ps[i]));
    }
  }

  /// The best of the rounds. Throws std::runtime_error if a chunk can't reach its destination.
  Transfers run() {
    Transfers best;
    for (std::int32_t round = 0; round < options_.rounds; ++round) {
      if (round % 2 == 0) find_ways();
      fewest_ways_first_ = round % 2 == 0;
      deliver();
      if (round == 0 || found_.makespan_ps < best.makespan_ps) best = found_;
      if (round % 2 == 1) raise_prices();
    }
    return best;
  }

 private:
  static constexpr double kDetour = 0.5; ///< a guess: how much dearer than the cheapest a way on may be, as a share of the link's price
  static constexpr double kRaise = 0.25;   ///< a guess: by what the price of the busiest link rises in a round
  static constexpr std::int32_t kShare = 4;  ///< a guess: a message takes at most this part of what waits

  std::size_t ranks() const { return static_cast<std::size_t>(demand_.ranks); }

  /// left_[d * ranks + v]: price of the cheapest way from v to d (Dijkstra on reversed links).
  void find_ways() {
    left_.assign(ranks() * ranks(), std::numeric_limits<double>::infinity());
    using Entry = std::pair<double, std::int32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    for (std::size_t d = 0; d < ranks(); ++d) {
      double* left = left_.data() + d * ranks();
      left[d] = 0;
      open.push({0, static_cast<std::int32_t>(d)});
      while (!open.empty()) {
        const auto [far, v] = open.top();
        open.pop();
        if (far > left[v]) continue;
        for (const auto link : in_[static_cast<std::size_t>(v)]) {
          const auto e = static_cast<std::size_t>(link);
          const double through = far + price_[e];
          if (through >= left[links_.src[e]]) continue;
          left[links_.src[e]] = through;
          open.push({through, links_.src[e]});
        }
      }
    }
    for (std::size_t c = 0; c < demand_.source.size(); ++c)
      if (std::isinf(left_[static_cast<std::size_t>(demand_.destination[c]) * ranks() + static_cast<std::size_t>(demand_.source[c])]))
        throw std::runtime_error("rank " + std::to_string(demand_.destination[c]) + " can't be reached from rank " +
                                 std::to_string(demand_.source[c]));
    ways_.assign(ranks() * ranks(), 0);
    leads_.assign(links_.src.size(), {});
    for (std::size_t e = 0; e < links_.src.size(); ++e)
      for (std::size_t d = 0; d < ranks(); ++d) {
        const double here = left_[d * ranks() + static_cast<std::size_t>(links_.src[e])];
        const double there = left_[d * ranks() + static_cast<std::size_t>(links_.dst[e])];
        if (there >= here || there + price_[e] - here > kDetour * price_[e]) continue;
        leads_[e].push_back(static_cast<std::int32_t>(d));
        ++ways_[d * ranks() + static_cast<std::size_t>(links_.src[e])];
      }
  }

  void deliver() {
    waiting_.assign(ranks() * ranks(), {});
    is_free_.assign(links_.src.size(), 1);
    carried_.assign(links_.src.size(), {});
    found_ = {};
    for (std::size_t c = demand_.source.size(); c-- > 0;)
      if (demand_.source[c] != demand_.destination[c]) wait(static_cast<std::size_t>(demand_.source[c]), static_cast<std::int32_t>(c));
    order_.clear();
    for (std::int32_t v = 0; v < demand_.ranks; ++v) order_.push_back(v);
    send_from_all(0);
    std::vector<std::uint8_t> is_touched(ranks(), 0);
    while (!ends_.empty()) {
      const auto first = ends_.begin();
      const std::int64_t now = first->first;
      const std::vector<std::int32_t> ended = std::move(first->second);
      ends_.erase(first);
      order_.clear();
      const auto touch = [&](std::int32_t v) {
        if (is_touched[static_cast<std::size_t>(v)] != 0) return;
        is_touched[static_cast<std::size_t>(v)] = 1;
        order_.push_back(v);
      };
      for (const auto link : ended) {
        const auto e = static_cast<std::size_t>(link);
        is_free_[e] = 1;
        for (const auto c : carried_[e])
          if (demand_.destination[static_cast<std::size_t>(c)] != links_.dst[e]) wait(static_cast<std::size_t>(links_.dst[e]), c);
        touch(links_.src[e]);
        touch(links_.dst[e]);
      }
      for (const auto v : order_) is_touched[static_cast<std::size_t>(v)] = 0;
      found_.makespan_ps = now;
      send_from_all(now);
    }
  }

  void wait(std::size_t v, std::int32_t c) {
    waiting_[v * ranks() + static_cast<std::size_t>(demand_.destination[static_cast<std::size_t>(c)])].push_back(c);
  }

  void send_from_all(std::int64_t now) {
    for (const auto rank : order_) {
      const auto v = static_cast<std::size_t>(rank);
      free_out_.clear();
      for (const auto link : out_of_[v])
        if (is_free_[static_cast<std::size_t>(link)] != 0) free_out_.push_back(link);
      for (std::size_t i = free_out_.size(); i > 1; --i) std::swap(free_out_[i - 1], free_out_[lots_.below(i)]);
      for (const auto link : free_out_) send(static_cast<std::size_t>(link), now);
    }
  }

  void send(std::size_t e, std::int64_t now) {
    const auto v = static_cast<std::size_t>(links_.src[e]);
    auto& carried = carried_[e];
    carried.clear();
    std::size_t total = 0;
    if (options_.most_chunks > 1)
      for (const auto d : leads_[e]) total += waiting_[v * ranks() + static_cast<std::size_t>(d)].size();
    const auto most = std::clamp<std::size_t>(total / kShare, 1, static_cast<std::size_t>(options_.most_chunks));
    while (carried.size() < most) {
      std::int32_t best = -1;
      std::tuple<std::int32_t, double, std::size_t> best_key;  // fewest ways, most left, most waiting
      for (const auto d : leads_[e]) {
        const std::size_t count = waiting_[v * ranks() + static_cast<std::size_t>(d)].size();
        if (count == 0) continue;
        const std::size_t place = static_cast<std::size_t>(d) * ranks() + v;
        const std::tuple key{fewest_ways_first_ ? -ways_[place] : 0, left_[place], count};
        if (best >= 0 && key <= best_key) continue;
        best = d;
        best_key = key;
      }
      if (best < 0) break;
      auto& queue = waiting_[v * ranks() + static_cast<std::size_t>(best)];
      carried.push_back(queue.back());
      queue.pop_back();
    }
    if (carried.empty()) return;
    const std::int64_t end = now + links_.alpha_ps[e] + links_.chunk_ps[e] * static_cast<std::int64_t>(carried.size());
    for (const auto c : carried) {
      found_.link.push_back(static_cast<std::int32_t>(e));
      found_.chunk.push_back(c);
      found_.begin_ps.push_back(now);
      found_.end_ps.push_back(end);
    }
    is_free_[e] = 0;
    ends_[end].push_back(static_cast<std::int32_t>(e));
  }

  void raise_prices() {
    std::vector<double> busy(links_.src.size(), 0);
    for (std::size_t t = 0; t < found_.link.size(); ++t) {
      const auto e = static_cast<std::size_t>(found_.link[t]);
      busy[e] += static_cast<double>(links_.chunk_ps[e]);
    }
    double most = 1;
    for (const double some : busy) most = std::max(most, some);
    for (std::size_t e = 0; e < busy.size(); ++e) price_[e] *= 1 + kRaise * busy[e] / most;
  }

  MatchingLinks links_;
  DeliveryDemand demand_;
  DeliveryOptions options_;
  detail::Lots lots_;
  std::vector<std::vector<std::int32_t>> out_of_, in_, leads_, waiting_, carried_;
  std::vector<double> price_, left_;
  std::vector<std::uint8_t> is_free_;
  std::vector<std::int32_t> ways_;  ///< links that lead on from a rank to a destination, as left_
  std::vector<std::int32_t> order_, free_out_;
  bool fewest_ways_first_ = true;
  std::map<std::int64_t, std::vector<std::int32_t>> ends_;
  Transfers found_;
};

/// The greedy delivery. Throws std::invalid_argument for wrong columns, std::runtime_error if a destination can't be reached.
inline Transfers deliver_in_time(MatchingLinks links, DeliveryDemand demand, DeliveryOptions options) {
  return Delivery(std::move(links), std::move(demand), options).run();
}

}  // namespace busbw::schedule
