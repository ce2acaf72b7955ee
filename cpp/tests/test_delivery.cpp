// Greedy delivery on graphs whose best schedule can be counted by hand.
#include "busbw/schedule/delivery.hpp"

#include <cstdint>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"

using busbw::schedule::deliver_in_time;
using busbw::schedule::DeliveryDemand;
using busbw::schedule::MatchingLinks;
using busbw::schedule::Transfers;

namespace {

void join(MatchingLinks& links, std::int32_t src, std::int32_t dst, std::int64_t alpha_ps, std::int64_t chunk_ps) {
  links.src.push_back(src);
  links.dst.push_back(dst);
  links.alpha_ps.push_back(alpha_ps);
  links.chunk_ps.push_back(chunk_ps);
}

DeliveryDemand all_pairs(std::int32_t ranks) {
  DeliveryDemand demand{ranks, {}, {}};
  for (std::int32_t s = 0; s < ranks; ++s)
    for (std::int32_t d = 0; d < ranks; ++d) {
      demand.source.push_back(s);
      demand.destination.push_back(d);
    }
  return demand;
}

/// Whether chunks are where they are sent from, links carry one message at a time, and every chunk ends where it should.
bool is_legal(const MatchingLinks& links, const DeliveryDemand& demand, const Transfers& found) {
  std::vector<std::pair<std::int32_t, std::int64_t>> place;
  for (const auto rank : demand.source) place.emplace_back(rank, 0);
  std::map<std::int32_t, std::pair<std::int64_t, std::int64_t>> busy;
  for (std::size_t t = 0; t < found.link.size(); ++t) {
    const auto e = static_cast<std::size_t>(found.link[t]);
    auto& [rank, since] = place[static_cast<std::size_t>(found.chunk[t])];
    if (rank != links.src[e] || since > found.begin_ps[t]) return false;
    rank = links.dst[e];
    since = found.end_ps[t];
    auto& [begin, end] = busy[found.link[t]];
    if (end > found.begin_ps[t] && begin != found.begin_ps[t]) return false;
    begin = found.begin_ps[t];
    end = found.end_ps[t];
  }
  for (std::size_t c = 0; c < place.size(); ++c)
    if (place[c].first != demand.destination[c]) return false;
  return true;
}

/// One-way circle of 3: distances 1 and 2 from each rank, 9 hops over 3 links of 10: 30 at least, and reached.
void a_circle_is_kept_busy() {
  MatchingLinks links;
  for (std::int32_t r = 0; r < 3; ++r) join(links, r, (r + 1) % 3, 0, 10);
  const Transfers found = deliver_in_time(links, all_pairs(3), {});
  CHECK_EQUAL(found.makespan_ps, 30);
  CHECK(is_legal(links, all_pairs(3), found));
}

void schedules_are_legal_on_any_graph() {
  busbw::schedule::detail::Lots lots(11);
  for (std::uint64_t round = 0; round < 60; ++round) {
    const auto ranks = static_cast<std::int32_t>(2 + lots.below(9));
    MatchingLinks links;
    for (std::int32_t r = 0; r < ranks; ++r) join(links, r, (r + 1) % ranks, 2, 5);
    for (std::size_t i = lots.below(25); i > 0; --i) {
      const auto a = static_cast<std::int32_t>(lots.below(static_cast<std::size_t>(ranks)));
      const auto b = static_cast<std::int32_t>(lots.below(static_cast<std::size_t>(ranks)));
      if (a != b) join(links, a, b, static_cast<std::int64_t>(lots.below(9)), static_cast<std::int64_t>(1 + lots.below(40)));
    }
    const auto most = static_cast<std::int32_t>(1 + lots.below(5));
    CHECK(is_legal(links, all_pairs(ranks), deliver_in_time(links, all_pairs(ranks), {round, most, 4})));
  }
}

void what_cannot_be_reached_is_refused() {
  MatchingLinks one_way;
  join(one_way, 0, 1, 0, 1);
  CHECK_THROWS(std::runtime_error, deliver_in_time(one_way, all_pairs(2), {}));
  CHECK_THROWS(std::invalid_argument, deliver_in_time(one_way, {2, {0}, {2}}, {}));
  CHECK_THROWS(std::invalid_argument, deliver_in_time(one_way, {2, {0, 0}, {1}}, {}));
  CHECK_EQUAL(deliver_in_time({}, {1, {0}, {0}}, {}).link.size(), 0U);
}

}  // namespace

int main() {
  a_circle_is_kept_busy();
  schedules_are_legal_on_any_graph();
  what_cannot_be_reached_is_refused();
  return busbw::testing::failures == 0 ? 0 : 1;
}
