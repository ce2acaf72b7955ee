/// Max-min fair rates of weighted flows, exact in integers and kept up to date as flows come and go.
///
/// Progressive filling (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2) in rounds. A link's level is what is left of it divided by
/// the weights of its flows that are still free, rounded down. Each round takes all links of the least level at once and gives their free
/// flows weight times level. Sums and the set of links of a round do not depend on any order, so a renumbered network, and one folded by its
/// symmetries, gets the same integers.
///
/// A change re-solves only what it can reach: rounds below the level at which the change is first felt stay as they are, because no link of
/// theirs carries a changed flow; above it, only links joined to the change by flows of that level or more. Where most flows start at once and
/// there are many a link, all are solved in passes over the flows instead, which need no lists of the flows of each link.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "busbw/sim/column.hpp"
#include "busbw/sim/time.hpp"

namespace busbw::sim {

using LinkId = std::int32_t;
using FlowId = std::int32_t;

/// One link of a flow's way. share: how many units of the flow's rate it carries, of which share_unit make the whole. In a folded network
/// that counts the flows of a class which cross one link of a class; with packet spray it is the flow's part on this link.
struct Crossing {
  LinkId link;
  std::int32_t share;
};

/// Ways of flows in columns: way w crosses crossings begin[w] to begin[w + 1] - 1.
struct WayColumns {
  Column<std::int64_t> begin;
  Column<Crossing> crossings;
};

class FairRates {
 public:
  /// ways must outlive this. way_of, weight_of: (F,) of each flow; way -1: none yet; no weights: 1 each. share_unit: the share of a flow that
  /// crosses a link whole. A link occurs once on a way; shares and weights are positive.
  FairRates(const std::vector<Rate>& capacity, std::int64_t share_unit, const WayColumns& ways, std::span<const std::int32_t> way_of,
            std::span<const std::int32_t> weight_of)
      : share_unit_(share_unit), ways_(&ways), links_(capacity.size()) {
    if (share_unit < 1) throw std::invalid_argument("share_unit must be positive");
    for (std::size_t l = 0; l < links_.size(); ++l) {
      if (count(capacity[l]) < 0) throw std::invalid_argument("a capacity is negative");
      links_[l].capacity = capacity[l];
    }
    Crossing least{0, 1}, greatest{-1, 1};
    for (const Crossing& crossing : ways.crossings) {
      least = {std::min(least.link, crossing.link), std::min(least.share, crossing.share)};
      greatest.link = std::max(greatest.link, crossing.link);
    }
    if (least.link < 0 || greatest.link >= static_cast<std::int64_t>(links_.size())) throw std::invalid_argument("a way has a link that is not there");
    if (least.share < 1) throw std::invalid_argument("shares of flows must be positive");
    flows_.reserve(way_of.size());
    for (std::size_t f = 0; f < way_of.size(); ++f) {
      Flow flow;
      flow.weight = weight_of.empty() ? 1 : weight_of[f];
      if (flow.weight < 1) throw std::invalid_argument("weights of flows must be positive");
      set_crossings(flow, way_of[f]);
      flows_.push_back(flow);
    }
  }

  std::size_t links() const { return links_.size(); }

  /// The flow takes part from the next settle() on.
  void start(FlowId id) {
    Flow& flow = flows_[static_cast<std::size_t>(id)];
    flow.level = kFree;
    const Crossing* crossings = ways_->crossings.data();
    for (std::uint32_t c = flow.begin; c < flow.end; ++c) {
      Link& link = links_[static_cast<std::size_t>(crossings[c].link)];
      link.weights += std::int64_t{crossings[c].share} * flow.weight;
      ++link.active;
    }
    ++active_;
    started_.push_back(id);
  }

  /// The flow takes no part any more; its rate is 0. Its links forget it when they are next looked through.
  void stop(FlowId id) {
    Flow& flow = flows_[static_cast<std::size_t>(id)];
    const Crossing* crossings = ways_->crossings.data();
    for (std::uint32_t c = flow.begin; c < flow.end; ++c) {
      Link& link = links_[static_cast<std::size_t>(crossings[c].link)];
      link.weights -= std::int64_t{crossings[c].share} * flow.weight;
      // Only a link that held somebody back gives anything when it gets room, and only if the flow had taken any.
      if (--link.active > 0 && link.full_from != kFree && flow.level != kFree) touch(crossings[c].link, flow.level);
    }
    --active_;
    flow.level = -1;
    flow.rate = Rate{0};
    flow.bottleneck = -1;
  }

  bool active(FlowId id) const { return flows_[static_cast<std::size_t>(id)].level >= 0; }
  Rate rate(FlowId id) const { return flows_[static_cast<std::size_t>(id)].rate; }
  /// The link that sets the rate; -1 if none does.
  LinkId bottleneck(FlowId id) const { return flows_[static_cast<std::size_t>(id)].bottleneck; }

  Rate capacity(LinkId id) const { return links_[static_cast<std::size_t>(id)].capacity; }

  void set_capacity(LinkId id, Rate rate) {
    Link& link = links_[static_cast<std::size_t>(id)];
    if (link.capacity == rate) return;
    if (link.active > 0) touch(id, level_bound(link));
    link.capacity = rate;
    if (link.active > 0) touch(id, level_bound(link));
  }

  /// The idle flow takes another way from now on. Takes time by the number of all flows.
  void set_way(FlowId id, std::int32_t way) {
    if (active(id)) throw std::logic_error("only an idle flow can take another way");
    set_crossings(flows_[static_cast<std::size_t>(id)], way);
    laid_out_ = false;
  }

  /// Brings rates up to date after starts, stops and changes of capacity; calls changed(flow, rate before, rate now) for each that differs.
  template <class Changed>
  void settle(Changed changed) {
    if (started_.size() >= kDense * links_.size() && 2 * started_.size() >= active_) {
      unlisted_.insert(unlisted_.end(), started_.begin(), started_.end());
      if (unlisted_.size() > flows_.size()) laid_out_ = false;
      started_.clear();
      collect_all();
      fill(true);
    } else {
      for (const FlowId id : started_) {
        list(id);
        start_alone_or_touch(id, changed);
      }
      started_.clear();
      for (const LinkId id : bounded_) links_[static_cast<std::size_t>(id)].bounded = false;
      bounded_.clear();
      forget_idle();
      if (touched_.empty()) return;
      list_all();
      collect();
      fill(false);
    }
    for (const FlowId id : component_flows_) {
      Flow& flow = flows_[static_cast<std::size_t>(id)];
      const Rate now{flow.level == kFree ? kUnbounded : flow.level * flow.weight};
      if (now != flow.rate) {
        const Rate before = std::exchange(flow.rate, now);
        changed(id, before, now);
      }
    }
    touched_.clear();
    floor_ = kFree;
  }

  std::uint64_t solves() const { return solves_; }

 private:
  static constexpr std::int64_t kFree = INT64_MAX;
  static constexpr std::int64_t kUnbounded = INT64_MAX / 4;  ///< a flow that no link holds back
  static constexpr std::size_t kDense = 2;                   ///< flows a link that start at once, from which all are solved in passes; a guess

  static constexpr std::uint32_t kNoPlace = UINT32_MAX;

  struct Member {
    FlowId flow;
    std::uint32_t crossing;
  };

  struct Flow {
    Rate rate{0};
    std::int64_t level = -1;     ///< rate / weight; -1 idle, kFree not yet known
    std::uint64_t listed = 0;    ///< crossings at whose links it is listed, a bit each; the last bit stands for all from the 64th on
    std::uint32_t begin = 0, end = 0;  ///< crossings
    LinkId bottleneck = -1;
    std::int32_t weight = 1;
    std::uint32_t stamp = 0;
  };

  /// What starting, stopping and taking a flow touch lies in one line of the cache.
  struct alignas(64) Link {
    Rate capacity{0};
    std::int64_t weights = 0;  ///< of active flows, times their shares
    std::int64_t first = 0;    ///< where its members begin: flows that are active, and some that were
    std::int32_t listed = 0;
    std::int32_t active = 0;
    std::int64_t full_from = kFree;  ///< the level at which it filled; kFree if it holds nobody back
    // While solving:
    std::uint32_t round = 0;
    std::uint32_t place = kNoPlace;  ///< among the links that fill in this round
    std::int64_t free_weights = 0;
    std::int64_t weights_before = 0;
    Work rest = 0;
    // While what is to be solved is found:
    bool dirty = false;
    bool bounded = false;  ///< has had its bound taken for the flows that start now
    std::uint32_t stamp = 0;
  };

  static std::uint64_t bit_of(const Flow& flow, std::uint32_t crossing) { return std::uint64_t{1} << std::min<std::uint32_t>(crossing - flow.begin, 63); }
  /// Beyond the 63rd crossing of a way (a tree of many links) flows stay listed once they are.
  static bool stays_listed(const Flow& flow, std::uint32_t crossing) { return flow.end - flow.begin > 63 && crossing - flow.begin >= 63; }

  void set_crossings(Flow& flow, std::int32_t way) {
    flow.begin = flow.end = 0;
    if (way < 0) return;
    const auto w = static_cast<std::size_t>(way);
    if (w + 1 >= ways_->begin.size()) throw std::invalid_argument("a flow has a way that is not there");
    if (ways_->crossings.size() > UINT32_MAX) throw std::length_error("more crossings than can be numbered");
    flow.begin = static_cast<std::uint32_t>(ways_->begin[w]);
    flow.end = static_cast<std::uint32_t>(ways_->begin[w + 1]);
  }

  /// Gives each link room for all flows that may cross it; nobody is listed then.
  void lay_out() {
    const Crossing* crossings = ways_->crossings.data();
    for (Link& link : links_) link.first = link.listed = 0;
    for (const Flow& flow : flows_)
      for (std::uint32_t c = flow.begin; c < flow.end; ++c) ++links_[static_cast<std::size_t>(crossings[c].link)].first;
    std::int64_t next = 0;
    for (Link& link : links_) next += std::exchange(link.first, next);
    members_.resize(static_cast<std::size_t>(next));
    unlisted_.clear();
    for (std::size_t f = 0; f < flows_.size(); ++f) {
      flows_[f].listed = 0;
      if (flows_[f].level >= 0) unlisted_.push_back(static_cast<FlowId>(f));
    }
    laid_out_ = true;
  }

  /// The links of an active flow know it from now on.
  void list(FlowId id) {
    if (!laid_out_) lay_out();
    Flow& flow = flows_[static_cast<std::size_t>(id)];
    if (flow.level < 0) return;
    const Crossing* crossings = ways_->crossings.data();
    const std::uint64_t before = flow.listed;
    for (std::uint32_t c = flow.begin; c < flow.end; ++c) {
      const std::uint64_t bit = bit_of(flow, c);
      if ((before & bit) != 0) continue;
      flow.listed |= bit;
      Link& link = links_[static_cast<std::size_t>(crossings[c].link)];
      members_[static_cast<std::size_t>(link.first + link.listed++)] = {id, c};
    }
  }

  void list_all() {
    if (!laid_out_) lay_out();
    for (const FlowId id : unlisted_) list(id);
    unlisted_.clear();
  }

  std::int64_t level_of(Work rest, std::int64_t weights) const {
    const Work level = rest / weights;
    return level >= Work{kUnbounded} ? kUnbounded : static_cast<std::int64_t>(level);
  }

  /// No flow of the link is ever given less, times its weight.
  std::int64_t level_bound(const Link& link) const { return level_of(Work{count(link.capacity)} * share_unit_, link.weights); }

  void touch(LinkId id, std::int64_t level) {
    Link& link = links_[static_cast<std::size_t>(id)];
    if (!link.dirty) {
      link.dirty = true;
      touched_.push_back(id);
    }
    floor_ = std::min(floor_, level);
  }

  template <class Changed>
  void start_alone_or_touch(FlowId id, Changed& changed) {
    Flow& flow = flows_[static_cast<std::size_t>(id)];
    if (flow.level < 0 || flow.level != kFree) return;  // stopped again, or settled already
    const Crossing* crossings = ways_->crossings.data();
    bool alone = true;
    for (std::uint32_t c = flow.begin; c < flow.end && alone; ++c) alone = links_[static_cast<std::size_t>(crossings[c].link)].active == 1;
    if (!alone) {
      for (std::uint32_t c = flow.begin; c < flow.end; ++c) {
        Link& link = links_[static_cast<std::size_t>(crossings[c].link)];
        if (link.bounded) continue;
        link.bounded = true;
        bounded_.push_back(crossings[c].link);
        touch(crossings[c].link, level_bound(link));
      }
      return;
    }
    std::int64_t least = kUnbounded;
    LinkId narrowest = -1;
    for (std::uint32_t c = flow.begin; c < flow.end; ++c) {
      Link& link = links_[static_cast<std::size_t>(crossings[c].link)];
      const std::int64_t level = level_bound(link);
      link.full_from = level;
      if (level < least) {
        least = level;
        narrowest = crossings[c].link;
      }
    }
    for (std::uint32_t c = flow.begin; c < flow.end; ++c) {
      Link& link = links_[static_cast<std::size_t>(crossings[c].link)];
      if (link.full_from > least) link.full_from = kFree;
    }
    flow.level = least;
    flow.bottleneck = narrowest;
    flow.rate = Rate{narrowest < 0 ? kUnbounded : least * flow.weight};
    changed(id, Rate{0}, flow.rate);
  }

  /// Links and flows that a change can reach: through flows of level floor_ and more.
  void collect() {
    ++stamp_;
    ++solves_;
    const Crossing* crossings = ways_->crossings.data();
    component_links_.clear();
    component_flows_.clear();
    for (const LinkId id : touched_) {
      Link& link = links_[static_cast<std::size_t>(id)];
      link.dirty = false;
      if (link.stamp != stamp_) {
        link.stamp = stamp_;
        component_links_.push_back(id);
      }
    }
    for (std::size_t next = 0; next < component_links_.size(); ++next) {
      Link& link = links_[static_cast<std::size_t>(component_links_[next])];
      link.rest = Work{count(link.capacity)} * share_unit_;
      link.free_weights = link.weights;
      link.round = 0;
      for (std::int64_t m = link.first; m < link.first + link.listed; ++m) {
        const Member member = members_[static_cast<std::size_t>(m)];
        Flow& flow = flows_[static_cast<std::size_t>(member.flow)];
        if (flow.level < 0 && !stays_listed(flow, member.crossing)) {
          flow.listed &= ~bit_of(flow, member.crossing);
          members_[static_cast<std::size_t>(m--)] = members_[static_cast<std::size_t>(link.first + --link.listed)];
          continue;
        }
        if (flow.stamp == stamp_ || flow.level < 0) continue;
        if (flow.level < floor_) {
          const std::int32_t share = crossings[member.crossing].share;
          link.rest -= Work{share} * count(flow.rate);
          link.free_weights -= std::int64_t{share} * flow.weight;
          continue;
        }
        flow.stamp = stamp_;
        component_flows_.push_back(member.flow);
        for (std::uint32_t c = flow.begin; c < flow.end; ++c) {
          Link& reached = links_[static_cast<std::size_t>(crossings[c].link)];
          if (reached.stamp != stamp_) {
            reached.stamp = stamp_;
            component_links_.push_back(crossings[c].link);
          }
        }
      }
      if (link.full_from >= floor_) link.full_from = kFree;
    }
    for (const FlowId id : component_flows_) flows_[static_cast<std::size_t>(id)].level = kFree;
  }

  /// All links in use and all active flows.
  void collect_all() {
    ++stamp_;
    ++solves_;
    component_links_.clear();
    component_flows_.clear();
    for (const LinkId id : touched_) links_[static_cast<std::size_t>(id)].dirty = false;
    for (std::size_t l = 0; l < links_.size(); ++l) {
      Link& link = links_[l];
      link.full_from = kFree;
      if (link.active == 0) continue;
      link.rest = Work{count(link.capacity)} * share_unit_;
      link.free_weights = link.weights;
      link.round = 0;
      component_links_.push_back(static_cast<LinkId>(l));
    }
    component_flows_.reserve(active_);
    for (std::size_t f = 0; f < flows_.size(); ++f) {
      if (flows_[f].level < 0) continue;
      flows_[f].level = kFree;
      component_flows_.push_back(static_cast<FlowId>(f));
    }
  }

  /// Links that nobody uses any more need no solving.
  void forget_idle() {
    std::erase_if(touched_, [this](LinkId id) {
      Link& link = links_[static_cast<std::size_t>(id)];
      if (link.active > 0) return false;
      link.dirty = false;
      link.full_from = kFree;
      return true;
    });
    if (touched_.empty()) floor_ = kFree;
  }

  using Candidate = std::pair<std::int64_t, LinkId>;

  /// in_passes: each round looks through all free flows instead of the lists of the links that fill, as long as it frees half of them.
  void fill(bool in_passes) {
    if (in_passes) free_flows_ = component_flows_;
    heap_.clear();
    for (const LinkId id : component_links_) {
      const Link& link = links_[static_cast<std::size_t>(id)];
      if (link.free_weights > 0) heap_.emplace_back(level_of(link.rest, link.free_weights), id);
      if (link.rest < 0) throw std::logic_error("link " + std::to_string(id) + " would carry more than its capacity");
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>{});
    std::uint32_t round = 0;
    while (!heap_.empty()) {
      ++round;
      const std::int64_t level = next_level();
      if (level < 0) break;
      if (in_passes) {
        const std::size_t before = free_flows_.size();
        freeze_in_pass(level, round);
        if (2 * free_flows_.size() > before) {
          list_all();
          in_passes = false;
        }
      } else {
        for (const LinkId id : bottlenecks_) freeze(id, level, round);
      }
      for (const LinkId id : lowered_) {
        Link& link = links_[static_cast<std::size_t>(id)];
        link.rest -= Work{level} * (link.weights_before - link.free_weights);
        if (link.rest < 0) throw std::logic_error("link " + std::to_string(id) + " would carry more than its capacity");
      }
      lowered_.clear();
    }
  }

  /// The least level of all links, -1 if none has free flows; those links go to bottlenecks_. A link's level never falls while others fill.
  std::int64_t next_level() {
    bottlenecks_.clear();
    std::int64_t level = -1;
    while (!heap_.empty() && (level < 0 || heap_.front().first == level)) {
      const auto [stored, id] = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>{});
      heap_.pop_back();
      Link& link = links_[static_cast<std::size_t>(id)];
      if (link.free_weights == 0) continue;
      const std::int64_t now = level_of(link.rest, link.free_weights);
      if (now == stored) {
        level = stored;
        link.full_from = level;
        bottlenecks_.push_back(id);
      } else {
        heap_.emplace_back(now, id);
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
      }
    }
    return level;
  }

  /// The free flows of a link get this level.
  void freeze(LinkId id, std::int64_t level, std::uint32_t round) {
    const Link& full = links_[static_cast<std::size_t>(id)];
    for (std::int64_t m = full.first; m < full.first + full.listed; ++m) {
      Flow& flow = flows_[static_cast<std::size_t>(members_[static_cast<std::size_t>(m)].flow)];
      if (flow.level != kFree) continue;
      flow.level = level;
      flow.bottleneck = id;
      take(flow, round);
    }
  }

  /// The free flows of all links that fill get this level; each is held back by the first of its own.
  void freeze_in_pass(std::int64_t level, std::uint32_t round) {
    const Crossing* crossings = ways_->crossings.data();
    for (std::size_t place = 0; place < bottlenecks_.size(); ++place) links_[static_cast<std::size_t>(bottlenecks_[place])].place = static_cast<std::uint32_t>(place);
    std::size_t kept = 0;
    for (const FlowId id : free_flows_) {
      Flow& flow = flows_[static_cast<std::size_t>(id)];
      std::uint32_t place = kNoPlace;
      for (std::uint32_t c = flow.begin; c < flow.end; ++c) place = std::min(place, links_[static_cast<std::size_t>(crossings[c].link)].place);
      if (place == kNoPlace) {
        free_flows_[kept++] = id;
        continue;
      }
      flow.level = level;
      flow.bottleneck = bottlenecks_[place];
      take(flow, round);
    }
    free_flows_.resize(kept);
    for (const LinkId id : bottlenecks_) links_[static_cast<std::size_t>(id)].place = kNoPlace;
  }

  /// A flow that has its level is no longer free on its links.
  void take(const Flow& flow, std::uint32_t round) {
    const Crossing* crossings = ways_->crossings.data();
    for (std::uint32_t c = flow.begin; c < flow.end; ++c) {
      Link& link = links_[static_cast<std::size_t>(crossings[c].link)];
      if (link.round != round) {
        link.round = round;
        link.weights_before = link.free_weights;
        lowered_.push_back(crossings[c].link);
      }
      link.free_weights -= std::int64_t{crossings[c].share} * flow.weight;
    }
  }

  std::int64_t share_unit_;
  const WayColumns* ways_;
  std::vector<Link> links_;
  Column<Flow> flows_;
  Column<Member> members_;
  bool laid_out_ = false;
  std::size_t active_ = 0;
  Column<FlowId> started_;
  Column<FlowId> unlisted_;  ///< active flows that their links' lists may lack
  std::vector<LinkId> touched_, bounded_;
  std::int64_t floor_ = kFree;
  std::uint32_t stamp_ = 0;
  std::uint64_t solves_ = 0;
  std::vector<LinkId> component_links_, bottlenecks_, lowered_;
  Column<FlowId> component_flows_, free_flows_;
  std::vector<Candidate> heap_;
};

}  // namespace busbw::sim
