// Channels on nodes small enough to be counted by hand.
#include "busbw/nccl/channel_search.hpp"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "check.hpp"

using busbw::nccl::Channels;
using busbw::nccl::ChannelSearch;
using busbw::nccl::NetOrder;
using busbw::nccl::Pattern;
using busbw::nccl::SearchNode;
using busbw::nccl::Wish;

namespace {

constexpr std::int32_t kNear = 1;
constexpr std::int32_t kFar = 9;

/// GPUs, every pair joined by links of its own in both directions, of one rate and type.
SearchNode mesh(std::int32_t gpus, float rate, std::int32_t type) {
  SearchNode node;
  const auto n = static_cast<std::size_t>(gpus);
  node.paths.resize(n * n);
  node.gpu_pci.assign(n, {-1, -1});
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < n; ++b) {
      auto& path = node.paths[a * n + b];
      if (a == b) {
        path.type = 0;
        continue;
      }
      path.type = type;
      path.rate = rate;
      path.links.push_back({static_cast<std::int32_t>(node.links.size()), -1, 1, false});
      node.links.push_back(rate);
    }
  return node;
}

Wish ring_wish(float rate, std::int32_t type) {
  return {Pattern::kRing, false, 1, 32, 0, false, rate, rate, type, 4, 0};
}

Channels search(SearchNode node, Wish wish, std::int32_t budget, std::int32_t* left = nullptr) {
  ChannelSearch tries(std::move(node));
  Channels best{wish, 0, 0, {}, {}};
  const NetOrder order{{}, std::vector<std::vector<std::int32_t>>(static_cast<std::size_t>(tries.gpus()))};
  const std::int32_t rest = tries.attempt(wish, best, order, budget, 1024);
  if (left != nullptr) *left = rest;
  return best;
}

/// Two GPUs, 40 each way: four rings of 10 fill both directions.
void rings_fill_the_links() {
  const Channels best = search(mesh(2, 40, kNear), ring_wish(10, kNear), 1 << 14);
  CHECK_EQUAL(best.channels, 4);
  CHECK_EQUAL(best.wish.hops, 8);  // two links a ring
}

/// Three GPUs: a ring one way round leaves the other way free, so 10 over 10 fit twice.
void a_ring_each_way_round() {
  CHECK_EQUAL(search(mesh(3, 10, kNear), ring_wish(10, kNear), 1 << 14).channels, 2);
}

void nothing_fits_through_links_that_are_too_narrow_or_too_far() {
  CHECK_EQUAL(search(mesh(3, 10, kNear), ring_wish(11, kNear), 1 << 14).channels, 0);
  CHECK_EQUAL(search(mesh(3, 10, kFar), ring_wish(10, kNear), 1 << 14).channels, 0);
  CHECK_EQUAL(search(mesh(3, 10, kFar), ring_wish(10, kFar), 1 << 14).channels, 2);
}

void a_budget_ends_the_try() {
  std::int32_t left = 0;
  search(mesh(8, 100, kNear), ring_wish(7, kNear), 5, &left);
  CHECK_EQUAL(left, 0);
}

/// As many channels as may be wished for end the try at once.
void all_that_may_be_wished_for_is_perfect() {
  Wish wish = ring_wish(10, kNear);
  wish.most_channels = 2;
  std::int32_t left = 0;
  const Channels best = search(mesh(2, 40, kNear), wish, 1 << 14, &left);
  CHECK_EQUAL(best.channels, 2);
  CHECK_EQUAL(left, ChannelSearch::kPerfect);
}

/// A try gives back what it took, so that the next one finds the same.
void tries_do_not_wear_the_links() {
  ChannelSearch tries(mesh(3, 17.5F, kNear));
  const NetOrder order{{}, std::vector<std::vector<std::int32_t>>(3)};
  for (int i = 0; i < 50; ++i) {
    Wish wish = ring_wish(2.4F, kNear);
    Channels best{wish, 0, 0, {}, {}};
    tries.attempt(wish, best, order, 1 << 10, 1024);
    CHECK_EQUAL(best.channels, 14);  // 17.5 / 2.4 = 7 each way round
  }
}

void malformed_nodes_are_refused() {
  SearchNode node = mesh(2, 40, kNear);
  node.paths[1].links[0].link = 7;
  CHECK_THROWS(std::invalid_argument, ChannelSearch{node});
  CHECK_THROWS(std::invalid_argument, ChannelSearch{SearchNode{}});
  SearchNode unsquare = mesh(2, 40, kNear);
  unsquare.paths.pop_back();
  CHECK_THROWS(std::invalid_argument, ChannelSearch{unsquare});
  Wish wish = ring_wish(10, kNear);
  wish.most_channels = 65;  // a bit a channel, in 64 bits
  CHECK_THROWS(std::invalid_argument, search(mesh(2, 40, kNear), wish, 10));
}

}  // namespace

int main() {
  rings_fill_the_links();
  a_ring_each_way_round();
  nothing_fits_through_links_that_are_too_narrow_or_too_far();
  a_budget_ends_the_try();
  all_that_may_be_wished_for_is_perfect();
  tries_do_not_wear_the_links();
  malformed_nodes_are_refused();
  return busbw::testing::failures == 0 ? 0 : 1;
}
