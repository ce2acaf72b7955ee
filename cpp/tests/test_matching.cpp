// Greedy matching on graphs whose best schedule can be counted by hand.
#include "busbw/schedule/matching.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"

using busbw::schedule::match_in_time;
using busbw::schedule::MatchingDemand;
using busbw::schedule::MatchingLinks;
using busbw::schedule::MatchingOptions;
using busbw::schedule::Transfers;

namespace {

void join(MatchingLinks& links, std::int32_t src, std::int32_t dst, std::int64_t alpha_ps, std::int64_t chunk_ps) {
  links.src.push_back(src);
  links.dst.push_back(dst);
  links.alpha_ps.push_back(alpha_ps);
  links.chunk_ps.push_back(chunk_ps);
}

/// Ranks in a circle, each sends to the next.
MatchingLinks circle(std::int32_t ranks, std::int64_t alpha_ps, std::int64_t chunk_ps) {
  MatchingLinks links;
  for (std::int32_t r = 0; r < ranks; ++r) join(links, r, (r + 1) % ranks, alpha_ps, chunk_ps);
  return links;
}

/// As many chunks of each rank as parts.
MatchingDemand gather(std::int32_t ranks, std::int32_t parts) {
  MatchingDemand demand{ranks, ranks * parts, {}};
  for (std::int32_t c = 0; c < ranks * parts; ++c) demand.source.push_back(c / parts);
  return demand;
}

/// Whether links carry one message at a time, chunks are sent by who has them, and everyone ends with everything, once.
bool is_legal(const MatchingLinks& links, const MatchingDemand& demand, const Transfers& found) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> since;
  for (std::size_t c = 0; c < demand.source.size(); ++c) since[{demand.source[c], static_cast<std::int32_t>(c)}] = 0;
  std::map<std::int32_t, std::int64_t> busy_until;
  std::map<std::int32_t, std::int64_t> begun;
  for (std::size_t t = 0; t < found.link.size(); ++t) {
    const auto link = found.link[t];
    const auto e = static_cast<std::size_t>(link);
    const auto has = since.find({links.src[e], found.chunk[t]});
    if (has == since.end() || has->second > found.begin_ps[t]) return false;
    if (!since.insert({{links.dst[e], found.chunk[t]}, found.end_ps[t]}).second) return false;
    const bool same_message = begun.count(link) != 0 && begun[link] == found.begin_ps[t];
    if (!same_message && busy_until[link] > found.begin_ps[t]) return false;
    begun[link] = found.begin_ps[t];
    busy_until[link] = found.end_ps[t];
  }
  return since.size() == static_cast<std::size_t>(demand.ranks) * demand.source.size();
}

/// On a one-way circle of 5 the last chunk takes 4 hops, and every link carries 4 chunks: 4 x (alpha + chunk).
void a_circle_takes_a_step_a_hop() {
  const Transfers found = match_in_time(circle(5, 3, 10), gather(5, 1), {});
  CHECK_EQUAL(found.makespan_ps, 4 * (3 + 10));
  CHECK_EQUAL(found.link.size(), 20U);
  CHECK(is_legal(circle(5, 3, 10), gather(5, 1), found));
}

/// Two ranks, 8 chunks each: one at a time 8 start-ups, four in a message two.
void a_message_pays_one_start_up() {
  CHECK_EQUAL(match_in_time(circle(2, 3, 10), gather(2, 8), {}).makespan_ps, 8 * (3 + 10));
  MatchingOptions options;
  options.most_chunks = 4;
  options.rounds_ahead = 1;
  CHECK_EQUAL(match_in_time(circle(2, 3, 10), gather(2, 8), options).makespan_ps, 2 * (3 + 40));
}

/// Root 0 sends over two parallel links to 1: two chunks at a time.
void parallel_links_share_the_work() {
  MatchingLinks links;
  join(links, 0, 1, 0, 10);
  join(links, 0, 1, 0, 10);
  CHECK_EQUAL(match_in_time(links, {2, 6, std::vector<std::int32_t>(6, 0)}, {}).makespan_ps, 30);
}

/// Two pairs, wide inside (1), joined by two narrow links each way (10). Entering a pair once, each narrow link carries one of the two chunks.
void a_chunk_enters_a_cluster_once() {
  MatchingLinks links;
  for (const auto& [a, b, ps] : std::vector<std::array<std::int32_t, 3>>{{0, 1, 1}, {2, 3, 1}, {0, 2, 10}, {1, 3, 10}}) {
    join(links, a, b, 0, ps);
    join(links, b, a, 0, ps);
  }
  MatchingOptions options;
  options.clusters = {{0, 1}, {2, 3}};
  const Transfers found = match_in_time(links, gather(4, 1), options);
  CHECK_EQUAL(found.makespan_ps, 11);
  CHECK(is_legal(links, gather(4, 1), found));
}

/// Graphs of random links over a circle, several bandwidths, chunks for every width of a set.
void schedules_are_legal_on_any_graph() {
  busbw::schedule::detail::Lots lots(7);
  for (std::int32_t round = 0; round < 60; ++round) {
    const auto ranks = static_cast<std::int32_t>(2 + lots.below(12));
    MatchingLinks links = circle(ranks, 2, 5);
    for (std::size_t i = lots.below(30); i > 0; --i) {
      const auto a = static_cast<std::int32_t>(lots.below(static_cast<std::size_t>(ranks)));
      const auto b = static_cast<std::int32_t>(lots.below(static_cast<std::size_t>(ranks)));
      if (a != b) join(links, a, b, static_cast<std::int64_t>(lots.below(9)), static_cast<std::int64_t>(1 + lots.below(40)));
    }
    const MatchingDemand demand = gather(ranks, static_cast<std::int32_t>(1 + lots.below(1U << lots.below(9))));
    MatchingOptions options;
    options.seed = static_cast<std::uint64_t>(round);
    options.most_chunks = static_cast<std::int32_t>(1 + lots.below(8));
    CHECK(is_legal(links, demand, match_in_time(links, demand, options)));
  }
}

/// Ranks in a circle both ways, clusters that are arcs of it and halves of arcs: matched together near the end, nobody waits for ever.
void schedules_are_legal_with_nested_clusters() {
  busbw::schedule::detail::Lots lots(3);
  for (std::int32_t round = 0; round < 40; ++round) {
    const auto ranks = static_cast<std::int32_t>(6 + lots.below(10));
    MatchingLinks links;
    for (std::int32_t r = 0; r < ranks; ++r) {
      const auto slow = static_cast<std::int64_t>(1 + lots.below(20));
      join(links, r, (r + 1) % ranks, 1, slow);
      join(links, (r + 1) % ranks, r, 1, slow);
    }
    MatchingOptions options;
    options.seed = static_cast<std::uint64_t>(round);
    options.most_chunks = static_cast<std::int32_t>(1 + lots.below(3));
    options.rounds_ahead = static_cast<std::int32_t>(lots.below(3));
    options.clusters.resize(3);
    for (std::int32_t r = 0; r < ranks; ++r) {
      options.clusters[r < ranks / 2 ? 1 : 2].push_back(r);
      if (r < ranks / 4) options.clusters[0].push_back(r);
    }
    const MatchingDemand demand = gather(ranks, static_cast<std::int32_t>(1 + lots.below(6)));
    const Transfers found = match_in_time(links, demand, options);
    CHECK(is_legal(links, demand, found));
    std::set<std::pair<std::size_t, std::int32_t>> entered;
    for (std::size_t t = 0; t < found.link.size(); ++t) {
      const auto e = static_cast<std::size_t>(found.link[t]);
      for (std::size_t k = 0; k < options.clusters.size(); ++k) {
        const auto has = [&](std::int32_t rank) { return std::find(options.clusters[k].begin(), options.clusters[k].end(), rank) != options.clusters[k].end(); };
        if (!has(links.src[e]) && has(links.dst[e])) CHECK(entered.insert({k, found.chunk[t]}).second);
      }
    }
  }
}

void what_nobody_can_reach_is_refused() {
  MatchingLinks one_way;
  join(one_way, 0, 1, 0, 1);
  CHECK_THROWS(std::runtime_error, match_in_time(one_way, gather(2, 1), {}));
  MatchingLinks outside = circle(2, 0, 1);
  outside.dst[0] = 2;
  CHECK_THROWS(std::invalid_argument, match_in_time(outside, gather(2, 1), {}));
  CHECK_THROWS(std::invalid_argument, match_in_time(circle(2, 0, 0), gather(2, 1), {}));
  CHECK_THROWS(std::invalid_argument, match_in_time(circle(2, 0, 1), {2, 3, {0}}, {}));
  MatchingOptions options;
  options.clusters = {{0, 9}};
  CHECK_THROWS(std::invalid_argument, match_in_time(circle(2, 0, 1), gather(2, 1), options));
}

}  // namespace

int main() {
  a_circle_takes_a_step_a_hop();
  a_message_pays_one_start_up();
  parallel_links_share_the_work();
  a_chunk_enters_a_cluster_once();
  schedules_are_legal_on_any_graph();
  schedules_are_legal_with_nested_clusters();
  what_nobody_can_reach_is_refused();
  return busbw::testing::failures == 0 ? 0 : 1;
}
