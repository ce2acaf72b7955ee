/// One try of NCCL's channel search: as many channels of one pattern as fit into a node at given speeds, depth first, within a budget of
/// steps. Which tries are made, and in which order, is the caller's.
///
/// Rules after NVIDIA/nccl 2.30.7, src/graph/search.cc. Rates are float, in 1e9 bytes a second, and a link's rest is rounded to thousandths
/// whenever something is taken from it or given back: with other arithmetic another solution would be found first.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace busbw::nccl {

enum class Pattern : std::int32_t { kBalancedTree = 1, kSplitTree = 2, kTree = 3, kRing = 4, kNvls = 5 };

/// One link on a path. What runs over it may take a share of another link too.
struct PathLink {
  std::int32_t link;
  std::int32_t reverse;          ///< link in the other direction that a share is taken from, -1 if none
  std::int32_t reverse_divisor;  ///< the share is 1/reverse_divisor
  bool peer_overhead;            ///< takes 6/5: traffic between GPUs through an Intel CPU, in short PCIe packets
};

/// A path between two ends. Ends are GPUs, then nets, then the NVSwitch.
struct SearchPath {
  std::int32_t type = kNoPath;  ///< larger is farther
  float rate = 0;               ///< of its narrowest link
  std::vector<PathLink> links;
  static constexpr std::int32_t kNoPath = 11;
};

struct SearchNet {
  float rate;
  float latency_us;
  std::int32_t asic;        ///< nets of one asic and port share its rate
  std::int32_t port;
  std::int32_t rail;        ///< -1 unknown
  std::int32_t plane;       ///< -1 unknown
  std::int32_t paired_gpu;  ///< the GPU that takes it as its own, -1 if none
  std::vector<std::int32_t> local_gpus;
  bool reaches_gpus;
};

/// The node that channels are laid into.
struct SearchNode {
  std::vector<float> links;       ///< what is left of each
  std::vector<SearchPath> paths;  ///< (ends x ends), row after row
  std::vector<SearchNet> nets;
  std::vector<std::array<std::int32_t, 2>> gpu_pci;  ///< each GPU's PCIe link, up and down; -1 if none
  bool has_nvswitch = false;
};

/// What a try looks for. Rates are those of one channel.
struct Wish {
  Pattern pattern;
  bool several_nodes;
  std::int32_t least_channels;
  std::int32_t most_channels;
  std::int32_t cross_nic;
  bool same_channels;
  float intra;
  float inter;
  std::int32_t type_intra;  ///< farthest path between GPUs
  std::int32_t type_inter;  ///< farthest path between GPU and net
  std::int32_t hops;        ///< links counted before the try
};

/// Channels found. gpus: (channels x GPUs) in order of each channel; nets: (channels x 2).
struct Channels {
  Wish wish;
  std::int32_t channels = 0;
  float latency_us = 0;
  std::vector<std::int32_t> gpus;
  std::vector<std::int32_t> nets;
};

/// Which nets to try first, for a distance between GPU and net: for all GPUs together, and for each.
struct NetOrder {
  std::vector<std::int32_t> all;
  std::vector<std::vector<std::int32_t>> of_gpu;
};

class ChannelSearch {
 public:
  static constexpr std::int32_t kPerfect = -1;  ///< steps left after a solution that cannot be bettered

  /// Throws std::invalid_argument if sizes do not agree or an index is outside.
  explicit ChannelSearch(SearchNode node) : node_(std::move(node)), gpus_(static_cast<std::int32_t>(node_.gpu_pci.size())) {
    const auto ends = static_cast<std::size_t>(gpus_) + node_.nets.size() + (node_.has_nvswitch ? 1U : 0U);
    if (gpus_ == 0) throw std::invalid_argument("a node has at least one GPU");
    if (node_.paths.size() != ends * ends) throw std::invalid_argument("paths must be a square of the ends");
    ends_ = static_cast<std::int32_t>(ends);
    const auto links = static_cast<std::int32_t>(node_.links.size());
    for (const auto& path : node_.paths)
      for (const auto& step : path.links)
        if (step.link < 0 || step.link >= links || step.reverse >= links || step.reverse_divisor == 0)
          throw std::invalid_argument("a path has a link that does not exist");
    for (const auto& ways : node_.gpu_pci)
      for (const auto link : ways)
        if (link >= links) throw std::invalid_argument("a GPU has a PCIe link that does not exist");
    for (const auto& net : node_.nets) {
      if (net.paired_gpu >= gpus_) throw std::invalid_argument("a net is paired with a GPU that does not exist");
      for (const auto gpu : net.local_gpus)
        if (gpu < 0 || gpu >= gpus_) throw std::invalid_argument("a net is local to a GPU that does not exist");
    }
    used_.resize(node_.gpu_pci.size());
  }

  std::int32_t gpus() const { return gpus_; }
  std::int32_t nets() const { return static_cast<std::int32_t>(node_.nets.size()); }

  /// Looks for channels better than `best` and puts them there. Returns the steps left: kPerfect if nothing can be better, 0 if the budget
  /// was not enough to try everything. `wish.hops` is left as the try left it.
  std::int32_t attempt(Wish& wish, Channels& best, const NetOrder& order, std::int32_t budget, std::int32_t budget_in_order) {
    if (wish.most_channels < 1 || wish.most_channels > kMostChannels) throw std::invalid_argument("channels must be 1 to 64");
    if (order.of_gpu.size() != node_.gpu_pci.size()) throw std::invalid_argument("the order of nets lacks GPUs");
    now_ = {wish, 0, 0, {}, {}};
    now_.gpus.assign(static_cast<std::size_t>(wish.most_channels) * static_cast<std::size_t>(gpus_), -1);
    now_.nets.assign(static_cast<std::size_t>(wish.most_channels) * 2, -1);
    best_ = &best;
    order_ = &order;
    left_ = budget;
    in_order_ = budget_in_order;
    next_channel();
    wish.hops = now_.wish.hops;
    return left_;
  }

 private:
  static constexpr std::int32_t kMostChannels = 64;
  enum class Order : std::uint8_t { kFree, kAscending, kAsBefore };

  /// Where in a channel the way turns: before which step to a net, after which back to the first GPU. -1: not any more.
  struct Turns {
    std::int32_t to_net;
    std::int32_t to_first;
  };

  std::int32_t net_end(std::int32_t net) const { return gpus_ + net; }
  std::int32_t switch_end() const { return ends_ - 1; }
  bool is_net(std::int32_t end) const { return end >= gpus_ && end < gpus_ + nets(); }
  const SearchPath& path(std::int32_t from, std::int32_t to) const {
    return node_.paths[static_cast<std::size_t>(from) * static_cast<std::size_t>(ends_) + static_cast<std::size_t>(to)];
  }
  std::int32_t& gpu_at(std::int32_t channel, std::int32_t step) {
    return now_.gpus[static_cast<std::size_t>(channel) * static_cast<std::size_t>(gpus_) + static_cast<std::size_t>(step)];
  }
  std::int32_t& net_at(std::int32_t channel, std::int32_t side) {
    return now_.nets[static_cast<std::size_t>(channel) * 2 + static_cast<std::size_t>(side)];
  }
  bool is_tree() const { return now_.wish.pattern <= Pattern::kTree; }

  static void take(float& rest, float rate) { rest = std::round((rest - rate) * 1000.0F) / 1000.0F; }

  /// Takes a rate from the first links of a path; returns how many had enough.
  std::size_t take_along(const SearchPath& way, std::size_t links, float rate) {
    const float with_overhead = rate * 6.0F / 5.0F;
    for (std::size_t i = 0; i < links; ++i) {
      const PathLink& step = way.links[i];
      const float needed = step.peer_overhead ? with_overhead : rate;
      float& rest = node_.links[static_cast<std::size_t>(step.link)];
      if (rest < needed) return i;
      if (step.reverse >= 0) {
        const float share = needed / static_cast<float>(step.reverse_divisor);
        float& reverse = node_.links[static_cast<std::size_t>(step.reverse)];
        if (share != 0 && reverse < share) return i;
        take(rest, needed);
        take(reverse, share);
      } else {
        take(rest, needed);
      }
    }
    return links;
  }

  /// Lays a part of a channel over a path; false if it is too far or too narrow. rate: of one channel. times: 2 where a head's share doubles.
  bool lay(std::int32_t from, std::int32_t to, float rate, float times = 1) {
    const SearchPath& way = path(from, to);
    const std::int32_t farthest = is_net(from) || is_net(to) ? now_.wish.type_inter : now_.wish.type_intra;
    if (way.type >= SearchPath::kNoPath) return false;
    if (times == 1 && (way.type > farthest || (is_tree() && path(to, from).type > farthest))) return false;
    const float needed = rate * times;
    const std::size_t laid = take_along(way, way.links.size(), needed);
    if (laid < way.links.size()) {
      take_along(way, laid, -needed);
      return false;
    }
    count_hops(way, times);
    return true;
  }

  void lift(std::int32_t from, std::int32_t to, float rate, float times = 1) {
    const SearchPath& way = path(from, to);
    take_along(way, way.links.size(), -(rate * times));
    count_hops(way, -times);
  }

  void count_hops(const SearchPath& way, float times) {
    now_.wish.hops += static_cast<std::int32_t>(times) * static_cast<std::int32_t>(way.links.size());
  }

  float rate_between(std::int32_t from, std::int32_t to) const {
    return is_net(from) || is_net(to) ? now_.wish.inter : now_.wish.intra;
  }

  Turns turns() const {
    const bool ring = now_.wish.pattern == Pattern::kRing;
    if (!now_.wish.several_nodes) return {-1, ring ? gpus_ - 1 : -1};
    return {ring ? gpus_ - 1 : now_.wish.pattern == Pattern::kSplitTree ? 1 : 0, -1};
  }

  /// Looks for the channel after those that are laid.
  void next_channel() {
    if (now_.wish.several_nodes) {
      from_nets();
      return;
    }
    const std::int32_t channel = now_.channels;
    if (now_.wish.pattern == Pattern::kNvls) {
      if (channel < gpus_) enter(kNowhere, channel, 0, turns(), Order::kFree);
      return;
    }
    if (channel == 0) enter(kNowhere, 0, 0, turns(), Order::kAscending);
    else enter(kNowhere, gpu_at(channel - 1, 0), 0, turns(), Order::kAsBefore);
    if (channel > 0 && now_.wish.same_channels) return;
    for (std::int32_t gpu = 0; gpu < gpus_; ++gpu) enter(kNowhere, gpu, 0, turns(), Order::kFree);
  }

  static constexpr std::int32_t kNowhere = -1;

  /// Goes on to a GPU, and comes back.
  void enter(std::int32_t from, std::int32_t gpu, std::int32_t step, Turns turns, Order order) {
    const float rate = from == kNowhere ? 0 : rate_between(from, gpu);
    if (from != kNowhere && !lay(from, gpu, rate)) return;
    const std::uint64_t mark = std::uint64_t{1} << now_.channels;
    used_[static_cast<std::size_t>(gpu)] ^= mark;
    at_gpu(gpu, step, turns, order);
    used_[static_cast<std::size_t>(gpu)] ^= mark;
    if (from != kNowhere) lift(from, gpu, rate);
  }

  /// The channel is complete: keeps it if it is better than the best, and looks for another.
  void complete() {
    ++now_.channels;
    if (is_better()) {
      *best_ = now_;
      if (now_.channels == now_.wish.most_channels) left_ = kPerfect;
    }
    if (now_.channels < now_.wish.most_channels) next_channel();
    --now_.channels;
  }

  void at_gpu(std::int32_t gpu, std::int32_t step, Turns turns, Order order) {
    if (left_ <= 0) return;
    --left_;
    if (step == gpus_) {
      complete();
      return;
    }
    gpu_at(now_.channels, step) = gpu;
    if (step == turns.to_net) {
      if (now_.wish.several_nodes) to_net(gpu, step, turns, order);
    } else if (now_.wish.pattern == Pattern::kNvls) {
      as_head(gpu);
    } else if (step < gpus_ - 1) {
      to_next_gpu(gpu, step, turns, order);
    } else if (step == turns.to_first) {
      const std::int32_t first = gpu_at(now_.channels, 0);
      if (!lay(gpu, first, now_.wish.intra)) return;
      at_gpu(first, step + 1, {turns.to_net, -1}, order);
      lift(gpu, first, now_.wish.intra);
    } else {
      at_gpu(gpu, gpus_, {-1, -1}, order);
    }
  }

  void to_next_gpu(std::int32_t gpu, std::int32_t step, Turns turns, Order order) {
    if (order == Order::kAscending) {
      enter(gpu, step + 1, step + 1, turns, order);
    } else if (order == Order::kAsBefore) {
      enter(gpu, gpu_at(now_.channels - 1, step + 1), step + 1, turns, order);
    } else {
      for (const auto next : next_gpus(gpu, step, turns)) enter(gpu, next, step + 1, turns, order);
    }
  }

  /// Leaves by a net. A balanced tree takes half the rate here and half at the second GPU.
  void to_net(std::int32_t gpu, std::int32_t step, Turns turns, Order order) {
    const bool balanced = now_.wish.pattern == Pattern::kBalancedTree;
    const float rate = balanced ? now_.wish.inter / 2 : now_.wish.inter;
    const std::int32_t to_net_again = balanced && step == 0 ? 1 : -1;
    for (const auto net : order_->of_gpu[static_cast<std::size_t>(gpu)]) {
      if (!may_leave_by(net, step) || !lay(gpu, net_end(net), rate)) continue;
      net_at(now_.channels, 1) = net;
      at_gpu(gpu, step, {to_net_again, turns.to_first}, order);
      lift(gpu, net_end(net), rate);
    }
  }

  bool may_leave_by(std::int32_t net, std::int32_t step) {
    const std::int32_t channel = now_.channels;
    const std::int32_t start = net_at(channel, 0);
    const SearchNet& out = node_.nets[static_cast<std::size_t>(net)];
    const SearchNet& in = node_.nets[static_cast<std::size_t>(start)];
    if (out.plane != -1 && in.plane != -1 && out.plane != in.plane) return false;
    if (now_.wish.pattern == Pattern::kTree && net != start) return false;
    if (now_.wish.pattern == Pattern::kRing && now_.wish.cross_nic == 2) {
      if (channel % 2 == 1 && net != net_at(channel - 1, 0)) return false;
    } else if (now_.wish.cross_nic == 0) {
      const bool rails = out.rail != -1 && in.rail != -1;
      if (rails ? out.rail != in.rail : out.asic != in.asic || out.port != in.port) return false;
    }
    return now_.wish.pattern != Pattern::kBalancedTree || step == 0 || net == net_at(channel, 1);
  }

  /// A head pulls from all GPUs through the NVSwitch and pushes to all; its own share is twice that of another.
  void as_head(std::int32_t head) {
    const float rate = now_.wish.intra;
    const auto times = [head](std::int32_t gpu) { return gpu == head ? 2.0F : 1.0F; };
    std::int32_t down = 0;
    std::int32_t up = 0;
    while (down < gpus_ && lay(switch_end(), down, rate, times(down))) ++down;
    if (down == gpus_) {
      while (up < gpus_ && lay(up, switch_end(), rate, times(up))) ++up;
      if (up == gpus_) at_gpu(head, gpus_, {-1, -1}, Order::kFree);
    }
    while (up > 0) --up, lift(up, switch_end(), rate, times(up));
    while (down > 0) --down, lift(switch_end(), down, rate, times(down));
  }

  void from_nets() {
    const bool heads_only = now_.wish.pattern == Pattern::kNvls;
    const auto rate = static_cast<float>(static_cast<std::int32_t>(now_.wish.inter));
    const std::vector<std::int32_t>& nets = order_->all;
    const std::int32_t channel = now_.channels;
    for (std::size_t i = 0; i < nets.size(); ++i) {
      const std::int32_t net = nets[(static_cast<std::size_t>(channel) + i) % nets.size()];
      SearchNet& in = node_.nets[static_cast<std::size_t>(net)];
      if (in.rate < rate) continue;
      const bool second_of_pair = now_.wish.pattern == Pattern::kRing && now_.wish.cross_nic == 2 && channel % 2 == 1;
      if (second_of_pair && net != net_at(channel - 1, 1)) continue;
      net_at(channel, 0) = net;
      now_.latency_us = in.latency_us;
      add_to_port(in, -rate);
      if (heads_only) {
        const bool new_head = static_cast<std::size_t>(channel) < nets.size() && in.paired_gpu >= 0 && !is_head(in.paired_gpu);
        if (new_head) enter(net_end(net), in.paired_gpu, 0, turns(), Order::kFree);
        add_to_port(in, rate);
        if (new_head) return;
        continue;
      }
      if (channel > 0 && now_.wish.same_channels) {
        enter(net_end(net), gpu_at(channel - 1, 0), 0, turns(), Order::kAsBefore);
      } else {
        from_net_freely(net, in);
        if (!in.reaches_gpus) continue;  // 2.30.7 does not give the port's rate back here
      }
      add_to_port(in, rate);
    }
  }

  void from_net_freely(std::int32_t net, const SearchNet& in) {
    if (now_.channels == 0 && !node_.has_nvswitch) {  // a reference in the order of the bus, on a budget of its own
      const std::int32_t left = left_;
      left_ = in_order_;
      enter(net_end(net), 0, 0, turns(), Order::kAscending);
      left_ = left_ == kPerfect ? kPerfect : left;
    }
    if (in.paired_gpu >= 0) enter(net_end(net), in.paired_gpu, 0, turns(), Order::kFree);
    if (!in.reaches_gpus) return;
    for (const auto gpu : in.local_gpus)
      if (gpu != in.paired_gpu) enter(net_end(net), gpu, 0, turns(), Order::kFree);
  }

  bool is_head(std::int32_t gpu) {
    for (std::int32_t channel = 0; channel < now_.channels; ++channel)
      if (gpu_at(channel, 0) == gpu) return true;
    return false;
  }

  void add_to_port(const SearchNet& net, float rate) {
    for (auto& other : node_.nets)
      if (other.asic == net.asic && other.port == net.port) other.rate += rate;
  }

  /// GPUs that the channel has not passed yet, the most promising first.
  std::vector<std::int32_t> next_gpus(std::int32_t gpu, std::int32_t step, Turns turns) {
    if (node_.has_nvswitch) return next_neighbours(gpu);
    // Most important first, smaller is better: rate and hops of its way from the net, what is left of its PCIe link; rate and hops from this GPU; distance.
    using Score = std::array<std::int32_t, 6>;
    std::vector<std::pair<Score, std::int32_t>> scored;
    for (std::int32_t i = 1; i < gpus_; ++i) {
      const std::int32_t other = (gpu + i) % gpus_;
      if (!is_free(gpu, other)) continue;
      const SearchPath& way = path(gpu, other);
      Score score{0, 0, 0, -whole(way.rate), hops(way), i};
      if (turns.to_net != -1) {
        const SearchPath& from_net = path(net_end(net_at(now_.channels, 0)), other);
        score[0] = -whole(from_net.rate);
        score[1] = -pci_rest(other);
        score[2] = hops(from_net);
      }
      scored.emplace_back(score, other);
    }
    std::sort(scored.begin(), scored.end());
    const bool far_from_net = turns.to_net != -1 && turns.to_net != step + 1;
    const auto alike = [&](const auto& one) { return one.first[3] == scored[0].first[3] && one.first[4] == scored[0].first[4]; };
    if (far_from_net && std::all_of(scored.begin(), scored.end(), alike)) std::reverse(scored.begin(), scored.end());
    std::vector<std::int32_t> next;
    next.reserve(scored.size());
    for (const auto& one : scored) next.push_back(one.second);
    return next;
  }

  /// Whether the channel has not passed a GPU and there is a way to it.
  bool is_free(std::int32_t from, std::int32_t gpu) const {
    const std::uint64_t mark = std::uint64_t{1} << now_.channels;
    return !path(from, gpu).links.empty() && (used_[static_cast<std::size_t>(gpu)] & mark) == 0;
  }

  /// With an NVSwitch only the neighbours by number, so that a GPU has few peers; the last named is tried first.
  std::vector<std::int32_t> next_neighbours(std::int32_t gpu) const {
    const std::int32_t before = (gpu - 1 + gpus_) % gpus_;
    const std::int32_t after = (gpu + 1) % gpus_;
    std::vector<std::int32_t> next;
    if (now_.wish.pattern == Pattern::kTree) next = {after};
    else if (before == after) next = {after};
    else if (now_.wish.pattern == Pattern::kRing) next = {before, after};
    else next = {after, before};
    std::erase_if(next, [&](std::int32_t other) { return !is_free(gpu, other); });
    return next;
  }

  /// What is left of a GPU's PCIe link, the scarcer direction.
  std::int32_t pci_rest(std::int32_t gpu) const {
    const auto [up, down] = node_.gpu_pci[static_cast<std::size_t>(gpu)];
    if (up < 0 || down < 0) return -1;
    return whole(std::min(node_.links[static_cast<std::size_t>(up)], node_.links[static_cast<std::size_t>(down)]));
  }

  static std::int32_t whole(float rate) { return static_cast<std::int32_t>(rate); }
  static std::int32_t hops(const SearchPath& way) { return static_cast<std::int32_t>(way.links.size()); }

  bool is_better() const {
    const Wish& now = now_.wish;
    const Wish& best = best_->wish;
    const auto channels = static_cast<float>(now_.channels);
    const auto best_channels = static_cast<float>(best_->channels);
    if (now_.channels < now.least_channels) return false;
    if (now.pattern == Pattern::kNvls)
      return (now_.channels > best_->channels && now_.channels <= gpus_) || channels * now.inter > best_channels * best.inter;
    const float rate = channels * now.intra;
    const float best_rate = best_channels * best.intra;
    if (rate != best_rate) return rate > best_rate;
    return now.pattern == best.pattern && now.cross_nic == best.cross_nic && now.hops < best.hops;
  }

  SearchNode node_;
  std::int32_t gpus_;
  std::int32_t ends_ = 0;
  std::vector<std::uint64_t> used_;  ///< by GPU, a bit a channel
  Channels now_{};
  Channels* best_ = nullptr;
  const NetOrder* order_ = nullptr;
  std::int32_t left_ = 0;
  std::int32_t in_order_ = 0;
};

}  // namespace busbw::nccl
