// Max-min fair rates: textbook values, and the same integers whether solved at once or kept up to date.
#include "busbw/sim/fair_rates.hpp"

#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"

using busbw::sim::count;
using busbw::sim::Crossing;
using busbw::sim::FairRates;
using busbw::sim::FlowId;
using busbw::sim::LinkId;
using busbw::sim::Rate;
using busbw::sim::WayColumns;

namespace {

WayColumns ways_of(const std::vector<std::vector<Crossing>>& ways) {
  WayColumns out;
  out.begin.push_back(0);
  for (const auto& way : ways) {
    out.crossings.insert(out.crossings.end(), way.begin(), way.end());
    out.begin.push_back(static_cast<std::int64_t>(out.crossings.size()));
  }
  return out;
}

std::vector<std::int32_t> numbered(std::size_t count) {
  std::vector<std::int32_t> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(i);
  return out;
}

void ignore(FlowId, Rate, Rate) {}

/// Links of 100 and 400: f0 over both, f1 over the first, f2 over the second.
void a_flow_takes_what_the_bottleneck_of_another_leaves() {
  const WayColumns ways = ways_of({{{0, 1}, {1, 1}}, {{0, 1}}, {{1, 1}}});
  FairRates rates({Rate{100}, Rate{400}}, 1, ways, numbered(3), {});
  for (FlowId flow = 0; flow < 3; ++flow) rates.start(flow);
  rates.settle(ignore);
  CHECK_EQUAL(count(rates.rate(0)), 50);
  CHECK_EQUAL(count(rates.rate(1)), 50);
  CHECK_EQUAL(count(rates.rate(2)), 350);
  CHECK_EQUAL(rates.bottleneck(0), 0);
  CHECK_EQUAL(rates.bottleneck(2), 1);
  rates.stop(1);
  rates.settle(ignore);
  CHECK_EQUAL(count(rates.rate(0)), 100);
  CHECK_EQUAL(count(rates.rate(2)), 300);
}

/// Weights 3 and 1; a class of four flows of which two cross the link counts twice.
void weights_and_shares_divide_a_link() {
  const WayColumns ways = ways_of({{{0, 1}}, {{0, 2}}});
  FairRates rates({Rate{1000}}, 1, ways, numbered(2), std::vector<std::int32_t>{3, 1});
  rates.start(0);
  rates.start(1);
  rates.settle(ignore);
  CHECK_EQUAL(count(rates.rate(0)), 600);
  CHECK_EQUAL(count(rates.rate(1)), 200);
}

/// Half a flow on each of two links: share 1 of 2.
void a_sprayed_flow_fills_both_links() {
  const WayColumns ways = ways_of({{{0, 1}, {1, 1}}});
  FairRates rates({Rate{100}, Rate{100}}, 2, ways, numbered(1), {});
  rates.start(0);
  rates.settle(ignore);
  CHECK_EQUAL(count(rates.rate(0)), 200);
}

void a_closed_link_stops_its_flows_and_no_others() {
  const WayColumns ways = ways_of({{{0, 1}, {1, 1}}, {{1, 1}}});
  FairRates rates({Rate{100}, Rate{100}}, 1, ways, numbered(2), {});
  rates.start(0);
  rates.start(1);
  rates.settle(ignore);
  rates.set_capacity(0, Rate{0});
  rates.settle(ignore);
  CHECK_EQUAL(count(rates.rate(0)), 0);
  CHECK_EQUAL(rates.bottleneck(0), 0);
  CHECK_EQUAL(count(rates.rate(1)), 100);
}

void what_is_malformed_is_refused() {
  const WayColumns ways = ways_of({{{3, 1}}});
  CHECK_THROWS(std::invalid_argument, FairRates({Rate{1}}, 1, ways, numbered(1), {}));
  const WayColumns none = ways_of({{{0, 0}}});
  CHECK_THROWS(std::invalid_argument, FairRates({Rate{1}}, 1, none, numbered(1), {}));
  const WayColumns good = ways_of({{{0, 1}}});
  CHECK_THROWS(std::invalid_argument, FairRates({Rate{1}}, 1, good, numbered(1), std::vector<std::int32_t>{0}));
  CHECK_THROWS(std::invalid_argument, FairRates({Rate{-1}}, 1, good, numbered(1), {}));
  CHECK_THROWS(std::invalid_argument, FairRates({Rate{1}}, 0, good, numbered(1), {}));
}

/// f0 over links 0 to 69, f1 over the last of them, f2 over the last but one: whoever starts last, the last two links are shared.
void long_ways_share_their_last_links_too() {
  std::vector<Crossing> whole;
  for (LinkId l = 0; l < 70; ++l) whole.push_back({l, 1});
  const WayColumns ways = ways_of({whole, {{69, 1}}, {{68, 1}}});
  for (const FlowId first : {0, 1}) {
    FairRates rates(std::vector<Rate>(70, Rate{100}), 1, ways, numbered(3), {});
    for (FlowId next = 0; next < 3; ++next) {
      rates.start((first + next) % 3);
      rates.settle(ignore);
    }
    for (FlowId flow = 0; flow < 3; ++flow) CHECK_EQUAL(count(rates.rate(flow)), 50);
    rates.stop(0);
    rates.settle(ignore);
    CHECK_EQUAL(count(rates.rate(1)), 100);
  }
}

/// Links of 100, 200, ... 800 with 2, 4, ... 16 flows, 50 each; where all 72 cross one link of 720 as well, 10 each.
void many_flows_that_start_at_once_share_alike() {
  std::vector<std::vector<Crossing>> all;
  std::vector<Rate> capacity;
  for (std::int32_t l = 0; l < 8; ++l) {
    capacity.push_back(Rate{100 * (l + 1)});
    for (std::int32_t f = 0; f < 2 * (l + 1); ++f) all.push_back({{l, 1}, {8, 1}});
  }
  for (const std::int64_t common : {80'000, 720}) {
    std::vector<Rate> limits = capacity;
    limits.push_back(Rate{common});
    const WayColumns ways = ways_of(all);
    FairRates rates(limits, 1, ways, numbered(all.size()), {});
    for (FlowId flow = 0; flow < static_cast<FlowId>(all.size()); ++flow) rates.start(flow);
    rates.settle(ignore);
    for (FlowId flow = 0; flow < static_cast<FlowId>(all.size()); ++flow) {
      CHECK_EQUAL(count(rates.rate(flow)), common == 720 ? 10 : 50);
      CHECK_EQUAL(rates.bottleneck(flow), common == 720 ? 8 : all[static_cast<std::size_t>(flow)].front().link);
    }
    // One leaves link 0: its last one takes all of it, or of the common link no more than the others.
    rates.stop(0);
    rates.settle(ignore);
    CHECK_EQUAL(count(rates.rate(1)), common == 720 ? 720 / 71 : 100);
    for (FlowId flow = 2; flow < static_cast<FlowId>(all.size()); ++flow) CHECK_EQUAL(count(rates.rate(flow)), common == 720 ? 720 / 71 : 50);
  }
}

/// Starts, stops, changes of capacity and of ways at random: after each, every rate is what a new solver gives, every flow has a full link
/// on its way on which no flow gets more by weight, and no link carries more than it can.
void keeping_up_to_date_is_solving_anew() {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    const auto links = static_cast<std::int32_t>(1 + random() % 8);
    const std::size_t flows = 1 + random() % 12;
    const std::int64_t unit = random() % 2 == 0 ? 1 : 6;
    std::vector<Rate> capacity;
    for (std::int32_t l = 0; l < links; ++l) capacity.push_back(Rate{static_cast<std::int64_t>(random() % 4 == 0 ? random() % 5 : 1 + random() % 100000)});
    std::vector<std::vector<Crossing>> all;
    for (std::size_t way = 0; way < 2 * flows; ++way) {
      std::vector<Crossing> crossings;
      for (std::int32_t l = 0; l < links; ++l)
        if (random() % 3 == 0) crossings.push_back({l, static_cast<std::int32_t>(1 + random() % static_cast<std::uint64_t>(unit))});
      if (crossings.empty()) crossings.push_back({static_cast<LinkId>(random() % static_cast<std::uint64_t>(links)), 1});
      all.push_back(crossings);
    }
    const WayColumns ways = ways_of(all);
    std::vector<std::int32_t> way = numbered(flows), weight;
    for (std::size_t f = 0; f < flows; ++f) weight.push_back(static_cast<std::int32_t>(1 + random() % 3));
    FairRates kept(capacity, unit, ways, way, weight);
    std::vector<bool> active(flows, false);
    for (int step = 0; step < 30; ++step) {
      const std::size_t many = 1 + random() % (trial % 2 == 0 ? 3 : 3 * flows);
      for (std::size_t i = 0; i < many; ++i) {
        const std::size_t f = random() % flows;
        if (random() % 5 == 0) {
          const auto link = static_cast<LinkId>(random() % static_cast<std::uint64_t>(links));
          capacity[static_cast<std::size_t>(link)] = Rate{static_cast<std::int64_t>(random() % 100000)};
          kept.set_capacity(link, capacity[static_cast<std::size_t>(link)]);
        } else if (active[f]) {
          kept.stop(static_cast<FlowId>(f));
          active[f] = false;
        } else {
          if (random() % 4 == 0) {
            way[f] = static_cast<std::int32_t>(random() % (2 * flows));
            kept.set_way(static_cast<FlowId>(f), way[f]);
          }
          kept.start(static_cast<FlowId>(f));
          active[f] = true;
        }
      }
      kept.settle(ignore);
      FairRates anew(capacity, unit, ways, way, weight);
      for (std::size_t f = 0; f < flows; ++f)
        if (active[f]) anew.start(static_cast<FlowId>(f));
      anew.settle(ignore);
      std::vector<std::int64_t> load(static_cast<std::size_t>(links), 0);
      for (std::size_t f = 0; f < flows; ++f) {
        CHECK_EQUAL(count(kept.rate(static_cast<FlowId>(f))), count(anew.rate(static_cast<FlowId>(f))));
        if (active[f])
          for (const Crossing& crossing : all[static_cast<std::size_t>(way[f])]) load[static_cast<std::size_t>(crossing.link)] += crossing.share * count(kept.rate(static_cast<FlowId>(f)));
      }
      for (std::size_t l = 0; l < load.size(); ++l) CHECK(load[l] <= count(capacity[l]) * unit);
    }
  }
}

}  // namespace

int main() {
  a_flow_takes_what_the_bottleneck_of_another_leaves();
  weights_and_shares_divide_a_link();
  a_sprayed_flow_fills_both_links();
  a_closed_link_stops_its_flows_and_no_others();
  what_is_malformed_is_refused();
  long_ways_share_their_last_links_too();
  many_flows_that_start_at_once_share_alike();
  keeping_up_to_date_is_solving_anew();
  return busbw::testing::failures == 0 ? 0 : 1;
}
